"""What every benchmark of a whole model says of itself before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field

from paceline.benchmarks._model.measuring import FLOP_RATE
from paceline.benchmarks._model.traffic import counted, inference_work, training_work
from paceline.benchmarks._superbench import Values
from paceline.core.benchmark import Benchmark
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError
from paceline.core.parameters import MeasuringParameters, OnOff
from paceline.core.record import Outcome, Record
from paceline.core.stats import PERCENTILES
from paceline.core.subject import SUPERBENCH, Alias, Description, ModelPrecision, key_word
from paceline.devices import datasheet
from paceline.models.base import Scale, Traits
from paceline.models.sources import MODEL_INPUT, MODEL_NAME, check_model

Switch = Annotated[Literal["auto", "on", "off"], OnOff]


class ModelParameters(MeasuringParameters):
    """A model, how it is computed, and how much at once."""

    model: Annotated[str, MODEL_NAME]
    """A model of the zoo (paceline list models), generated/FAMILY:knob=value, or your own: ./my.onnx, ./my.pt2,
    ./script.py:factory, package.module:factory, or a folder with a Hugging Face config.json"""
    input: Annotated[str | None, MODEL_INPUT] = None
    """What goes into a model of your own: sizes as 1x3x224x224, whole numbers as 1x128:int64:30522, several joined by
    +; the first size is the batch. Unset takes what the file or the factory says"""
    precision: ModelPrecision = "fp32"
    """fp32 (true), tf32, fp16 or bf16 (mixed), fp8_hybrid, fp8_e4m3"""
    batch_size: Literal["auto"] | Annotated[int, Field(ge=1)] | None = None
    """Samples per step and rank; auto finds the largest that fits; unset takes the model's own"""
    scale: Scale = "full"
    """full, or tiny: the same kind of model, small enough for a slow machine"""
    compile: Switch = "auto"
    """Compile with torch.compile; auto does on a GPU where it can"""
    channels_last: Switch = "auto"
    """Memory layout of images; auto takes it for models that gain from it"""
    autotune: Switch = "auto"
    """Let cuDNN try its algorithms for every convolution, which can take a minute; auto does when compiling"""
    graph: Switch = "auto"
    """Replay each step as one CUDA graph; auto does where a model of the zoo gains from it"""
    deterministic: bool = False
    """Compute twice from the same seed; a difference is reported as silent corruption"""


Action = Literal["train", "inference"]


def _figures(record: Record, action: Action) -> Values:
    """SuperBench's figures of a whole case, or of each rank where all of them infer by themselves."""
    ranks, rate = record.case.ranks, record.measurement("throughput")
    scopes = [f"rank {rank}" for rank in range(ranks)]
    figures: Values = {}
    if action == "inference" and ranks > 1 and all(record.measurement("step_time", scope) for scope in scopes):
        for rank, scope in enumerate(scopes):
            figures |= {f"{key}:{rank}": value for key, value in _values(record, scope, 1, action).items()}
    else:
        figures = _values(record, "", ranks, action)
    return figures | ({"global_throughput": rate.value} if rate and ranks > 1 else {})


def _values(record: Record, scope: str, ranks: int, action: Action) -> Values:
    """Means, and for inference percentiles as well."""
    times, rate = record.measurement("step_time", scope), record.measurement("throughput", scope)
    figures: Values = {}
    if times:
        figures["step_time"] = times.summary.mean * 1000
    if rate:
        figures["throughput"] = rate.value / ranks
    if action == "train":
        return figures
    if times:
        figures |= {f"step_time_{name}": value * 1000 for name, value in times.summary.percentiles.items()}
    if times and rate and rate.work and len(times.samples) and min(times.samples) > 0:
        rates = rate.work / ranks / np.asarray(times.samples)
        figures |= {f"throughput_{p:g}": float(np.percentile(rates, p)) for p in PERCENTILES}
    return figures


LARGER = 4  # times the batch that is proposed
MOST_MEMORY = 0.8  # of the device's


def usual_alternatives(record: Record, precision: str, eight_bits: str, *, is_graph: bool) -> dict[str, bool]:
    """Settings of any step of a model that could make the same work faster, and whether the record leaves them open.

    `eight_bits` is the precision that has the model's products in 8 bits; empty where it has none.
    """
    on_gpu = record.case.target != "cpu"
    sheet = datasheet(str(record.facts.get("device", "")))

    def computes(number_format: str) -> bool:
        return on_gpu and (sheet is None or sheet.rate(number_format) is not None)

    is_compiled = bool(record.facts.get("compiled"))
    found = {
        "compile=on": not is_compiled,
        "graph=on": on_gpu and not is_graph,
        "precision=bf16": precision in ("fp32", "tf32") and computes("bf16"),
    }
    if eight_bits:
        # As it is written, scaling and converting each input takes longer than its product saves.
        found[f"precision={eight_bits}"] = precision in ("fp16", "bf16") and is_compiled and computes("fp8")
    return found


def switches_of(alternatives: Iterable[str]) -> tuple[str, ...]:
    """Those that give the device more at once, as options of a command."""
    return tuple(f"--{name} on" for name in ("compile", "graph") if f"{name}=on" in alternatives)


