"""What a parallel training is made of: its layout as one word or as plain parameters, and what contradicts what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from paceline.benchmarks._model.benchmark import Switch
from paceline.benchmarks._model.session import Fp8Recipe, draw_rows
from paceline.core.errors import InputError
from paceline.core.layout import EXAMPLE, Layout, LayoutPrecision, ModelFamily
from paceline.core.network import FromNetwork
from paceline.core.parameters import MeasuringParameters
from paceline.core.transformer import GATE_BLOCK, SEQUENCES, Transformer, transformer

if TYPE_CHECKING:
    from paceline.models.base import Batch, Workload


def build(parameters: ParallelParameters) -> Workload:
    """The whole model on the current device, with weights from torch's global seed."""
    from paceline.models.bert import BertShape, build_bert
    from paceline.models.gpt2 import Gpt2Shape, build_gpt2
    from paceline.models.llama import DecoderShape, build_llama
    from paceline.models.mixtral import MoeShape, build_mixtral

    sizes: dict[str, Any] = {
        "layers": parameters.layout.layers,
        "hidden": parameters.hidden,
        "heads": parameters.heads,
        "vocabulary": parameters.padded_vocabulary,
        "context": parameters.tokens,
        "sequence": parameters.tokens,
    }
    model = parameters.transformer
    if parameters.layout.model == "gpt2":
        return build_gpt2(Gpt2Shape(**sizes))
    if parameters.layout.model in ("llama", "mixtral"):
        sizes |= {"key_heads": model.key_heads, "feed_forward": model.feed_forward}
        if parameters.layout.model == "llama":
            return build_llama(DecoderShape(**sizes))
        return build_mixtral(MoeShape(**sizes, experts=model.experts, experts_used=model.experts_used))
    return build_bert(BertShape(**sizes, masked=model.scored))


def draw(parameters: ParallelParameters, workload: Workload, data_rank: int) -> Batch:
    """The rows of a data-parallel rank."""
    size = parameters.layout.micro_batch * parameters.layout.micro_batches
    return draw_rows(workload, parameters.seed, data_rank * size, size)


_COUNTED = "all of attention's square, forward and backward as 3 x forward; recomputation and padding are no work"
FLOPS_FORMULA = {
    "gpt2": f"Megatron-LM's: 72 B s L h^2 (1 + s/(6h) + V/(12Lh)); {_COUNTED}",
    "llama": f"6 B s (L (2 h (h + k) + 3 h f + 2 s h) + h V), k the width of all keys, f of the feed-forward layer; "
    f"{_COUNTED}",
    "mixtral": f"6 B s (L (2 h (h + k) + 3 e h f + E h + 2 s h) + h V), k the width of all keys, f that of an expert, "
    f"e of E experts used by a token; {_COUNTED}",
    "bert": f"Megatron-LM's for a head over m of s tokens: 72 B s L h^2 (1 + s/(6h) + (m/s) (V+h)/(12Lh)); {_COUNTED}",
}
LEARNING_RATE = {"gpt2": 1.5e-4, "bert": 1e-4, "llama": 1.5e-4, "mixtral": 1.5e-4}
BERT_TOKENS = 104  # the mask token is the last of them
FAMILY_KEYS = {("llama", "mixtral"): ("key_heads", "feed_forward"), ("mixtral",): ("experts", "experts_used")}
LAYOUT_KEYS = (
    *("model", "layers", "precision", "data", "tensor", "pipeline", "context", "expert", "micro_batch", "global_batch"),
)

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "looped-bfs", "zero-bubble"]


@dataclass(frozen=True)
class ScheduleKind:
    """How a pipeline schedule arranges stages, and what it requires."""

    torch_name: str  # in torch.distributed.pipelining
    stages_per_rank: int = 1
    splits_backward: bool = False  # gradients of inputs and of weights apart, which a compiled block cannot do
    fills_stages: bool = False  # needs at least as many micro-batches as stages
    in_rounds: bool = False  # takes micro-batches in rounds of about one for each rank


