"""What the two task transformers share: post-norm layers without biases, scalar norms, and sinusoidal positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


class Attention(nn.Module):
    """Multi-head self-attention with one product for queries, keys and values, ordered head by head; no biases."""

    def __init__(self, hidden: int, heads: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(f"hidden size {hidden} is not a multiple of {heads} heads")
        self.head_size = hidden // heads
        self.causal = causal
        self.dropout = dropout
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        by_head = self.qkv(x).view(batch, length, -1, 3, self.head_size)
        query, key, value = (part.transpose(1, 2) for part in by_head.unbind(3))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal, dropout_p=dropout)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two linear layers without biases, with a ReLU and dropout in between."""

    def __init__(self, hidden: int, inner: int, *, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Linear(hidden, inner, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.contract = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.dropout(F.relu(self.expand(x))))  # type: ignore[no-any-return]


class PostNormLayer(nn.Module):
    """Attention, then the feed-forward layer, each added to its input and normalised after.

    Dropout acts on the attention weights and inside the feed-forward layer. A gate multiplies what is added: where it
    is zero, the layer only normalises, but all of its work is done.
    """

    def __init__(self, hidden: int, heads: int, feed_forward: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, causal=causal, dropout=dropout)
        self.attention_norm = ScalarLayerNorm(hidden)
        self.feed_forward = FeedForward(hidden, feed_forward, dropout=dropout)
        self.feed_forward_norm = ScalarLayerNorm(hidden)

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        attended = self.attention(x)
        x = self.attention_norm(x + (attended if gate is None else gate * attended))
        fed = self.feed_forward(x)
        return self.feed_forward_norm(x + (fed if gate is None else gate * fed))  # type: ignore[no-any-return]


def sinusoidal_positions(length: int, hidden: int) -> Tensor:
    """One row for each position: sines of falling frequency at the even places, their cosines at the odd ones."""
    pairs = torch.arange(0, hidden, 2, dtype=torch.float32)
    frequencies = torch.exp(pairs * (-math.log(LONGEST_WAVELENGTH) / hidden))
    angles = torch.arange(length, dtype=torch.float32).unsqueeze(1) * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)
