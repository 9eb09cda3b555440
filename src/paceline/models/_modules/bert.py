"""BERT for masked language modelling as a plain module: post-norm layers, a tied decoder with a bias, no dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models._modules.transformer import Attention, FeedForward, initialise, vocabulary_logits

EPSILON = 1e-12


class BertBlock(nn.Module):
    """Attention, then the feed-forward layer, each added to its input and normalised after."""

    last_norm = "feed_forward_norm"  # what this layer ends with

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, causal=False)
        self.attention_norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.feed_forward = FeedForward(hidden, gelu="none")
        self.feed_forward_norm = nn.LayerNorm(hidden, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        # Autocast makes norms yield fp32: what goes on to the next layer stays in the format that it came in.
        given = x.dtype
        x = self.attention_norm(x + self.attention(x)).to(given)
        return self.feed_forward_norm(x + self.feed_forward(x)).to(given)  # type: ignore[no-any-return]


class Bert(nn.Module):
    """Token numbers and token types [batch, length], masked positions [batch, masked] to logits there.

    Only the masked positions enter the loss, so only they pass the head: [batch, masked, vocabulary]. The loss is that
    of a head over all positions with the others ignored, for a seventh of the head's work.
    """

    def __init__(self, *, layers: int, hidden: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, hidden)
        self.position_embedding = nn.Embedding(context, hidden)
        self.type_embedding = nn.Embedding(2, hidden)
        self.embedding_norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.blocks = nn.ModuleList(BertBlock(hidden, heads) for _ in range(layers))
        self.head_transform = nn.Linear(hidden, hidden)
        self.head_norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.head_bias = nn.Parameter(torch.zeros(vocabulary))
        self.apply(initialise)

    def embed(self, tokens: Tensor, types: Tensor) -> Tensor:
        """What enters the first block."""
        positions = self.position_embedding.weight[: tokens.shape[1]]
        return self.embedding_norm(self.token_embedding(tokens) + self.type_embedding(types) + positions)  # type: ignore[no-any-return]

    def head(self, x: Tensor, masked: Tensor) -> Tensor:
        """The logits at the masked positions from what leaves the last block."""
        x = x.gather(1, masked.unsqueeze(2).expand(-1, -1, x.shape[2]))
        x = self.head_norm(F.gelu(self.head_transform(x)))
        return vocabulary_logits(x, self.token_embedding.weight, self.head_bias, training=self.training)

    def forward(self, tokens: Tensor, types: Tensor, masked: Tensor) -> Tensor:
        x = self.embed(tokens, types)
        for block in self.blocks:
            x = block(x)
        return self.head(x, masked)
