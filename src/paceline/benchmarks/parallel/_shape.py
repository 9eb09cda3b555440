"""The model that a parallel training trains: its sizes, its FLOPs, and which layers go to which stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.benchmarks.parallel._parameters import ParallelParameters

if TYPE_CHECKING:
    from paceline.models.base import Workload

MASKED_PERCENT = 15
MASKED_ALIGNMENT = 16


def build(parameters: ParallelParameters) -> Workload:
    """The whole model on the current device, with weights from torch's global seed."""
    from paceline.models.bert import BertShape, build_bert
    from paceline.models.gpt2 import Gpt2Shape, build_gpt2

    tokens, layers = parameters.tokens, parameters.layout.layers
    hidden, heads, vocabulary = parameters.hidden, parameters.heads, parameters.padded_vocabulary
    if parameters.layout.model == "gpt2":
        return build_gpt2(
            Gpt2Shape(layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary, context=tokens, sequence=tokens)
        )
    return build_bert(
        BertShape(
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocabulary=vocabulary,
            context=tokens,
            sequence=tokens,
            masked=masked_tokens(tokens),
        )
    )


def masked_tokens(tokens: int) -> int:
    """How many of a sample's tokens BERT has to fill in: 15 %, rounded up to a multiple of 16."""
    return min(tokens, -(-tokens * MASKED_PERCENT // (100 * MASKED_ALIGNMENT)) * MASKED_ALIGNMENT)


def step_flops(parameters: ParallelParameters) -> tuple[float, str]:
    """FLOPs of one step over the whole batch, and the formula they are from."""
    layout = parameters.layout
    b, s, layers = layout.global_batch, parameters.tokens, layout.layers
    h, v = parameters.hidden, parameters.padded_vocabulary
    if layout.model == "gpt2":
        flops = 72.0 * b * s * layers * h**2 * (1 + s / (12 * h) + v / (12 * layers * h))
        return flops, (
            "Megatron-LM's: 72 B s L h^2 (1 + s/(12h) + V/(12Lh)); causal attention counts half, forward and backward "
            "as 3 x forward, recomputation not at all, V is the padded vocabulary"
        )
    m = masked_tokens(s)
    flops = 72.0 * b * s * layers * h**2 * (1 + s / (6 * h) + (m / s) * v / (12 * layers * h))
    return flops, (
        "Megatron-LM's for full attention and a head over m of s tokens: 72 B s L h^2 (1 + s/(6h) + (m/s) V/(12Lh)); "
        "forward and backward as 3 x forward, recomputation not at all, V is the padded vocabulary"
    )


def split_layers(parameters: ParallelParameters) -> list[int]:
    """How many layers each stage has, so that the slowest one, which sets the pace, has as little as possible.

    The head over the vocabulary is worth several layers; the last stage therefore has fewer of them.
    """
    tokens, hidden = parameters.tokens, parameters.hidden
    causal = parameters.layout.model == "gpt2"
    scored = tokens if causal else masked_tokens(tokens)
    layer = 12 * hidden**2 + (1 if causal else 2) * tokens * hidden
    head = scored / tokens * parameters.padded_vocabulary * hidden / layer
    return balance(parameters.layout.layers, parameters.stages, head)


def balance(layers: int, stages: int, head: float) -> list[int]:
    """Give every stage one layer, and each further one to the stage with the least work."""
    counts = [1] * stages
    for _ in range(layers - stages):
        work = [count + (head if stage == stages - 1 else 0.0) for stage, count in enumerate(counts)]
        counts[work.index(min(work))] += 1
    return counts


def stage_ranges(counts: Sequence[int]) -> list[range]:
    """Which layers each stage has."""
    ends = [sum(counts[: stage + 1]) for stage in range(len(counts))]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
