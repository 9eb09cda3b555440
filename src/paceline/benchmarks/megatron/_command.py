"""How pretrain_gpt.py is started: its arguments, the launcher before it, and the environment around it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from paceline.benchmarks._micro.parameters import OneOrMore
from paceline.benchmarks.megatron._log import SCRIPT
from paceline.core.device import HOST, split_target
from paceline.core.errors import InputError
from paceline.core.network import MACHINE_FILES, PROGRAM, FromNetwork
from paceline.core.parameters import Parameters
from paceline.core.subject import FloatPrecision
from paceline.devices import accelerators, kind_named

Word = Annotated[str, Field(coerce_numbers_to_str=True)]  # YAML reads some arguments as numbers


class MegatronParameters(Parameters):
    """A checkout, a model, a mesh, and how long it trains."""

    code_base: Annotated[str, FromNetwork(never="names code to run")]
    """Folder of a checkout of Megatron-LM or Megatron-DeepSpeed, with its pretrain_gpt.py; its code is run"""
    python: Annotated[str | None, PROGRAM] = None
    """Interpreter that has what the checkout needs; unset takes the one that runs Paceline"""
    precision: FloatPrecision = "bf16"
    """Number format; fp16 scales the loss"""
    layers: int = Field(default=32, ge=1)
    """Transformer layers"""
    hidden_size: int = Field(default=4096, ge=1)
    """Hidden size; the feed-forward layer is four times as wide"""
    attention_heads: int = Field(default=32, ge=1)
    """Attention heads"""
    sequence_length: int = Field(default=2048, ge=1)
    """Tokens of a sample"""
    vocabulary: int = Field(default=50257, ge=1)
    """Tokens of the vocabulary of mock data; with data_path the tokenizer has its own"""
    micro_batch_size: int = Field(default=2, ge=1)
    """Samples of a micro-batch on one rank"""
    global_batch_size: int | None = Field(default=None, ge=1)
    """Samples of an iteration, all ranks together; unset takes one micro-batch on each data-parallel rank"""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks that share each layer"""
    pipeline_parallel: int = Field(default=1, ge=1)
    """Ranks that divide the layers among them"""
    processes: int | None = Field(default=None, ge=1)
    """Ranks on this machine, one on each GPU; unset takes one for each GPU of the target"""
    iterations: int = Field(default=50, ge=1)
    """Iterations to measure"""
    warm_up_iterations: int = Field(default=10, ge=1)
    """Iterations before them, whose times are dropped"""
    data_path: Annotated[str | None, MACHINE_FILES] = None
    """Prefix of a tokenized data set; unset trains on mock data"""
    vocab_file: Annotated[str | None, MACHINE_FILES] = None
    """GPT-2's vocabulary, for data_path"""
    merge_file: Annotated[str | None, MACHINE_FILES] = None
    """GPT-2's merges, for data_path"""
    zero_stage: int | None = Field(default=None, ge=0, le=3)
    """Train through DeepSpeed at this stage of ZeRO, for which it takes Megatron-DeepSpeed; unset trains without"""
    extra: Annotated[list[Word], OneOrMore, FromNetwork(never="is arguments of a program")] = Field(default=[])
    """More arguments for pretrain_gpt.py, each word of its own: [--use-flash-attn, --num-workers, 4]"""
    seed: int = Field(default=1234, ge=0, lt=2**31)
    """Seed of weights and data"""

    def batch_over(self, processes: int) -> int:
        """Samples of an iteration over so many ranks."""
        return self.global_batch_size or self.micro_batch_size * self._data_parallel(processes)

    def refuse_contradictions(self) -> None:
        """Raise InputError for what cannot be, whatever the machine."""
        self._refuse_odd_shapes()
        self._refuse_odd_data()
        self._refuse_odd_arguments()
        if self.processes is not None:
            self.refuse_mesh(self.processes)

    def refuse_mesh(self, processes: int) -> None:
        """Raise InputError, with the arithmetic shown, for a mesh or a batch that does not fit so many ranks."""
        model_parallel = self.tensor_parallel * self.pipeline_parallel
        if processes % model_parallel:
            message = (
                f"tensor_parallel x pipeline_parallel = {self.tensor_parallel} x {self.pipeline_parallel} = "
                f"{model_parallel} does not divide {processes} processes"
            )
            raise InputError("not-divisible", message, key="processes", value=processes)
        data = self._data_parallel(processes)
        batch = self.batch_over(processes)
        if batch % (self.micro_batch_size * data):
            message = (
                f"global_batch_size = {batch} is not a multiple of micro_batch_size x data-parallel ranks = "
                f"{self.micro_batch_size} x {data} = {self.micro_batch_size * data}"
            )
            raise InputError("not-a-multiple", message, key="global_batch_size", value=batch)

    def _data_parallel(self, processes: int) -> int:
        return max(1, processes // (self.tensor_parallel * self.pipeline_parallel))

    def _refuse_odd_shapes(self) -> None:
        for what, whole, by, part in (
            ("hidden_size", self.hidden_size, "attention_heads", self.attention_heads),
            ("attention_heads", self.attention_heads, "tensor_parallel", self.tensor_parallel),
            ("layers", self.layers, "pipeline_parallel", self.pipeline_parallel),
        ):
            if whole % part:
                message = f"{what} = {whole} is not a multiple of {by} = {part}"
                raise InputError("not-a-multiple", message, key=what, value=whole)
        if (self.zero_stage or 0) > 1 and self.pipeline_parallel > 1:
            message = (
                f"zero_stage = {self.zero_stage} with pipeline_parallel = {self.pipeline_parallel}: DeepSpeed's "
                "pipelines take stage 0 or 1"
            )
            raise InputError("conflicting-keys", message, key="zero_stage", value=self.zero_stage)

    def _refuse_odd_data(self) -> None:
        files = {"vocab_file": self.vocab_file, "merge_file": self.merge_file}
        given = [name for name, value in files.items() if value is not None]
        if self.data_path is None and given:
            message = f"{' and '.join(given)} without data_path: mock data has a tokenizer of its own"
            raise InputError("key-does-not-apply", message, key=given[0], value=files[given[0]])
        if self.data_path is not None and len(given) < len(files) and "--tokenizer-type" not in self.extra:
            message = "data_path needs vocab_file and merge_file, or another --tokenizer-type in 'extra'"
            raise InputError("missing-key", message, key=next(name for name in files if name not in given))

    def _refuse_odd_arguments(self) -> None:
        for word in self.extra:
            name = word.partition("=")[0]
            if name.startswith("--") and any(sign.isspace() for sign in name):
                message = f"extra: '{word}' is several words; write each of them as an element of the list"
                raise InputError("several-words", message, key="extra", value=word)
            if name in OWNED:
                instead = f"use the parameter {OWNED[name]}" if OWNED[name] else "every iteration must be reported"
                message = f"extra: {name} is Paceline's to set; {instead}"
                raise InputError("reserved-argument", message, key="extra", value=word, suggestion=OWNED[name] or None)


DIE_WITH_PARENT = Path(__file__).with_name("_die_with_parent.py")
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
    return [python, "-m", *launcher, str(processes), str(DIE_WITH_PARENT), str(script), *arguments]


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
