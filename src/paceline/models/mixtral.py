"""Mixtral in its two published sizes and in two that fit one GPU: Llama with a mixture of experts in every layer.

A token passes 2 of 8 experts. No loss that balances the experts is added: with random weights they are nearly balanced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.models.base import ModelSpec, Workload
from paceline.models.llama import DecoderShape, decoder_spec, decoder_workload, resized


@dataclass(frozen=True, kw_only=True)
class MoeShape(DecoderShape):
    """The sizes of a decoder with experts; `feed_forward` is the width of one."""

    experts: int = 8
    experts_used: int = 2
    renormalised: bool = True  # whether the probabilities of a token's experts add up to 1
    shared_width: int = 0  # of experts that every token passes as well, together
    dense_layers: int = 0  # the first ones have a plain feed-forward layer instead
    dense_width: int = 0

    def feed_forward_products(self, layer: int) -> int:
        if layer < self.dense_layers:
            return 3 * self.hidden * self.dense_width
        return self.hidden * (3 * (self.experts_used * self.feed_forward + self.shared_width) + self.experts)


def build_mixtral(shape: MoeShape) -> Workload:
    """A Mixtral of any shape with random tokens to train it on."""
    from paceline.models._modules.experts import MoeDecoder

    return decoder_workload(shape, MoeDecoder)


TINY = MoeShape(
    layers=2, hidden=128, heads=4, key_heads=2, feed_forward=128, vocabulary=1024, context=64, sequence=64, experts=4
)
MIXTRAL = replace(TINY, vocabulary=32000, context=32768, sequence=2048, theta=1_000_000.0, experts=8)
MIXTRAL_8X7B = resized(MIXTRAL, 32, 4096, 32, 8, 14336)


def _spec(size: str, parameters: int, batch_size: int, shape: MoeShape) -> ModelSpec:
    title = f"Mixtral {size}, {shape.experts_used} of {shape.experts} experts"
    return decoder_spec(f"mixtral-{size}", title, parameters, batch_size, shape, TINY, build_mixtral)


MODELS = (
    _spec("8x300m", 1_525_318_656, 4, resized(MIXTRAL, 16, 1024, 16, 8, 3584)),
    _spec("8x1b", 5_936_318_464, 1, resized(MIXTRAL, 16, 2048, 32, 8, 7168)),
    _spec("8x7b", 46_702_792_704, 1, MIXTRAL_8X7B),
    _spec("8x22b", 140_620_634_112, 1, resized(MIXTRAL, 56, 6144, 48, 8, 16384, context=65536)),
)
