"""Decoders: weights of transformers' as ours hold them, and texts read through a cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.core.transformer import GATE_BLOCK
from paceline.models._modules.decoder import Decoder
from paceline.models.llama import DecoderShape


def packed_qkv(shape: DecoderShape, theirs: dict[str, Tensor], prefix: str, kind: str) -> Tensor:
    """Three projections as ours holds them: each key's queries, key and value."""
    parts = [theirs[f"{prefix}.{name}_proj.{kind}"].unflatten(0, (shape.key_heads, -1)) for name in "qkv"]
    return torch.cat(parts, dim=1).flatten(0, 1)


def packed_gate(gate: Tensor, value: Tensor) -> Tensor:
    """Two projections as ours holds them: in alternating blocks of rows."""
    parts = [part.unflatten(-2, (-1, GATE_BLOCK)) for part in (gate, value)]
    return torch.stack(parts, dim=-3).flatten(-4, -2)


def assert_cached_like_whole(model: nn.Module) -> None:
    """A prompt, one token, and several at once give the logits of the whole text."""
    assert isinstance(model, Decoder)
    tokens = torch.randint(211, (2, 20))
    with torch.inference_mode():
        whole = model(tokens)
        cache = model.make_cache(batch=2, max_length=24)
        first = model(tokens[:, :12], cache)
        one = model(tokens[:, 12:13], cache, torch.tensor([12]))
        several = model(tokens[:, 13:], cache, torch.arange(13, 20), last_only=True)
    torch.testing.assert_close(torch.cat((first, one), 1), whole[:, :13], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(several, whole[:, -1:], rtol=1e-4, atol=1e-4)
