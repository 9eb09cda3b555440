"""A transformer language model over 150,000 words, trained to predict the next word of random text.

It is the language model of Flashlight's task benchmark. The text has a fixed number of words in each cluster of the
vocabulary, so that shapes never change: of 2048 words 384 are from the middle cluster and 96 from the rarest, in places
that differ from sample to sample. The loss is the mean over the words. It has weights of its own, the adaptive softmax,
which are trained with the model's. Inference ends before it: its output is what the softmax predicts from.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from paceline.models.base import Batch, ModelSpec, Workload, build_scaled

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class LmShape:
    """The sizes that make one model; of `sequence` words a sample, so many as `rare` says are from each tail."""

    layers: int = 16
    hidden: int = 1024
    heads: int = 8
    feed_forward: int = 4096
    cutoffs: tuple[int, ...] = (10_000, 50_000, 150_000)
    divisor: int = 4
    sequence: int = 2048
    rare: tuple[int, ...] = (384, 96)
    dropout: float = 0.1


FULL = LmShape()
TINY = LmShape(
    layers=2, hidden=64, heads=4, feed_forward=128, cutoffs=(64, 192, 512), sequence=32, rare=(6, 2), dropout=0.0
)


def build_lm(shape: LmShape) -> Workload:
    """A language model of any shape with random text to train it on."""
    from paceline.models._modules.adaptive import AdaptiveSoftmax, LmTransformer, cluster_widths

    if len(shape.rare) != len(shape.cutoffs) - 1 or sum(shape.rare) >= shape.sequence:
        raise ValueError(
            f"{shape.rare} rare words do not fit: give one number for each of the {len(shape.cutoffs) - 1} clusters "
            f"after the first, together less than the {shape.sequence} words of a sample"
        )
    # Every word passes the head, a rare one also the two products of its cluster.
    widths = cluster_widths(shape.hidden, shape.cutoffs, shape.divisor)[1:]
    loss_flops = 2 * shape.sequence * shape.hidden * (shape.cutoffs[0] + len(widths))
    for count, width, (start, end) in zip(shape.rare, widths, pairwise(shape.cutoffs), strict=True):
        loss_flops += 2 * count * width * (shape.hidden + end - start)
    return Workload(
        module=LmTransformer(shape),
        make_batch=partial(_make_batch, shape),
        loss=AdaptiveSoftmax(shape.hidden, shape.cutoffs, shape.divisor),
        tokens_per_sample=shape.sequence,
        loss_flops=float(loss_flops),
    )


def _make_batch(shape: LmShape, samples: int, generator: torch.Generator) -> Batch:
    import torch

    from paceline.models._modules.adaptive import tail_positions

    device = generator.device
    words = torch.empty(samples, shape.sequence + 1, dtype=torch.int64, device=device)
    for row in words:  # row by row: the first samples must not depend on how many follow
        row.random_(shape.cutoffs[0], generator=generator)
        # Neither the first word, which is not a target, nor the last, which is not an input: both have all rare ones.
        positions = 1 + torch.randperm(shape.sequence - 1, generator=generator, device=device)
        rare = torch.split(positions[: sum(shape.rare)], list(shape.rare))
        for where, (start, end) in zip(rare, pairwise(shape.cutoffs), strict=True):
            row[where] = torch.empty_like(where).random_(start, end, generator=generator)
    following = words[:, 1:].contiguous()
    return Batch(inputs=(words[:, :-1].contiguous(),), targets=(following, *tail_positions(following, shape.cutoffs)))


LM_TRANSFORMER = ModelSpec(
    name="lm-transformer",
    family="transformer",
    task="language modelling",
    summary=f"{FULL.layers} causal post-norm layers, hidden size {FULL.hidden}, {FULL.heads} heads, over "
    f"{FULL.cutoffs[-1]:,} words with adaptive embedding and softmax; {FULL.sequence} words a sample, "
    f"dropout {FULL.dropout}",
    build=partial(build_scaled, build_lm, FULL, TINY),
    parameters=229_582_912,
    flops=1_105_148_772_352,
    batch_size=1,
    sample="sequence",
    settings={**asdict(FULL), "vocabulary": FULL.cutoffs[-1]},
)
