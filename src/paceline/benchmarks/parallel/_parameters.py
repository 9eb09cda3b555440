"""What a parallel training is made of: its layout as one word or as plain parameters, and what contradicts what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from paceline.benchmarks.model.parameters import Switch
from paceline.benchmarks.model.precision import Fp8Recipe
from paceline.core.errors import InputError
from paceline.core.layout import EXAMPLE, Layout, LayoutPrecision, ModelFamily
from paceline.core.network import FromNetwork
from paceline.core.parameters import MeasuringParameters

SEQUENCE = {"gpt2": 1024, "bert": 512}
VOCABULARY = {"gpt2": 50257, "bert": 21128}  # of the tokenizers, before padding
LEARNING_RATE = {"gpt2": 1.5e-4, "bert": 1e-4}
VOCABULARY_ALIGNMENT = 128
BERT_TOKENS = 104  # the mask token is the last of them
IN_THE_WORD = ("model", "layers", "precision", "data", "tensor", "pipeline", "micro_batch", "global_batch")
_KEYS_OF_PARTS = {"layout-batch": "global_batch", "layout-stages": "pipeline"}  # what a layout is refused for

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "looped-bfs", "zero-bubble", "zero-bubble-v", "dual-pipe-v"]


@dataclass(frozen=True)
class ScheduleKind:
    """How a pipeline schedule arranges stages, and what it asks for."""

    torch_name: str  # as torch.distributed.pipelining knows it
    stages_per_rank: int = 1
    is_v: bool = False  # the first and the last stage share a rank
    splits_backward: bool = False  # gradients of inputs and of weights apart, which a compiled block cannot do
    fills_stages: bool = False  # wants at least as many micro-batches as stages
    in_rounds: bool = False  # takes micro-batches in rounds of about one for each rank


SCHEDULES: dict[str, ScheduleKind] = {
    "gpipe": ScheduleKind("GPipe"),
    "1f1b": ScheduleKind("1F1B", fills_stages=True),
    "interleaved": ScheduleKind("Interleaved1F1B", 2, in_rounds=True),
    "looped-bfs": ScheduleKind("LoopedBFS", 2),
    "zero-bubble": ScheduleKind("InterleavedZeroBubble", 2, splits_backward=True, in_rounds=True),
    "zero-bubble-v": ScheduleKind("ZBVZeroBubble", 2, is_v=True, splits_backward=True),
    "dual-pipe-v": ScheduleKind("DualPipeV", 2, is_v=True, splits_backward=True, fills_stages=True),
}


class ParallelParameters(MeasuringParameters):
    """A layout, and what is left to say beside it."""

    case: Annotated[str | None, FromNetwork.matching("[a-z0-9-]+/[a-z0-9_]+")] = None
    """The whole layout in one word, like gpt2/nl24_fp16_2x2x4_ac_mb32_gb1024_2n8g; or write its parts instead"""
    model: ModelFamily | None = None
    """gpt2 or bert; unset is gpt2"""
    layers: int | None = Field(default=None, ge=1)
    """Transformer layers; unset is 24"""
    precision: LayoutPrecision | None = None
    """fp32; mixed precision in bf16 or fp16 (with loss scaling); fp8 in linear layers, the rest bf16; unset is fp16"""
    data: int | None = Field(default=None, ge=1)
    """Data-parallel ranks; unset is 1"""
    tensor: int | None = Field(default=None, ge=1)
    """Tensor-parallel ranks; unset is 1"""
    pipeline: int | None = Field(default=None, ge=1)
    """Pipeline-parallel ranks; unset is 1"""
    checkpointing: bool = False
    """Keep only the inputs of each layer and compute it again in the backward pass"""
    micro_batch: int | None = Field(default=None, ge=1)
    """Samples of a micro-batch; unset is 4"""
    global_batch: int | None = Field(default=None, ge=1)
    """Samples of a whole step; unset takes one micro-batch, in a pipeline two for each rank of it, on each data rank"""
    hidden: int = Field(default=1024, ge=1)
    """Hidden size; the feed-forward layer is four times as wide"""
    heads: int = Field(default=16, ge=1)
    """Attention heads"""
    sequence: int | None = Field(default=None, ge=1)
    """Tokens of a sample; unset is 1024 for gpt2 and 512 for bert"""
    vocabulary: int | None = Field(default=None, ge=1)
    """Tokens of the vocabulary before it is padded to a multiple of 128 x tensor; unset is the tokenizer's"""
    schedule: Literal["auto"] | ScheduleName = "auto"
    """Order of the pipeline's micro-batches; auto is 1f1b"""
    shard: Literal["replicate", "fsdp"] = "replicate"
    """Data-parallel ranks hold all of their weights, or a part of them each"""
    sequence_parallel: bool = False
    """Split what is between the tensor-parallel layers along the sequence as well"""
    compile: Switch = "auto"
    """Compile each layer with torch.compile; auto does on a GPU where it can"""
    graph: Switch = "auto"
    """Replay each step as one CUDA graph; auto does where one GPU trains with compiled layers"""
    fp8_recipe: Fp8Recipe = "tensorwise"
    """fp8: one scale for each tensor, one for each row, or that with gradients of weights in bf16"""
    fp8_least: int = Field(default=16, ge=16)
    """fp8: layers with neither size as large as this stay in bf16; scaling costs small products more than they gain"""

    @field_validator("case")
    @classmethod
    def _readable(cls, word: str | None) -> str | None:
        if word is not None:
            try:
                return str(Layout.parse(word).check())
            except InputError as error:
                raise ValueError(str(error)) from None
        return word

    @property
    def layout(self) -> Layout:
        """The layout, from the word or from its parts."""
        if self.case is not None:
            return Layout.parse(self.case)
        data, tensor, pipeline = self.data or 1, self.tensor or 1, self.pipeline or 1
        micro_batch = self.micro_batch or 4
        return Layout(
            model=self.model or "gpt2",
            layers=self.layers or 24,
            precision=self.precision or "fp16",
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            checkpointing=self.checkpointing,
            micro_batch=micro_batch,
            global_batch=self.global_batch or micro_batch * data * (2 * pipeline if pipeline > 1 else 1),
            nodes=1,
            gpus=data * tensor * pipeline,
        )

    @property
    def schedule_name(self) -> str:
        """The schedule of a pipeline; empty where there is none."""
        if self.layout.pipeline == 1:
            return ""
        return "1f1b" if self.schedule == "auto" else self.schedule

    @property
    def schedule_kind(self) -> ScheduleKind:
        """What the schedule asks for; one stage asks for nothing."""
        name = self.schedule_name
        return SCHEDULES[name] if name else ScheduleKind("")

    @property
    def stages(self) -> int:
        """How many stages the layers are divided into."""
        return self.layout.pipeline * self.schedule_kind.stages_per_rank

    @property
    def tokens(self) -> int:
        """Tokens of a sample."""
        return self.sequence or SEQUENCE[self.layout.model]

    @property
    def padded_vocabulary(self) -> int:
        """Every tensor-parallel rank has the same part of it, a multiple of 128."""
        multiple = VOCABULARY_ALIGNMENT * self.layout.tensor
        own = self.vocabulary or VOCABULARY[self.layout.model]
        return -(-own // multiple) * multiple

    def refuse_contradictions(self) -> None:
        """Raise InputError, with the arithmetic shown, for numbers that do not go together."""
        self._refuse_two_layouts()
        layout = self._checked_layout()
        if self.hidden % self.heads:
            message = f"hidden = {self.hidden} is not a multiple of heads = {self.heads}"
            raise InputError("not-a-multiple", message, key="hidden", value=self.hidden)
        if self.heads % layout.tensor:
            message = (
                f"{self.heads} heads cannot be split over tensor = {layout.tensor} ranks: use a divisor of {self.heads}"
            )
            raise InputError("not-divisible", message, key="heads", value=self.heads)
        if layout.model == "bert" and self.padded_vocabulary < BERT_TOKENS:
            message = f"vocabulary = {self.padded_vocabulary} has no mask token; use at least {BERT_TOKENS}"
            raise InputError("too-small", message, key="vocabulary", value=self.padded_vocabulary)
        if self.sequence_parallel:
            self._refuse_splitting_the_sequence()
        own = type(self).model_fields
        for name in ("fp8_recipe", "fp8_least"):
            if layout.precision != "fp8" and getattr(self, name) != own[name].default:
                message = f"{name} is for fp8, but the precision is {layout.precision}; leave it out"
                raise InputError("key-does-not-apply", message, key=name, value=getattr(self, name))
        if self.schedule != "auto" and layout.pipeline == 1:
            message = f"schedule = {self.schedule} is for a pipeline, but pipeline = 1; leave it out"
            raise InputError("key-does-not-apply", message, key="schedule", value=self.schedule)
        if layout.pipeline > 1:
            self._refuse_schedule()

    def _checked_layout(self) -> Layout:
        try:
            return self.layout.check()
        except InputError as error:
            key = "case" if self.case is not None else _KEYS_OF_PARTS.get(error.code)
            raise error.within("", key=key) from None

    def _refuse_two_layouts(self) -> None:
        if self.case is None:
            return
        twice = [name for name in IN_THE_WORD if getattr(self, name) is not None]
        if self.checkpointing and not self.layout.checkpointing:
            twice.append("checkpointing")
        if twice:
            message = (
                f"case = {self.case} says everything about the layout, so {' and '.join(twice)} cannot be given "
                f"alongside it; change the word (like {EXAMPLE}), or write all parts without 'case'"
            )
            raise InputError("conflicting-keys", message, key=twice[0], value=getattr(self, twice[0]))

    def _refuse_splitting_the_sequence(self) -> None:
        tensor = self.layout.tensor
        if tensor == 1:
            message = "sequence_parallel splits over the tensor-parallel ranks, but tensor = 1; leave it out"
            raise InputError("key-does-not-apply", message, key="sequence_parallel", value=True)
        if self.tokens % tensor:
            message = f"a sequence of {self.tokens} tokens cannot be split over tensor = {tensor} ranks"
            raise InputError("not-divisible", message, key="sequence", value=self.tokens)

    def _refuse_schedule(self) -> None:
        layout, kind, name = self.layout, self.schedule_kind, self.schedule_name
        micro_batches, ranks = layout.micro_batches, layout.pipeline
        sum_shown = f"gb / (mb x d) = {layout.global_batch} / ({layout.micro_batch} x {layout.data}) = {micro_batches}"
        if layout.layers < self.stages:
            message = (
                f"{name} makes {ranks} x {kind.stages_per_rank} = {self.stages} stages, but there are only "
                f"{layout.layers} layers: use fewer pipeline ranks or another schedule"
            )
            raise InputError("too-many-stages", message, key="schedule", value=name)
        if kind.fills_stages and micro_batches < self.stages:
            message = (
                f"{name} needs a micro-batch for each of its {self.stages} stages, but {sum_shown}: "
                "use a larger global batch, or schedule gpipe"
            )
            raise InputError("too-few-micro-batches", message, key="schedule", value=name, suggestion="gpipe")
        rounds = max(1, micro_batches // ranks)
        if kind.in_rounds and micro_batches % rounds:
            message = (
                f"{name} takes the micro-batches in {micro_batches} // {ranks} = {rounds} equal rounds, but {sum_shown}"
                f" is not a multiple of {rounds}: use a multiple of {ranks} micro-batches"
            )
            raise InputError("unequal-rounds", message, key="schedule", value=name)
