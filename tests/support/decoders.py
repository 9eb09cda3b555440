"""Weights of transformers' decoders as ours hold them."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.core.transformer import GATE_BLOCK
from paceline.models.llama import DecoderShape


def packed_qkv(shape: DecoderShape, theirs: dict[str, Tensor], prefix: str, kind: str) -> Tensor:
    """Three projections as ours holds them: each key's queries, key and value."""
    parts = [theirs[f"{prefix}.{name}_proj.{kind}"].unflatten(0, (shape.key_heads, -1)) for name in "qkv"]
    return torch.cat(parts, dim=1).flatten(0, 1)


def packed_gate(gate: Tensor, value: Tensor) -> Tensor:
    """Two projections as ours holds them: in alternating blocks of rows."""
    parts = [part.unflatten(-2, (-1, GATE_BLOCK)) for part in (gate, value)]
    return torch.stack(parts, dim=-3).flatten(-4, -2)