SCHEDULES: dict[str, ScheduleKind] = {
    "gpipe": ScheduleKind("GPipe"),
    "1f1b": ScheduleKind("1F1B", fills_stages=True),
    "interleaved": ScheduleKind("Interleaved1F1B", 2, in_rounds=True),
    "looped-bfs": ScheduleKind("LoopedBFS", 2),
    "zero-bubble": ScheduleKind("InterleavedZeroBubble", 2, splits_backward=True, in_rounds=True),
}


def stages_of_rank(kind: ScheduleKind, ranks: int, rank: int) -> list[int]:
    """Which stages a pipeline rank has: every so-many-th one."""
    return list(range(rank, ranks * kind.stages_per_rank, ranks))


def ideal_bubble(name: str, ranks: int, micro_batches: int, stages_per_rank: int) -> tuple[float, str] | None:
    """The share of its time that a schedule leaves a rank idle if every stage takes equally long; with the formula."""
    if name in ("gpipe", "1f1b"):
        return (ranks - 1) / (micro_batches + ranks - 1), "(p - 1) / (m + p - 1)"
    if name in ("interleaved", "looped-bfs"):
        each, work = stages_per_rank, stages_per_rank * micro_batches
        if micro_batches >= ranks:
            return (ranks - 1) / (work + ranks - 1), f"(p - 1) / ({each} m + p - 1)"
        # The first micro-batch is not back at a rank when this has done its part of all others.
        return 1 - work / (each * ranks + micro_batches - 1), f"1 - {each} m / ({each} p + m - 1), as m < p"
    return None


