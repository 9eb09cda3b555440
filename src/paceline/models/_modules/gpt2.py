"""GPT-2 as a plain module: pre-norm blocks, learned positions, the head tied to the token embedding, no dropout."""

from __future__ import annotations

import math

from torch import Tensor, nn

from paceline.models._modules.transformer import Attention, FeedForward, initialise, vocabulary_logits


class Gpt2Block(nn.Module):
    """Attention, then the feed-forward layer, each on a normalised input and added to the residual stream."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, causal=True)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.feed_forward = FeedForward(hidden, gelu="tanh")

    def forward(self, x: Tensor) -> Tensor:
        x, last = self.without_last_sum(x)
        return x + last

    def without_last_sum(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream, and what is still to be added to it."""
        x = x + self.attention(self.attention_norm(x))
        return x, self.feed_forward(self.feed_forward_norm(x))


class Gpt2(nn.Module):
    """Token numbers [batch, length] to logits [batch, length, vocabulary]."""

    def __init__(self, *, layers: int, hidden: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, hidden)
        self.position_embedding = nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Gpt2Block(hidden, heads) for _ in range(layers))
        self.final_norm = nn.LayerNorm(hidden)
        self.apply(initialise)
        for block in self.blocks:
            assert isinstance(block, Gpt2Block)
            # every block adds to the residual stream twice: keep its variance independent of the depth
            for last in (block.attention.output, block.feed_forward.contract):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * layers))

    def embed(self, tokens: Tensor) -> Tensor:
        """The residual stream that enters the first block."""
        return self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]  # type: ignore[no-any-return]

    def head(self, x: Tensor) -> Tensor:
        """The logits from what leaves the last block."""
        return vocabulary_logits(self.final_norm(x), self.token_embedding.weight, training=self.training)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
