"""Decoders of today as plain modules: RMSNorm, rotary positions, grouped-query attention, gated feed-forward layers.

The rows of fused weights are ordered so that a split over devices is a smaller layer of the same kind, which this code
runs unchanged: in `qkv` each key's queries, key and value together, in `expand` small blocks of gate and of value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.core.transformer import GATE_BLOCK
from paceline.models._modules.transformer import initialise, vocabulary_logits

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from paceline.models.llama import DecoderShape

_HAS_GROUPED_HEADS = "enable_gqa" in (F.scaled_dot_product_attention.__doc__ or "")  # torch 2.5


class RmsNorm(nn.Module):
    """x divided by its root mean square, computed in fp32; what leaves has the format of what came."""

    def __init__(self, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return scaled.to(x.dtype) * self.weight.to(x.dtype)


class Rotary(nn.Module):
    """Turns pairs of numbers of a query or key by an angle that grows with its position.

    `table` has the cosines and sines of every position; where a device has only some tokens of each sample, it holds
    their rows. The pairs are the two halves of a head, or neighbours where they are `interleaved`.
    """

    table: Tensor

    def __init__(self, size: int, context: int, theta: float, *, interleaved: bool = False) -> None:
        super().__init__()
        self.interleaved = interleaved
        frequencies = theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = torch.arange(context, dtype=torch.float32)[:, None] * frequencies
        self.register_buffer("table", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def rows(self, length: int, positions: Tensor | None) -> Tensor:
        """Cosines and sines of the first tokens, or of those at the positions: [2, length, size / 2]."""
        return self.table[:, :length] if positions is None else self.table.index_select(1, positions)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        """Of x [batch, length, ..., size], in its own format."""
        cosine, sine = rows.view(2, 1, x.shape[1], *(1,) * (x.dim() - 3), -1).unbind()
        if self.interleaved:
            first, second = x.view(*x.shape[:-1], -1, 2).unbind(-1)
        else:
            first, second = x.chunk(2, -1)
        turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
        return turned.to(x.dtype)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attention of query heads in groups, each over one key head: [batch, heads, length, size]."""
    groups = query.shape[1] // key.shape[1]
    if query.shape[2] == 1 and groups > 1:
        # The queries of a group as rows of one product: every key is read once.
        rows = query.reshape(query.shape[0], -1, groups, query.shape[3])
        mixed = F.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scale)
        return mixed.reshape(*query.shape[:3], value.shape[3])
    more: Any = {"attn_mask": mask, "is_causal": causal, "scale": scale}
    if groups > 1 and _HAS_GROUPED_HEADS and mask is None and query.is_cuda and query.element_size() == 2:
        more["enable_gqa"] = True  # these kernels read a key once for its group; that for fp32 does not
    elif groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(query, key, value, **more)


class GroupedQueryAttention(nn.Module):
    """Causal attention with fewer heads for keys and values than for queries."""

    def __init__(self, shape: DecoderShape, rotary: Rotary) -> None:
        super().__init__()
        size, heads, key_heads = shape.head_width, shape.heads, shape.key_heads
        self.head_size, self.groups = size, heads // key_heads
        self.rotary = rotary
        self.qkv = nn.Linear(shape.hidden, (heads + 2 * key_heads) * size, bias=shape.qkv_bias)
        self.query_norm = RmsNorm(size, shape.epsilon) if shape.qk_norm else None
        self.key_norm = RmsNorm(size, shape.epsilon) if shape.qk_norm else None
        self.output = nn.Linear(heads * size, shape.hidden, bias=False)
        # What a mesh replaces where each rank has only a part of the tokens.
        self.attend: Callable[..., Tensor] = attend

    def forward(self, x: Tensor, cache: LayerCache | None = None, positions: Tensor | None = None) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(x).view(batch, length, -1, self.groups + 2, self.head_size)
        query, key, value = parts.split((self.groups, 1, 1), 3)
        query, key, value = query.flatten(2, 3), key.flatten(2, 3), value.flatten(2, 3)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        rows = self.rotary.rows(length, positions)
        query, key = self.rotary(query, rows).transpose(1, 2), self.rotary(key, rows).transpose(1, 2)
        mixed = attend_cached(self.attend, query, key, value.transpose(1, 2), cache, positions)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def attend_cached(
    attend: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: LayerCache | None,
    positions: Tensor | None,
) -> Tensor:
    """Causal attention over the given tokens, or with positions over all that the cache then holds."""
    if cache is None:
        return attend(query, key, value, causal=True)
    if positions is None:  # the first tokens: there is nothing before them
        cache.update(key, value, torch.arange(key.shape[2], device=key.device))
        return attend(query, key, value, causal=True)
    keys, values = cache.update(key, value, positions)
    return attend(query, keys.to(query.dtype), values.to(query.dtype), mask=cache.mask(positions))