def _alternatives(
    record: Record, parameters: ModelParameters, environment: Environment, *, is_graph: bool
) -> tuple[str, ...]:
    """Values of parameters that could make the same work faster, as far as the record does not rule them out."""
    from paceline.models import MODELS

    facts = record.facts
    spec = MODELS.registry().entries.get(parameters.model)
    eight_bits = "fp8_hybrid" if spec is not None and spec.fp8 else ""
    found = usual_alternatives(record, parameters.precision, eight_bits, is_graph=is_graph)
    found |= {
        "channels_last=on": not facts.get("channels_last"),
        "frozen=on": facts.get("frozen") is False,  # only what is compiled says it
    }
    size, memory = facts.get("batch_size"), record.measurement("peak_device_memory")
    total = next((gpu.memory_total for gpu in environment.gpus if gpu.memory_total), None)
    is_fitting = memory is None or total is None or LARGER * memory.value < MOST_MEMORY * total
    if isinstance(size, int | float) and is_fitting:
        found[f"batch_size={LARGER * int(size)}"] = True
    return tuple(text for text, is_possible in found.items() if is_possible)


P = TypeVar("P", bound=ModelParameters)


class ModelBenchmark(Benchmark[P]):
    """A benchmark whose parameters name a model."""

    action: ClassVar[Action]
    primary = "throughput"
    distributed = True
    traceable = True

    @classmethod
    def title(cls, parameters: P) -> str:
        """Model, precision and every parameter that differs from its default."""
        size = parameters.batch_size
        words = {
            f"{parameters.input}": parameters.input is not None,
            parameters.scale: parameters.scale != "full",
            "auto batch" if size == "auto" else f"b{size}": size is not None,
            "compiled": parameters.compile == "on",
            "graph": parameters.graph == "on",
            "deterministic": parameters.deterministic,
        }
        return " ".join([parameters.model, parameters.precision, *(word for word, is_set in words.items() if is_set)])

    @classmethod
    def check(cls, parameters: P, case: Case) -> None:
        """Refuse an unknown model, a user's own where it may not be imported, and what a model does not do."""
        traits = check_model(parameters.model, is_local=case.origin == "local", inputs=parameters.input)
        cls.check_traits(parameters, traits)

    @classmethod
    def check_traits(cls, parameters: P, traits: Traits) -> None:
        """Refuse what contradicts that of which a model leaves no choice."""

        def refuse(code: str, key: str, why: str) -> None:
            value = getattr(parameters, key)
            message = f"{key} = {value}: the {traits.noun} {parameters.model} {why}"
            raise InputError(code, message, key=key, value=value)

        if cls.action == "train" and not traits.is_trainable:
            refuse("not-trainable", "model", "has no weights to train: measure it with 'paceline run inference'")
        if parameters.scale != "full" and not traits.has_scales:
            refuse("one-scale", "scale", "has one size: leave it out")
        if traits.batch_size is not None and parameters.batch_size not in (None, "auto", traits.batch_size):
            only = f"takes batches of {traits.batch_size} alone"
            refuse("fixed-batch-size", "batch_size", f"{only}: leave it out, or export it with a batch of any size")
        same = {"fp32": ("fp32", "tf32")}.get(traits.precision, (traits.precision,))
        if traits.precision and parameters.precision not in same:
            refuse(
                "fixed-precision", "precision", f"computes in {traits.precision}: use --precision {traits.precision}"
            )
        if traits.engine != "torch" and "on" in (parameters.compile, parameters.graph):
            key = "graph" if parameters.graph == "on" else "compile"
            refuse("fixed-engine", key, f"is computed by {traits.engine}, not by torch: leave it out")

    @classmethod
    def describe(cls, record: Record, parameters: P, environment: Environment) -> Description:
        """Its work, SuperBench's names for it, and what could be switched on to give the device more at once."""
        description = super().describe(record, parameters, environment)
        trace = description.trace
        if trace is not None:
            is_graph = bool(record.facts.get("graph", parameters.graph == "on"))
            alternatives = _alternatives(record, parameters, environment, is_graph=is_graph)
            trace = trace.model_copy(update={"switches": switches_of(alternatives), "alternatives": alternatives})
        alias = Alias(
            group=f"model-benchmarks/pytorch-{key_word(parameters.model)}",
            prefix=f"{key_word(parameters.precision)}_{cls.action}_",
            note="" if parameters.scale == "full" else f"scale={key_word(parameters.scale)}",
            is_model=True,
            values=_figures(record, cls.action) if record.outcome is Outcome.OK else {},
        )
        return Description(
            trace=trace,
            counts_work=record.measurement(FLOP_RATE.name) is not None,
            work=counted(training_work if cls.action == "train" else inference_work, record),
            aliases={SUPERBENCH: alias},
        )

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """What the first step would otherwise import again in every case."""
        from paceline.models import MODELS

        spec = MODELS.registry().entries.get(str(parameters.get("model")))
        # The first optimizer step imports the compiler, whether it compiles or not.
        common = ("torch._dynamo", "torch.utils.flop_counter", "torch.nn.parallel")
        fp8 = ("torchao.float8",) if str(parameters.get("precision")).startswith("fp8") else ()
        return (*(spec.imports if spec else ("torch",)), *common, *fp8)
