"""A transformer that hears letters: a strided convolution over frames of audio, then post-norm layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models._modules.post_norm import PostNormLayer, ScalarLayerNorm, sinusoidal_positions

KERNEL = 7
STRIDE = 3
PADDING = 2  # so that a third of the frames remain, where they are a multiple of three


class AsrTransformer(nn.Module):
    """Frames [batch, frames, features] to logits [batch, frames / 3, symbols].

    In training a layer is dropped with the probability `layer_drop`. Its work is done all the same and multiplied by
    zero: the draw stays on the device, and every weight has a gradient in every step, as data parallelism expects.
    """

    positions: Tensor

    def __init__(
        self,
        *,
        layers: int,
        hidden: int,
        heads: int,
        feed_forward: int,
        frames: int,
        features: int,
        symbols: int,
        input_dropout: float,
        dropout: float,
        layer_drop: float,
    ) -> None:
        super().__init__()
        self.layer_drop = layer_drop
        self.input_norm = ScalarLayerNorm(frames, features)
        self.convolution = nn.Conv1d(features, 2 * hidden, KERNEL, STRIDE, PADDING)
        self.input_dropout = nn.Dropout(input_dropout)
        self.register_buffer("positions", sinusoidal_positions(frames // STRIDE, hidden), persistent=False)
        self.layers = nn.ModuleList(
            PostNormLayer(hidden, heads, feed_forward, causal=False, dropout=dropout) for _ in range(layers)
        )
        self.symbols = nn.Linear(hidden, symbols)

    def embed(self, frames: Tensor) -> Tensor:
        """What enters the first layer."""
        x = self.convolution(self.input_norm(frames).transpose(1, 2))
        x = F.glu(x.transpose(1, 2).contiguous(), dim=2)
        return self.input_dropout(x) + self.positions  # type: ignore[no-any-return]

    def forward(self, frames: Tensor) -> Tensor:
        x = self.embed(frames)
        if self.training and self.layer_drop:
            gates = (torch.rand(len(self.layers), device=x.device) >= self.layer_drop).to(x.dtype)
            for layer, gate in zip(self.layers, gates.unbind(), strict=True):
                x = layer(x, gate)
        else:
            for layer in self.layers:
                x = layer(x)
        return self.symbols(x)  # type: ignore[no-any-return]