class GatedFeedForward(nn.Module):
    """SwiGLU: the SiLU of one product times another, and a product back to the hidden size."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.expand = nn.Linear(hidden, 2 * width, bias=False)
        self.contract = nn.Linear(width, hidden, bias=False)
        self.block = math.gcd(width, GATE_BLOCK)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(gated(self.expand(x), self.block))  # type: ignore[no-any-return]


def gated(x: Tensor, block: int) -> Tensor:
    """The SiLU of gates times values, which alternate in blocks along the last axis."""
    gate, value = x.view(*x.shape[:-1], -1, 2, block).unbind(-2)
    return (F.silu(gate) * value).flatten(-2)


class DecoderBlock(nn.Module):
    """Attention, then the feed-forward layer, each on a normalised input and added to the residual stream."""

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(hidden, epsilon)
        self.attention = attention
        self.feed_forward_norm = RmsNorm(hidden, epsilon)
        self.feed_forward = feed_forward

    def forward(self, x: Tensor, cache: LayerCache | None = None, positions: Tensor | None = None) -> Tensor:
        x, last = self.without_last_sum(x, cache, positions)
        return x + last

    def without_last_sum(
        self, x: Tensor, cache: LayerCache | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The residual stream, and what is still to be added to it."""
        normed = self.attention_norm(x)
        x = x + (self.attention(normed) if cache is None else self.attention(normed, cache, positions))
        return x, self.feed_forward(self.feed_forward_norm(x))


class Decoder(nn.Module):
    """Token numbers [batch, length] to logits [batch, length, vocabulary].

    With a cache, the tokens are the first ones of each sample, or stand at the `positions` [length]; `last_only` gives
    the logits of the last token alone: [batch, 1, vocabulary].
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.tied = shape.tied
        self.token_embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(self._blocks())
        self.final_norm = RmsNorm(shape.hidden, shape.epsilon)
        self.lm_head = None if shape.tied else nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self.apply(initialise)
        for block in self.blocks:  # each adds to the residual stream twice: keep its variance independent of the depth
            for name, weight in block.named_parameters():
                if name.endswith(("output.weight", "contract.weight", "contract_weights")):
                    nn.init.normal_(weight, std=0.02 / math.sqrt(2 * shape.layers))

    def _blocks(self) -> list[nn.Module]:
        shape = self.shape
        rotary = Rotary(shape.head_width, shape.context, shape.theta)
        return [
            DecoderBlock(GroupedQueryAttention(shape, rotary), self.feed_forward(layer), shape.hidden, shape.epsilon)
            for layer in range(shape.layers)
        ]

    def feed_forward(self, layer: int) -> nn.Module:
        """That of a layer."""
        return GatedFeedForward(self.shape.hidden, self.shape.feed_forward)

    def make_cache(self, batch: int, max_length: int, dtype: torch.dtype | None = None) -> KVCache:
        """An empty one for so many samples of so many tokens, on the device and in the format of the weights."""
        weight = self.token_embedding.weight
        shape = self.shape
        return KVCache(
            layers=shape.layers,
            batch=batch,
            max_length=max_length,
            heads=shape.key_heads,
            head_size=shape.head_width,
            dtype=dtype or weight.dtype,
            device=weight.device,
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """The residual stream that enters the first block."""
        return self.token_embedding(tokens)  # type: ignore[no-any-return]

    def head(self, x: Tensor) -> Tensor:
        """The logits from what leaves the last block."""
        output = self.token_embedding if self.lm_head is None else self.lm_head
        return vocabulary_logits(self.final_norm(x), output.weight, training=self.training)

    def forward(
        self,
        tokens: Tensor,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
        *,
        last_only: bool = False,
    ) -> Tensor:
        x = self.embed(tokens)
        for layer, block in enumerate(self.blocks):
            x = block(x) if cache is None else block(x, cache.layers[layer], positions)
        return self.head(x[:, -1:] if last_only else x)


class LayerCache:
    """Keys and values of the tokens so far in one layer: [batch, heads, max_length, head size], with the heads of keys.

    Nothing depends on how many tokens there are, so that a step can be compiled and captured as a CUDA graph: new keys
    are written at positions that are a tensor on the device, and attention masks what lies after them.
    """

    def __init__(self, keys: Tensor, values: Tensor, places: Tensor) -> None:
        self.keys, self.values, self._places = keys, values, places

    def update(self, key: Tensor, value: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values [batch, heads, length, size] at their positions [length]; returns whole buffers."""
        self.keys.index_copy_(2, positions, key.to(self.keys.dtype))
        self.values.index_copy_(2, positions, value.to(self.values.dtype))
        return self.keys, self.values

    def mask(self, positions: Tensor) -> Tensor:
        """Which places tokens at these positions see: [length, max_length], true up to their own."""
        return self._places <= positions[:, None]


class KVCache:
    """The caches of all layers."""

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        max_length: int,
        heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
        value_size: int | None = None,  # where values are not as wide as keys
    ) -> None:
        import torch

        def buffer(width: int) -> Tensor:
            return torch.zeros((batch, heads, max_length, width), dtype=dtype, device=device)

        self.max_length = max_length
        places = torch.arange(max_length, device=device)
        value_size = head_size if value_size is None else value_size
        self.layers = [LayerCache(buffer(head_size), buffer(value_size), places) for _ in range(layers)]

    @property
    def nbytes(self) -> int:
        """Memory of all layers."""
        tensors = (tensor for layer in self.layers for tensor in (layer.keys, layer.values))
        return sum(one.numel() * one.element_size() for one in tensors)
