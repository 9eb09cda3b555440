"""The trainings of the benchmark `parallel` by megatron-core, for comparison."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any

from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.benchmarks.parallel.parallel import Parallel, Training
from paceline.core.benchmark import Context
from paceline.core.errors import MissingDependency, Unsupported
from paceline.core.record import Result
from paceline.devices import Device, open_device

if TYPE_CHECKING:
    from paceline.benchmarks.parallel._stage import Mesh
    from paceline.benchmarks.parallel.parallel import Trainer

PACKAGE = "megatron-core"
HELPERS = {"transformer_engine": "Transformer Engine", "apex": "apex"}
BERT = (
    "megatron-core's: pre-norm layers with a norm after the last, and a head over all tokens of which only the masked "
    "ones are scored; 'parallel' has post-norm layers and a head over the masked tokens alone"
)


class MegatronCore(Parallel):
    """One training step by megatron-core over the same mesh."""

    name = "megatron-core"
    summary = "train GPT-2 or BERT by megatron-core, with the parameters of 'parallel': what it is compared with"

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """What every rank would otherwise import again."""
        return ("torch", "torch._dynamo", "paceline.benchmarks.parallel._megatron_trainer")

    def measure(self, parameters: ParallelParameters, context: Context) -> Result:
        # Something else may be called megatron: a file of the user's, or another package.
        try:
            is_installed = importlib.util.find_spec("megatron.core") is not None
        except ModuleNotFoundError:
            is_installed = False
        if not is_installed:
            raise MissingDependency(PACKAGE, "install it: pip install '.[megatron]'")
        if parameters.layout.tensor > 1:
            # So that kernels and the tensor-parallel ranks' reductions run in the order in which they are issued.
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
        try:
            from paceline.benchmarks.parallel._megatron_trainer import groups
        except ImportError as error:  # newer versions need Triton, which torch for the CPU does not bring
            name = PACKAGE
            with suppress(metadata.PackageNotFoundError):  # a checkout has no such record
                name = f"{PACKAGE} {metadata.version(PACKAGE)}"
            raise MissingDependency(name, f"importing it says: {error}; install that too") from None
        with groups(open_device(context.target).kind, context.world_size):
            return super().measure(parameters, context)

    @classmethod
    def refuse_impossible(cls, parameters: ParallelParameters) -> None:
        refuse(parameters)
        super().refuse_impossible(parameters)

    def prepare(self, parameters: ParallelParameters, device: Device) -> Training:
        self.refuse_impossible(parameters)
        training = super().prepare(parameters.model_copy(update={"graph": "off"}), device)
        # It compiles two small functions by itself: a bias with the GELU, and one with dropout and the residual.
        why_not = training.facts.get("not_compiled_because")
        training.facts = {"not_fused_because": why_not} if why_not else {}
        return training

    def trainer(self, training: Training, mesh: Mesh) -> Trainer:
        from paceline.benchmarks.parallel._megatron_trainer import MegatronTrainer

        return MegatronTrainer(training.parameters, training.device, mesh, compiled=training.compiled)

    def facts(self, trainer: Trainer) -> dict[str, Any]:
        layout = trainer.parameters.layout
        facts = super().facts(trainer)
        facts |= {
            "framework": framework(),
            "optimizer": facts["optimizer"].replace("AdamW, fused", "megatron-core's, over AdamW"),
            "data_parallel": "megatron-core's DistributedDataParallel, not overlapped" if layout.data > 1 else "none",
            "attention": "megatron-core's own, of plain operations; its fused attention is Transformer Engine's",
            "weights": "copied from those that 'parallel' starts from",
        }
        if layout.precision != "fp32":
            accumulated = "fp32" if layout.precision == "bf16" else layout.precision
            facts["mixed_precision"] = (
                f"weights in {layout.precision} with fp32 copies in the optimizer; gradients add up in {accumulated}"
            )
        if layout.model == "bert":
            facts["architecture"] = BERT
        if not trainer.device.kind.is_accelerator:
            from paceline.benchmarks.parallel._megatron_trainer import ABOUT

            facts["on_cpu"] = ABOUT
        return facts


def refuse(parameters: ParallelParameters) -> None:
    """Raise Unsupported for what megatron-core cannot do, or not without the libraries that it is run without here."""
    layout = parameters.layout
    if layout.model not in ("gpt2", "bert"):
        raise Unsupported(f"megatron-core is run with gpt2 and bert here, not with {layout.model}")
    if parameters.mode == "inference":
        raise Unsupported("megatron-core is run in training alone here; use 'parallel' for mode = inference")
    if layout.precision == "fp8":
        raise Unsupported("megatron-core trains in fp8 by Transformer Engine only; use bf16, fp16 or fp32 here")
    if parameters.compile == "on":
        raise Unsupported("megatron-core's layers are not compiled by torch.compile; use --compile auto or off")
    if parameters.graph == "on":
        raise Unsupported(
            "megatron-core's step waits for the host, so that no CUDA graph can hold it; use --graph auto or off"
        )
    if parameters.schedule_name not in ("", "1f1b"):
        raise Unsupported(
            f"megatron-core is run with its schedule 1f1b, not {parameters.schedule}; use --schedule 1f1b"
        )
    if parameters.shard == "fsdp" and layout.data > 1:
        raise Unsupported("megatron-core's data-parallel ranks hold all weights here; use --shard replicate")
    if parameters.sequence_parallel:
        raise Unsupported(
            "megatron-core splits the sequence only with the norms of apex or Transformer Engine; leave "
            "sequence_parallel out"
        )
    if layout.layers % layout.pipeline:
        raise Unsupported(
            f"megatron-core gives every pipeline rank the same number of layers, but {layout.layers} layers are not "
            f"a multiple of pipeline = {layout.pipeline}"
        )


def framework() -> str:
    """Which version, and which libraries that would make it faster it ran without."""
    from megatron.core import __version__  # of what runs, which may be a checkout before the installed package

    absent = [words for module, words in HELPERS.items() if importlib.util.find_spec(module) is None]
    without = f", without {' and '.join(absent)}" if absent else ""
    return f"{PACKAGE} {__version__}: its own layers{without}"