class ParallelParameters(MeasuringParameters):
    """A layout, and the settings that it does not contain."""

    case: Annotated[str | None, FromNetwork.matching("[a-z0-9-]+/[a-z0-9_]+")] = None
    """The whole layout in one word, like gpt2/nl24_fp16_2x2x4_ac_mb32_gb1024_2n8g; or write its parts instead"""
    model: ModelFamily | None = None
    """gpt2, bert, llama or mixtral; unset is gpt2"""
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
    context: int | None = Field(default=None, ge=1)
    """llama, mixtral: ranks that have a part of the tokens of every sample each; unset is 1"""
    expert: int | None = Field(default=None, ge=1)
    """mixtral: of the data-parallel ranks, so many have a part of the experts each; unset is 1"""
    checkpointing: bool = False
    """Keep only the inputs of each layer and compute it again in the backward pass"""
    micro_batch: int | None = Field(default=None, ge=1)
    """Samples of a micro-batch; unset is 4"""
    global_batch: int | None = Field(default=None, ge=1)
    """Samples of a whole step; unset takes one micro-batch, in a pipeline two for each rank of it, on each data rank"""
    mode: Literal["training", "inference"] = "training"
    """inference runs forward alone, each token scored: the step time is the latency of a whole batch"""
    hidden: int = Field(default=1024, ge=1)
    """Hidden size; the feed-forward layer of gpt2 and bert is four times as wide"""
    heads: int = Field(default=16, ge=1)
    """Attention heads"""
    key_heads: int | None = Field(default=None, ge=1)
    """llama, mixtral: heads of keys and values; unset is one for every 4 heads"""
    feed_forward: int | None = Field(default=None, ge=1)
    """llama, mixtral: width of the feed-forward layer, or of one expert; unset is 3.5 times the hidden size"""
    experts: int | None = Field(default=None, ge=2)
    """mixtral: experts of a feed-forward layer; unset is 8"""
    experts_used: int | None = Field(default=None, ge=1)
    """mixtral: experts that each token is sent to; unset is 2"""
    sequence: int | None = Field(default=None, ge=1)
    """Tokens of a sample; unset is 1024 for gpt2, 512 for bert and 2048 for llama and mixtral"""
    vocabulary: int | None = Field(default=None, ge=1)
    """Tokens of the vocabulary before it is padded to a multiple of 128 x tensor; unset is the tokenizer's"""
    schedule: Literal["auto"] | ScheduleName = "auto"
    """Order of the pipeline's micro-batches; auto is 1f1b, of inference gpipe"""
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
        try:
            return word if word is None else str(Layout.parse(word).check())
        except InputError as error:
            raise ValueError(str(error)) from None

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
            context=self.context or 1,
            expert=self.expert or 1,
            checkpointing=self.checkpointing,
            micro_batch=micro_batch,
            global_batch=self.global_batch or micro_batch * data * (2 * pipeline if pipeline > 1 else 1),
            nodes=1,
            gpus=data * tensor * pipeline * (self.context or 1),
        )

    @property
    def schedule_name(self) -> str:
        """The schedule of a pipeline; empty where there is none."""
        if self.layout.pipeline == 1:
            return ""
        usual = "1f1b" if self.mode == "training" else "gpipe"
        return usual if self.schedule == "auto" else self.schedule

    @property
    def schedule_kind(self) -> ScheduleKind:
        """What the schedule requires; one stage requires nothing."""
        return SCHEDULES.get(self.schedule_name, ScheduleKind(""))

    @property
    def stages(self) -> int:
        """How many stages the layers are divided into."""
        return self.layout.pipeline * self.schedule_kind.stages_per_rank

    @property
    def transformer(self) -> Transformer:
        """The sizes of the model, and what follows from them."""
        layout = self.layout
        more = {name: getattr(self, name) for names in FAMILY_KEYS.values() for name in names}
        return transformer(layout.model, layout.layers, self.hidden, self.heads, self.sequence, self.vocabulary, **more)

    @property
    def tokens(self) -> int:
        """Tokens of a sample."""
        return self.sequence or SEQUENCES[self.layout.model]

    @property
    def padded_vocabulary(self) -> int:
        """Every tensor-parallel rank has the same part of it, a multiple of 128."""
        return self.transformer.padded_vocabulary(self.layout.tensor)

    def given(self, name: str, value: Any) -> str:
        """How a user sets a parameter of these to another value: with a layout in one word, by another word."""
        if self.case is None or name not in (*LAYOUT_KEYS, "checkpointing"):
            return f"{name}={value}"
        return f"case={Layout.model_validate(self.layout.model_dump() | {name: value})}"

    def refuse_contradictions(self) -> None:
        """Raise InputError, with the arithmetic shown, for numbers that do not go together."""
        twice = [name for name in LAYOUT_KEYS if self.case is not None and getattr(self, name) is not None]
        if self.checkpointing and not self.layout.checkpointing:
            twice.append("checkpointing")
        if twice:
            message = (
                f"case = {self.case} says everything about the layout, so {' and '.join(twice)} cannot be given "
                f"alongside it; change the word (like {EXAMPLE}), or write all parts without 'case'"
            )
            raise InputError("conflicting-keys", message, key=twice[0], value=getattr(self, twice[0]))
        try:
            layout = self.layout.check()
        except InputError as error:
            parts = {"layout-batch": "global_batch", "layout-stages": "pipeline", "layout-experts": "expert"}
            raise error.within("", key="case" if self.case is not None else parts.get(error.code)) from None
        if self.hidden % self.heads:
            message = f"hidden = {self.hidden} is not a multiple of heads = {self.heads}"
            raise InputError("not-a-multiple", message, key="hidden", value=self.hidden)
        for families, names in FAMILY_KEYS.items():
            for name in names:
                if layout.model not in families and getattr(self, name) is not None:
                    message = f"{name} is for {' and '.join(families)}, but the model is {layout.model}; leave it out"
                    raise InputError("key-does-not-apply", message, key=name, value=getattr(self, name))
        if layout.model in ("llama", "mixtral"):
            self._refuse_decoder()
        elif layout.context > 1:
            message = f"context splits rotary positions, which {layout.model} does not have: use llama or mixtral"
            raise InputError("key-does-not-apply", message, key="context", value=layout.context)
        if layout.expert > 1 and layout.model != "mixtral":
            message = f"expert splits experts, which {layout.model} does not have: use mixtral"
            raise InputError("key-does-not-apply", message, key="expert", value=layout.expert)
        if self.heads % layout.tensor:
            message = (
                f"{self.heads} heads cannot be split over tensor = {layout.tensor} ranks: use a divisor of {self.heads}"
            )
            raise InputError("not-divisible", message, key="heads", value=self.heads)
        if layout.model == "bert" and self.padded_vocabulary < BERT_TOKENS:
            message = f"vocabulary = {self.padded_vocabulary} has no mask token; use at least {BERT_TOKENS}"
            raise InputError("too-small", message, key="vocabulary", value=self.padded_vocabulary)
        if self.sequence_parallel and layout.tensor == 1:
            message = "sequence_parallel splits over the tensor-parallel ranks, but tensor = 1; leave it out"
            raise InputError("key-does-not-apply", message, key="sequence_parallel", value=True)
        if self.sequence_parallel and self.tokens // layout.context % layout.tensor:
            share = self.tokens // layout.context
            message = f"a sequence of {share} tokens cannot be split over tensor = {layout.tensor} ranks"
            raise InputError("not-divisible", message, key="sequence", value=self.tokens)
        for name in ("fp8_recipe", "fp8_least"):
            if layout.precision != "fp8" and getattr(self, name) != type(self).model_fields[name].default:
                message = f"{name} is for fp8, but the precision is {layout.precision}; leave it out"
                raise InputError("key-does-not-apply", message, key=name, value=getattr(self, name))
        if self.mode == "inference" and (layout.checkpointing or self.schedule not in ("auto", "gpipe")):
            key = "checkpointing" if layout.checkpointing else "schedule"
            message = f"mode = inference has no backward pass, so {key} does not apply; leave it out"
            raise InputError("key-does-not-apply", message, key=key, value=getattr(self, key))
        if self.schedule != "auto" and layout.pipeline == 1:
            message = f"schedule = {self.schedule} is for a pipeline, but pipeline = 1; leave it out"
            raise InputError("key-does-not-apply", message, key="schedule", value=self.schedule)
        if layout.pipeline > 1:
            self._refuse_schedule()

    def _refuse_decoder(self) -> None:
        model, tensor = self.transformer, self.layout.tensor
        if self.heads % model.key_heads:
            message = f"heads = {self.heads} is not a multiple of key_heads = {model.key_heads}"
            raise InputError("not-a-multiple", message, key="key_heads", value=model.key_heads)
        if self.hidden // self.heads % 2:
            size = self.hidden // self.heads
            message = f"hidden / heads = {self.hidden} / {self.heads} = {size}: rotary positions need an even number"
            raise InputError("not-a-multiple", message, key="heads", value=self.heads)
        for name, parts in (("key_heads", 1), ("feed_forward", GATE_BLOCK)):
            if getattr(model, name) % (tensor * parts) and tensor > 1:
                message = (
                    f"{name} = {getattr(model, name)} cannot be split over tensor = {tensor} ranks: "
                    f"use a multiple of {tensor * parts}"
                )
                raise InputError("not-divisible", message, key=name, value=getattr(model, name))
        if model.experts % self.layout.expert:
            message = f"{model.experts} experts cannot be split over expert = {self.layout.expert} ranks"
            raise InputError("not-divisible", message, key="expert", value=self.layout.expert)
        if self.tokens % (2 * self.layout.context) and self.layout.context > 1:
            message = (
                f"a sequence of {self.tokens} tokens cannot be cut into 2 x context = {2 * self.layout.context} chunks"
            )
            raise InputError("not-divisible", message, key="sequence", value=self.tokens)
        if model.experts_used > model.experts:
            message = f"experts_used = {model.experts_used} is more than experts = {model.experts}"
            raise InputError("too-large", message, key="experts_used", value=model.experts_used)

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
