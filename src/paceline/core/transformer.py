"""The sizes of a transformer, and what follows from them alone: parameters and floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from paceline.core.layout import ModelFamily

VOCABULARY_ALIGNMENT = 128  # entries, on each tensor-parallel rank
TRAINING_FACTOR = 3  # the backward pass takes two products for each one of the forward pass


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A transformer of any size; that of BERT and GPT-2 has a feed-forward layer of four times the hidden size."""

    family: ModelFamily
    layers: int
    hidden: int
    heads: int
    sequence: int  # tokens of a sample
    vocabulary: int  # before padding
    scored: int  # tokens of a sample that the head predicts
    even_stages: bool = False  # whether pipeline stages share the layers evenly, though the last has the head as well
    fused_attention: bool = True  # one kernel, which skips masked scores and writes none; otherwise all are written
    key_heads: int = 0  # of keys and values in Llama and Mixtral
    feed_forward: int = 0  # width between the products of their feed-forward layer, or of one expert
    experts: int = 0  # of Mixtral's feed-forward layer
    experts_used: int = 0  # by each token

    @property
    def causal(self) -> bool:
        """Whether a token attends only to those before it."""
        return self.family != "bert"

    def padded_vocabulary(self, tensor: int) -> int:
        """Entries of the vocabulary once every tensor-parallel rank has a multiple of 128 of them."""
        step = VOCABULARY_ALIGNMENT * tensor
        return -(-self.vocabulary // step) * step

    @property
    def products(self) -> int:
        """Weights of one layer that each token is multiplied with: 12 h^2, or 2 h (h + k) + e (3 h f) + h E.

        In Llama and Mixtral k is the width of all keys, f that of the feed-forward layer, e the experts of each token
        (1 where there are none) and E those that the router chooses from.
        """
        if not self.feed_forward:
            return 12 * self.hidden**2
        attention = 2 * self.hidden * (self.hidden + self.hidden // self.heads * self.key_heads)
        gated = 3 * self.hidden * self.feed_forward * (self.experts_used or 1)
        return attention + gated + self.hidden * self.experts

    @property
    def layer_parameters(self) -> int:
        """Weights, biases and norms of one layer: 12 h^2 + 13 h."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def parameters(self) -> int:
        """Of the whole model on one device, with the head tied to the embedding."""
        return self.layers * self.layer_parameters + self.embedding_parameters(1) + self.head_parameters(1)

    def embedding_parameters(self, tensor: int) -> int:
        """On one rank of the first stage: its part of the tokens, and all positions (and BERT's two types and norm)."""
        extra = 0 if self.causal else 4 * self.hidden
        return self.padded_vocabulary(tensor) // tensor * self.hidden + self.sequence * self.hidden + extra

    def head_parameters(self, tensor: int) -> int:
        """On one rank of the last stage, without the tied embedding: the last norm, or BERT's transform and bias."""
        if self.causal:
            return 2 * self.hidden
        return self.hidden**2 + 3 * self.hidden + self.padded_vocabulary(tensor) // tensor

    def linear_flops(self, samples: int) -> float:
        """Training FLOPs of the products with weights in one layer: 3 x 2 a weight and token."""
        return float(TRAINING_FACTOR * samples * self.sequence * 2 * self.products)

    def attention_flops(self, samples: int) -> float:
        """Training FLOPs of attention's scores and sums in one layer: 3 x 4 s h a token, masked or not."""
        return float(TRAINING_FACTOR * samples * self.sequence * 4 * self.sequence * self.hidden)

    def layer_cost(self, samples: int, attention_cost: float = 1.0) -> float:
        """FLOPs that one layer computes, those of attention weighted: a fused kernel skips the half that is masked."""
        skipped = 2 if self.causal and self.fused_attention else 1
        return self.linear_flops(samples) + self.attention_flops(samples) / skipped * attention_cost

    def head_flops(self, samples: int, tensor: int | None = None) -> float:
        """Training FLOPs of the head: 3 x 2 h V a token that is scored, and as many of BERT's transform with V = h.

        V is the vocabulary, or with `tensor` what it is padded to for so many tensor-parallel ranks.
        """
        vocabulary = self.vocabulary if tensor is None else self.padded_vocabulary(tensor)
        transform = 0 if self.causal else self.hidden
        return float(TRAINING_FACTOR * samples * self.scored * 2 * self.hidden * (vocabulary + transform))

    def step_flops(self, samples: int) -> float:
        """Training FLOPs of a batch: 72 B s L h^2 (1 + s/(6 h) + V/(12 L h)), the one count behind an MFU.

        Megatron's formula (Narayanan et al., 2021) without recomputation, and what counting operators gives. The head
        counts only tokens that are scored. What a program computes beyond that (activations again, a padded vocabulary)
        is a cost, not work, so that the count is the same in every layout.
        """
        of_layers = self.layers * (self.linear_flops(samples) + self.attention_flops(samples))
        return of_layers + self.head_flops(samples)

    @property
    def forward_flops(self) -> int:
        """Of one sample."""
        return int(self.step_flops(1)) // TRAINING_FACTOR

    def stage_layers(self, stages: int, tensor: int) -> tuple[int, ...]:
        """How many layers each pipeline stage has: one each, and every further one goes to the stage with the least.

        The head counts as so many layers as it has their work, over the vocabulary as it is padded for so many
        tensor-parallel ranks.
        """
        head = 0.0 if self.even_stages else self.head_flops(1, tensor) / self.layer_cost(1)
        return _share_out(self.layers, stages, head)


@lru_cache
def _share_out(layers: int, stages: int, head: float) -> tuple[int, ...]:
    counts = [1] * stages
    work = [1.0] * (stages - 1) + [1.0 + head]
    for _ in range(layers - stages):
        stage = work.index(min(work))
        counts[stage] += 1
        work[stage] += 1
    return tuple(counts)


VOCABULARIES: dict[ModelFamily, int] = {"bert": 21128, "gpt2": 50257, "llama": 128256, "mixtral": 32000}
SEQUENCES: dict[ModelFamily, int] = {"bert": 512, "gpt2": 1024, "llama": 2048, "mixtral": 2048}
PLANNED: tuple[ModelFamily, ...] = ("bert", "gpt2")  # whose memory and time in a layout have formulas
GATE_BLOCK = 16  # neighbouring rows of a gate: in 16 bits as many bytes as a GPU's memory hands out at once
HEADS_PER_KEY = 4  # as in Llama 3 8B and Mixtral 8x7B, if the heads can be divided so
MASKED_PERCENT = 15
MASKED_ALIGNMENT = 16


def transformer(
    family: ModelFamily,
    layers: int,
    hidden: int = 1024,
    heads: int = 16,
    sequence: int | None = None,
    vocabulary: int | None = None,
    *,
    key_heads: int | None = None,
    feed_forward: int | None = None,
    experts: int | None = None,
    experts_used: int | None = None,
) -> Transformer:
    """A model of the family with the sizes that published comparisons of layouts use, unless given otherwise.

    BERT predicts the tokens that are masked: 15 %, rounded up to a multiple of 16; the others predict every token.
    """
    tokens = sequence or SEQUENCES[family]
    masked = -(-tokens * MASKED_PERCENT // (100 * MASKED_ALIGNMENT)) * MASKED_ALIGNMENT
    decoder: dict[str, Any] = {}
    if family in ("llama", "mixtral"):
        decoder = {
            "key_heads": key_heads or heads // (1 if heads % HEADS_PER_KEY else HEADS_PER_KEY),
            "feed_forward": feed_forward or 7 * hidden // 2,
        }
    if family == "mixtral":
        decoder |= {"experts": experts or 8, "experts_used": experts_used or 2}
    return Transformer(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        sequence=tokens,
        vocabulary=vocabulary or VOCABULARIES[family],
        scored=tokens if family != "bert" else min(tokens, masked),
        **decoder,
    )


def as_published(model: Transformer) -> Transformer:
    """As both systems train it: the head over every token, equally many layers on each stage, scores written."""
    return replace(model, scored=model.sequence, even_stages=True, fused_attention=False)
