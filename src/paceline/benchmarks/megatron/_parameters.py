"""What a training by Megatron is made of, and what contradicts what."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paceline.benchmarks.megatron._command import OWNED
from paceline.benchmarks.micro.parameters import OneOrMore
from paceline.core.errors import InputError
from paceline.core.network import MACHINE_FILES, PROGRAM, FromNetwork
from paceline.core.parameters import Parameters

Word = Annotated[str, Field(coerce_numbers_to_str=True)]  # YAML reads some arguments as numbers


class MegatronParameters(Parameters):
    """A checkout, a model, a mesh, and how long it trains."""

    code_base: Annotated[str, FromNetwork(never="names code to run")]
    """Folder of a checkout of Megatron-LM or Megatron-DeepSpeed, with its pretrain_gpt.py; its code is run"""
    python: Annotated[str | None, PROGRAM] = None
    """Interpreter that has what the checkout needs; unset takes the one that runs Paceline"""
    precision: Literal["fp32", "fp16", "bf16"] = "bf16"
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
