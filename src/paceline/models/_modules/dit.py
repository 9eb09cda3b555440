"""The diffusion transformer as a plain module: noisy latents, a time and a class to the noise that is in them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models._modules.transformer import Attention, FeedForward, initialise
from paceline.models.dit import FREQUENCIES

if TYPE_CHECKING:
    from paceline.models.dit import DitShape

EPSILON = 1e-6
SLOWEST = 10_000.0


def waves(places: Tensor, size: int) -> Tensor:
    """Cosines and sines of places at frequencies that fall from 1: [places, size]."""
    frequencies = SLOWEST ** (-torch.arange(size // 2, device=places.device, dtype=torch.float32) / (size // 2))
    angles = places.float()[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), -1)


def grid_positions(side: int, hidden: int) -> Tensor:
    """For each patch the sines and cosines of its column, then of its row: [1, side * side, hidden]."""
    cosine, sine = waves(torch.arange(side), hidden // 2).chunk(2, -1)
    one = torch.cat((sine, cosine), -1)
    columns, rows = one.repeat(side, 1), one.repeat_interleave(side, 0)
    return torch.cat((columns, rows), -1).unsqueeze(0)


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x normalised, then stretched and shifted as the condition of its sample says."""
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON) * (1 + scale[:, None]) + shift[:, None]


class DitBlock(nn.Module):
    """Attention and a feed-forward layer, each stretched, shifted and gated by the condition."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, causal=False)
        self.feed_forward = FeedForward(hidden, gelu="tanh")
        self.modulation = nn.Linear(hidden, 6 * hidden)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(F.silu(condition)).chunk(6, -1)
        x = x + gate[:, None] * self.attention(modulated(x, shift, scale))
        return x + gate2[:, None] * self.feed_forward(modulated(x, shift2, scale2))  # type: ignore[no-any-return]


class Dit(nn.Module):
    """Latents [batch, channels, side, side], times [batch] and classes [batch] to noise and variance of that shape.

    The modulation that the paper starts at zero is random here: multiplying by zero would be faster than by numbers.
    """

    positions: Tensor

    def __init__(self, shape: DitShape) -> None:
        super().__init__()
        self.patch, self.channels = shape.patch, shape.channels
        pixels = shape.channels * shape.patch**2
        self.patch_embedding = nn.Linear(pixels, shape.hidden)
        # Fixed, so they are no parameters; the published count has them.
        self.register_buffer("positions", grid_positions(shape.side // shape.patch, shape.hidden), persistent=False)
        self.time_in = nn.Linear(FREQUENCIES, shape.hidden)
        self.time_out = nn.Linear(shape.hidden, shape.hidden)
        self.class_embedding = nn.Embedding(shape.classes + 1, shape.hidden)  # and one for no class
        self.blocks = nn.ModuleList(DitBlock(shape.hidden, shape.heads) for _ in range(shape.layers))
        self.final_modulation = nn.Linear(shape.hidden, 2 * shape.hidden)
        self.final = nn.Linear(shape.hidden, 2 * pixels)
        self.apply(initialise)
        for block in self.blocks:
            assert isinstance(block, DitBlock)
            nn.init.normal_(block.modulation.weight, std=1 / math.sqrt(shape.hidden))

    def forward(self, latents: Tensor, times: Tensor, classes: Tensor) -> Tensor:
        patch, (height, width) = self.patch, latents.shape[2:]
        rows, columns = height // patch, width // patch
        split = latents.reshape(latents.shape[0], -1, rows, patch, columns, patch)
        x = self.patch_embedding(split.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)) + self.positions
        time = waves(times, FREQUENCIES).to(latents.dtype)
        condition = self.time_out(F.silu(self.time_in(time))) + self.class_embedding(classes)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.final_modulation(F.silu(condition)).chunk(2, -1)
        x = self.final(modulated(x, shift, scale)).unflatten(2, (patch, patch, -1)).unflatten(1, (rows, columns))
        return x.permute(0, 5, 1, 3, 2, 4).reshape(latents.shape[0], -1, height, width)  # type: ignore[no-any-return]
