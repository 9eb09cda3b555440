"""A large vocabulary in clusters of falling frequency: narrower embeddings, and a softmax of two steps, for rare words.

Cluster 0 (the head) holds the words below the first cutoff, every later cluster (a tail) those up to the next one. The
width of a cluster's vectors is the model's, divided by `divisor` once for each cluster before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models._modules.transformer import vocabulary_logits
from paceline.models.base import Batch

IGNORED = -100  # a target that takes no part in a cross entropy


class Cluster(nn.Embedding):
    """The vectors of one cluster's words, and zeros for all others.

    Words of other clusters are looked up too, spread over the rows: all of them in a single row would have to add up
    their gradients (zeros) there.
    """

    def __init__(self, start: int, end: int, width: int) -> None:
        super().__init__(end - start, width)
        self.start, self.end = start, end
        nn.init.normal_(self.weight, std=1 / math.sqrt(width))

    def forward(self, words: Tensor) -> Tensor:
        inside = (words >= self.start) & (words < self.end)
        rows = (words - self.start).remainder(self.end - self.start)
        return super().forward(rows) * inside.unsqueeze(-1)


class AdaptiveEmbedding(nn.Module):
    """Word numbers [...] to vectors [..., hidden], each projected from its cluster's own width.

    The vectors of all clusters lie side by side, where a word has zeros in all but its own. So one product projects
    them, and no shape depends on the words; the zeros cost less than gathering and scattering would.
    """

    def __init__(self, hidden: int, cutoffs: Sequence[int], divisor: int) -> None:
        super().__init__()
        widths = cluster_widths(hidden, cutoffs, divisor)
        spans = pairwise((0, *cutoffs))
        self.clusters = nn.ModuleList(Cluster(*span, width) for span, width in zip(spans, widths, strict=True))
        self.projection = nn.Linear(sum(widths), hidden, bias=False)
        for part in torch.split(self.projection.weight.detach(), widths, dim=1):
            nn.init.xavier_uniform_(part)

    def forward(self, words: Tensor) -> Tensor:
        vectors = torch.cat([cluster(words) for cluster in self.clusters], dim=-1)
        return self.projection(vectors)  # type: ignore[no-any-return]


class AdaptiveSoftmax(nn.Module):
    """The mean cost of the next words under a softmax of two steps: over the head's words and the tails, then a tail's.

    The batch names the positions whose target lies in each tail, and only they pass through that tail. Who makes the
    batch finds them on the host (`tail_positions`), so that the step itself never asks the device how many there are:
    shapes follow from the batch alone, and the words may be any.
    """

    def __init__(self, hidden: int, cutoffs: Sequence[int], divisor: int) -> None:
        super().__init__()
        self.cutoffs = tuple(cutoffs)
        tails = cluster_widths(hidden, cutoffs, divisor)[1:]
        self.head = nn.Linear(hidden, cutoffs[0] + len(tails), bias=False)
        self.tails = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, width, bias=False), nn.Linear(width, end - start, bias=False))
            for width, (start, end) in zip(tails, pairwise(cutoffs), strict=True)
        )

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        words, *positions = batch.targets
        choice = words
        for number, (start, end) in enumerate(pairwise(self.cutoffs)):
            choice = torch.where((words >= start) & (words < end), self.cutoffs[0] + number, choice)
        logits = vocabulary_logits(hidden, self.head.weight, training=True)
        total = F.cross_entropy(logits.flatten(0, 1), choice.flatten(), reduction="sum")
        for tail, start, where in zip(self.tails, self.cutoffs[:-1], positions, strict=True):
            total = total + _tail_cost(tail, start, hidden, words, where)
        return total / words.numel()


def _tail_cost(tail: nn.Module, start: int, hidden: Tensor, words: Tensor, positions: Tensor) -> Tensor:
    """The summed cost of the words at these positions among those of their cluster."""
    rows, length = words.shape
    row = torch.arange(rows, device=words.device).unsqueeze(1)
    flat = (row * length + positions.clamp(min=0)).flatten()
    targets = words.flatten().index_select(0, flat) - start
    targets = torch.where(positions.flatten() < 0, IGNORED, targets)
    logits = tail(hidden.flatten(0, 1).index_select(0, flat))
    return F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)


def tail_positions(words: Tensor, cutoffs: Sequence[int]) -> tuple[Tensor, ...]:
    """For each tail, where its words are in every row [rows, most in a row], filled up with -1; meant for the host."""
    found = []
    for start, end in pairwise(cutoffs):
        inside = (words >= start) & (words < end)
        first = inside.int().argsort(dim=1, descending=True, stable=True)[:, : int(inside.sum(dim=1).max())]
        found.append(torch.where(inside.gather(1, first), first, -1))
    return tuple(found)


def cluster_widths(hidden: int, cutoffs: Sequence[int], divisor: int) -> list[int]:
    """How wide the vectors of each cluster are."""
    return [hidden // divisor**cluster for cluster in range(len(cutoffs))]
