"""T5 as a plain module: an encoder and a decoder whose attention is biased by the distance of two tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models._modules.decoder import RmsNorm
from paceline.models._modules.transformer import initialise, vocabulary_logits

if TYPE_CHECKING:
    from paceline.models.t5 import T5Shape

EPSILON = 1e-6
BUCKETS, FARTHEST = 32, 128  # distances share buckets that grow with them; all beyond the farthest have one


def buckets(length: int, *, causal: bool) -> Tensor:
    """The bucket of every pair of tokens: [length, length], with the token that attends first."""
    places = torch.arange(length)
    distance = places[:, None] - places  # positive to earlier tokens
    count = BUCKETS if causal else BUCKETS // 2
    far = distance.clamp(min=0) if causal else distance.abs()
    exact = count // 2
    grown = torch.log(far.clamp(min=1).float() / exact) / math.log(FARTHEST / exact) * (count - exact)
    bucket = torch.where(far < exact, far, (exact + grown.long()).clamp(max=count - 1))
    return bucket if causal else bucket + count * (distance < 0)


class Bias(nn.Module):
    """What is added to the scores of one stack's attention, in all of its layers."""

    table: Tensor

    def __init__(self, heads: int, length: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.embedding = nn.Embedding(BUCKETS, heads)
        self.register_buffer("table", buckets(length, causal=causal).to(self.embedding.weight.device), persistent=False)

    def forward(self, length: int) -> Tensor:
        """For each head, every pair of tokens: [1, heads, length, length]."""
        bias: Tensor = self.embedding(self.table[:length, :length]).permute(2, 0, 1)
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=bias.device).triu(1)
            bias = bias.masked_fill(later, -torch.inf)
        return bias.unsqueeze(0)


class SelfAttention(nn.Module):
    """Attention without scaling; the rows of the fused weight are ordered head by head."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.head_size = shape.head_size
        self.qkv = nn.Linear(shape.hidden, 3 * shape.heads * shape.head_size, bias=False)
        self.output = nn.Linear(shape.heads * shape.head_size, shape.hidden, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (-1, 3, self.head_size)).transpose(1, 2)
        query, key, value = parts.unbind(3)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype), scale=1.0)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class CrossAttention(nn.Module):
    """Attention of the decoder's tokens over what the encoder made, without scaling or bias."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        width = shape.heads * shape.head_size
        self.head_size = shape.head_size
        self.query = nn.Linear(shape.hidden, width, bias=False)
        self.key_value = nn.Linear(shape.hidden, 2 * width, bias=False)
        self.output = nn.Linear(width, shape.hidden, bias=False)

    def forward(self, x: Tensor, encoded: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        key, value = self.key_value(encoded).unflatten(-1, (-1, 2, self.head_size)).transpose(1, 2).unbind(3)
        mixed = F.scaled_dot_product_attention(query, key, value, scale=1.0)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class T5Block(nn.Module):
    """Attention, in the decoder attention over the encoder, and a feed-forward layer, each on a normalised input."""

    def __init__(self, shape: T5Shape, *, crosses: bool) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(shape.hidden, EPSILON)
        self.attention = SelfAttention(shape)
        self.cross_norm = RmsNorm(shape.hidden, EPSILON) if crosses else None
        self.cross = CrossAttention(shape) if crosses else None
        self.feed_forward_norm = RmsNorm(shape.hidden, EPSILON)
        self.expand = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.contract = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), bias)
        if self.cross is not None and self.cross_norm is not None:
            x = x + self.cross(self.cross_norm(x), encoded)
        return x + self.contract(F.relu(self.expand(self.feed_forward_norm(x))))  # type: ignore[no-any-return]


class T5(nn.Module):
    """Token numbers [batch, source] and [batch, target] to logits [batch, target, vocabulary]."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.scale = shape.hidden**-0.5
        self.token_embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.encoder_bias = Bias(shape.heads, shape.source, causal=False)
        self.encoder = nn.ModuleList(T5Block(shape, crosses=False) for _ in range(shape.layers))
        self.encoder_norm = RmsNorm(shape.hidden, EPSILON)
        self.decoder_bias = Bias(shape.heads, shape.target, causal=True)
        self.decoder = nn.ModuleList(T5Block(shape, crosses=True) for _ in range(shape.layers))
        self.decoder_norm = RmsNorm(shape.hidden, EPSILON)
        self.apply(initialise)
        nn.init.normal_(self.token_embedding.weight)  # the head divides by its size

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x, bias = self.token_embedding(source), self.encoder_bias(source.shape[1])
        for block in self.encoder:
            x = block(x, bias)
        encoded = self.encoder_norm(x)
        x, bias = self.token_embedding(target), self.decoder_bias(target.shape[1])
        for block in self.decoder:
            x = block(x, bias, encoded)
        return vocabulary_logits(self.decoder_norm(x) * self.scale, self.token_embedding.weight, training=self.training)
