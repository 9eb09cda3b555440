"""A causal transformer over a large vocabulary, without its softmax, which is the loss's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from paceline.models._modules.adaptive import AdaptiveEmbedding
from paceline.models._modules.post_norm import PostNormLayer, sinusoidal_positions


class LmTransformer(nn.Module):
    """Word numbers [batch, length] to what the softmax predicts the next words from [batch, length, hidden]."""

    positions: Tensor

    def __init__(
        self,
        *,
        layers: int,
        hidden: int,
        heads: int,
        feed_forward: int,
        cutoffs: Sequence[int],
        divisor: int,
        sequence: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = AdaptiveEmbedding(hidden, cutoffs, divisor)
        self.embedding_scale = math.sqrt(hidden)  # the vectors start short: this brings them to the positions' length
        self.register_buffer("positions", sinusoidal_positions(sequence, hidden), persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            PostNormLayer(hidden, heads, feed_forward, causal=True, dropout=dropout) for _ in range(layers)
        )

    def embed(self, words: Tensor) -> Tensor:
        """What enters the first layer."""
        x = self.embedding(words) * self.embedding_scale + self.positions[: words.shape[1]]
        return self.dropout(x)  # type: ignore[no-any-return]

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return x
