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

from paceline.models._modules.transformer import Attention, vocabulary_logits
from paceline.models.base import Batch
from paceline.models.lm_transformer import LmShape

LONGEST_WAVELENGTH = 10_000


class ScalarLayerNorm(nn.Module):
    """Layer normalisation over the last axes, then one weight and one bias for all of their elements."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        # Expanded, the numbers go into the norm's own kernel: multiplying after it would pass over memory twice more.
        return F.layer_norm(x, self.shape, self.weight.expand(self.shape), self.bias.expand(self.shape))


class PostNormLayer(nn.Module):
    """Attention, then the feed-forward layer, each added to its input and normalised after.

    Its products have no biases. Dropout acts on the attention weights and inside the feed-forward layer. A gate
    multiplies what is added: where it is zero, the layer only normalises, but all of its work is done.
    """

    def __init__(self, hidden: int, heads: int, feed_forward: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, causal=causal, dropout=dropout, bias=False)
        self.attention_norm = ScalarLayerNorm(hidden)
        self.feed_forward = nn.Sequential(
            nn.Linear(hidden, feed_forward, bias=False),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(feed_forward, hidden, bias=False),
        )
        self.feed_forward_norm = ScalarLayerNorm(hidden)

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        attended = self.attention(x)
        x = self.attention_norm(x + (attended if gate is None else gate * attended))
        fed = self.feed_forward(x)
        return self.feed_forward_norm(x + (fed if gate is None else gate * fed))  # type: ignore[no-any-return]


def sinusoidal_positions(length: int, hidden: int) -> Tensor:
    """One row for each position: sines of falling frequency at the even indices, their cosines at the odd ones."""
    pairs = torch.arange(0, hidden, 2, dtype=torch.float32)
    frequencies = torch.exp(pairs * (-math.log(LONGEST_WAVELENGTH) / hidden))
    angles = torch.arange(length, dtype=torch.float32).unsqueeze(1) * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


IGNORED = -100  # a target that takes no part in a cross entropy


class WordCluster(nn.Embedding):
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
        self.clusters = nn.ModuleList(WordCluster(*span, width) for span, width in zip(spans, widths, strict=True))
        self.projection = nn.Linear(sum(widths), hidden, bias=False)
        for part in torch.split(self.projection.weight.detach(), widths, dim=1):
            nn.init.xavier_uniform_(part)

    def forward(self, words: Tensor) -> Tensor:
        vectors = torch.cat([cluster(words) for cluster in self.clusters], dim=-1)
        return self.projection(vectors)  # type: ignore[no-any-return]


class AdaptiveSoftmax(nn.Module):
    """The mean cost of the next words under a softmax of two steps: over the head's words and the tails, then a tail's.

    The batch names the positions whose target lies in each tail, and only they pass through that tail. Who makes the
    batch finds them on the host (`tail_positions`), so that the step never reads their number from the device:
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
        rows, length = words.shape
        row = torch.arange(rows, device=words.device).unsqueeze(1)
        for tail, start, where in zip(self.tails, self.cutoffs[:-1], positions, strict=True):
            flat = (row * length + where.clamp(min=0)).flatten()
            targets = words.flatten().index_select(0, flat) - start
            targets = torch.where(where.flatten() < 0, IGNORED, targets)
            logits = tail(hidden.flatten(0, 1).index_select(0, flat))
            total = total + F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)
        return total / words.numel()


def tail_positions(words: Tensor, cutoffs: Sequence[int]) -> tuple[Tensor, ...]:
    """For each tail, where its words are in every row [rows, most in a row], filled up with -1; meant for the host."""
    positions = []
    for start, end in pairwise(cutoffs):
        inside = (words >= start) & (words < end)
        first = inside.int().argsort(dim=1, descending=True, stable=True)[:, : int(inside.sum(dim=1).max())]
        positions.append(torch.where(inside.gather(1, first), first, -1))
    return tuple(positions)


def cluster_widths(hidden: int, cutoffs: Sequence[int], divisor: int) -> list[int]:
    """How wide the vectors of each cluster are."""
    return [hidden // divisor**cluster for cluster in range(len(cutoffs))]


class LmTransformer(nn.Module):
    """Word numbers [batch, length] to what the softmax predicts the next words from [batch, length, hidden]."""

    positions: Tensor

    def __init__(self, shape: LmShape) -> None:
        super().__init__()
        hidden = shape.hidden
        self.embedding = AdaptiveEmbedding(hidden, shape.cutoffs, shape.divisor)
        self.embedding_scale = math.sqrt(hidden)  # the vectors start short: this brings them to the positions' length
        self.register_buffer("positions", sinusoidal_positions(shape.sequence, hidden), persistent=False)
        self.dropout = nn.Dropout(shape.dropout)
        self.layers = nn.ModuleList(
            PostNormLayer(hidden, shape.heads, shape.feed_forward, causal=True, dropout=shape.dropout)
            for _ in range(shape.layers)
        )

    def forward(self, words: Tensor) -> Tensor:
        x = self.dropout(self.embedding(words) * self.embedding_scale + self.positions[: words.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return x  # type: ignore[no-any-return]
