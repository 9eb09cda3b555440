"""How pretrain_gpt.py is started: its arguments, the launcher before it, and the environment around it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.benchmarks.megatron._log import SCRIPT
from paceline.core.device import HOST, split_target
from paceline.core.errors import InputError
from paceline.devices import accelerators, kind_named

if TYPE_CHECKING:
    from paceline.benchmarks.megatron._parameters import MegatronParameters

LEASH = Path(__file__).with_name("_leash.py")
LOSS_SCALE_POWER = 16  # Megatron's own 2^32 would skip the first twenty steps or so
CLIP = 1.0
# What SuperBench trains with.
RECIPE = {
    "--lr": "1.2e-4",
    "--min-lr": "1.0e-6",
    "--lr-decay-style": "cosine",
    "--adam-beta1": "0.9",
    "--adam-beta2": "0.95",
    "--weight-decay": "0.1",
    "--clip-grad": str(CLIP),
    "--init-method-std": "0.009",
    "--attention-dropout": "0.0",
    "--hidden-dropout": "0.0",
    "--eval-iters": "0",
}
# Arguments that figures are computed from: given twice, the last one would silently win.
OWNED = {
    "--num-layers": "layers",
    "--hidden-size": "hidden_size",
    "--num-attention-heads": "attention_heads",
    "--seq-length": "sequence_length",
    "--micro-batch-size": "micro_batch_size",
    "--global-batch-size": "global_batch_size",
    "--tensor-model-parallel-size": "tensor_parallel",
    "--pipeline-model-parallel-size": "pipeline_parallel",
    "--train-iters": "iterations",
    "--train-samples": "iterations",
    "--log-interval": "",
    "--fp16": "precision",
    "--bf16": "precision",
    "--mock-data": "data_path",
    "--data-path": "data_path",
    "--vocab-size": "vocabulary",
    "--vocab-file": "vocab_file",
    "--merge-file": "merge_file",
    "--seed": "seed",
    "--deepspeed": "zero_stage",
    "--deepspeed_config": "zero_stage",
    "--zero-stage": "zero_stage",
}


def launch(python: str, processes: int, script: Path, arguments: Sequence[str]) -> list[str]:
    """torchrun on the loopback interface, at a port that the kernel chooses."""
    launcher = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node"]
    return [python, "-m", *launcher, str(processes), str(LEASH), str(script), *arguments]


def arguments(parameters: MegatronParameters, processes: int, checkout: Path, config: Path | None) -> list[str]:
    """What pretrain_gpt.py is told; `config` is DeepSpeed's, where it is used."""
    iterations = parameters.warm_up_iterations + parameters.iterations
    sizes = {
        "--num-layers": parameters.layers,
        "--hidden-size": parameters.hidden_size,
        "--num-attention-heads": parameters.attention_heads,
        "--seq-length": parameters.sequence_length,
        "--max-position-embeddings": parameters.sequence_length,
        "--micro-batch-size": parameters.micro_batch_size,
        "--global-batch-size": parameters.batch_over(processes),
        "--tensor-model-parallel-size": parameters.tensor_parallel,
        "--pipeline-model-parallel-size": parameters.pipeline_parallel,
        "--train-iters": iterations,
        "--log-interval": 1,
        "--eval-interval": iterations + 1,
        "--seed": parameters.seed,
    }
    words = [word for name, value in {**sizes, **RECIPE}.items() for word in (name, str(value))]
    words += _precision(parameters.precision) + _data(parameters)
    if config is not None:
        words += ["--deepspeed", "--deepspeed_config", str(config), "--zero-stage", str(parameters.zero_stage)]
        words += ["--no-pipeline-parallel"] if parameters.pipeline_parallel == 1 else []
    else:
        words.append("--use-distributed-optimizer")
    words += ["--log-throughput"] if mentions(checkout, "log-throughput") else []
    return [*words, *parameters.extra]


def deepspeed_config(parameters: MegatronParameters, processes: int) -> str:
    """The file that DeepSpeed reads beside the script's arguments."""
    config: dict[str, Any] = {
        "train_batch_size": parameters.batch_over(processes),
        "train_micro_batch_size_per_gpu": parameters.micro_batch_size,
        "steps_per_print": parameters.warm_up_iterations + parameters.iterations,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": parameters.zero_stage},
    }
    if parameters.precision == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": LOSS_SCALE_POWER}
    elif parameters.precision == "bf16":
        config["bf16"] = {"enabled": True}
    return json.dumps(config, indent=2)


def environment(target: str) -> dict[str, str]:
    """What the ranks need to find in their environment; a user's own setting stays."""
    # Megatron insists on it where layers are split, so that communication is issued in order.
    found = {} if "CUDA_DEVICE_MAX_CONNECTIONS" in os.environ else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    kind, index = split_target(target)
    if kind == HOST:
        for other in accelerators():
            found |= other.hidden()  # or a GPU's figures would pass for the CPU's
    elif index.isdecimal():
        found |= kind_named(kind).showing(index)
    return found


def script_of(code_base: str) -> Path:
    """The script of a checkout, which must be there."""
    folder = Path(code_base).expanduser()
    if not folder.is_dir():
        message = f"code_base = {code_base} is not a folder: name a checkout of Megatron-LM or Megatron-DeepSpeed"
        raise InputError("not-a-folder", message, key="code_base", value=code_base)
    if not (folder / SCRIPT).is_file():
        message = (
            f"code_base = {code_base} has no {SCRIPT}: name the top folder of a checkout of Megatron-LM or "
            "Megatron-DeepSpeed"
        )
        raise InputError("not-a-checkout", message, key="code_base", value=code_base)
    return (folder / SCRIPT).resolve()


def refuse_unknown(parameters: MegatronParameters, checkout: Path) -> None:
    """Raise InputError for what this checkout cannot do, as its code tells."""
    if parameters.data_path is None and not mentions(checkout, "mock-data"):
        message = (
            f"{checkout.name} has no --mock-data, which newer checkouts of Megatron-LM have: give data_path, "
            "vocab_file and merge_file"
        )
        raise InputError("missing-key", message, key="data_path")
    if parameters.zero_stage is not None and not mentions(checkout, "import deepspeed"):
        message = (
            f"zero_stage = {parameters.zero_stage}, but {checkout.name} does not use DeepSpeed: name a checkout of "
            "Megatron-DeepSpeed, or leave zero_stage out"
        )
        raise InputError("key-does-not-apply", message, key="zero_stage", value=parameters.zero_stage)


@lru_cache(maxsize=64)
def mentions(checkout: Path, words: str) -> bool:
    """Whether the checkout's own code has these words; generations differ, and refuse arguments they do not know."""
    wanted = re.compile(re.escape(words).replace(r"\-", "[-_]").encode())
    files = [*checkout.glob("*.py"), *(checkout / "megatron").rglob("*.py")]
    return any(wanted.search(file.read_bytes()) for file in files if file.is_file())


def _precision(precision: str) -> list[str]:
    scale = ["--initial-loss-scale", str(2**LOSS_SCALE_POWER)] if precision == "fp16" else []
    return [] if precision == "fp32" else [f"--{precision}", *scale]


def _data(parameters: MegatronParameters) -> list[str]:
    if parameters.data_path is None:
        return ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", str(parameters.vocabulary)]
    words = ["--data-path", parameters.data_path]
    if parameters.vocab_file is not None and parameters.merge_file is not None:
        words += ["--tokenizer-type", "GPT2BPETokenizer"]
        words += ["--vocab-file", parameters.vocab_file, "--merge-file", parameters.merge_file]
    return words
