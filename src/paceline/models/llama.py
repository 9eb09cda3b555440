"""Llama and Qwen in published sizes, trained to predict the next token of random text.

Both are decoders with RMSNorm, rotary positions, grouped-query attention and SwiGLU. Qwen 2.5 adds biases to queries,
keys and values; Qwen 3 norms queries and keys instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from paceline.models.base import ModelSpec, Workload, build_scaled, make_text, token_loss

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """The sizes that make one decoder; `sequence` is how many tokens a sample has."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    feed_forward: int
    vocabulary: int
    context: int
    sequence: int = 2048
    head_size: int | None = None  # unset is the hidden size divided by the heads
    theta: float = 10_000.0  # the base of the rotary angles
    epsilon: float = 1e-5
    tied: bool = False  # whether the head is the embedding
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def head_width(self) -> int:
        """Numbers of a head."""
        return self.head_size or self.hidden // self.heads

    @property
    def attention_products(self) -> int:
        """Weights of one layer's attention that each token is multiplied with."""
        return 2 * self.hidden * self.head_width * (self.heads + self.key_heads)

    @property
    def products(self) -> int:
        """Weights of one layer that each token is multiplied with."""
        return self.attention_products + 3 * self.hidden * self.feed_forward

    @property
    def forward_flops(self) -> int:
        """Of one sample: 2 for every weight and token, and 4 s a for attention, with a the width of all query heads."""
        attention = 4 * self.sequence * self.heads * self.head_width
        head = 2 * self.hidden * self.vocabulary
        return self.sequence * (self.layers * (2 * self.products + attention) + head)


TINY = DecoderShape(
    layers=2, hidden=128, heads=4, key_heads=2, feed_forward=256, vocabulary=1024, context=64, sequence=64
)


def build_llama(shape: DecoderShape) -> Workload:
    """A Llama of any shape with random tokens to train it on."""
    from paceline.models._modules.decoder import Decoder

    return decoder_workload(shape, Decoder)


def decoder_workload(shape: DecoderShape, build: Callable[[DecoderShape], nn.Module]) -> Workload:
    """A decoder with random tokens to train it on."""
    from paceline.models._modules.transformer import likeliest

    if shape.sequence > shape.context:
        raise ValueError(f"a sequence of {shape.sequence} tokens does not fit into a context of {shape.context}")
    return Workload(
        module=build(shape),
        make_batch=partial(make_text, shape.sequence, shape.vocabulary),
        loss=token_loss,
        tokens_per_sample=shape.sequence,
        answer=lambda logits: likeliest(logits[:, -1:]),  # of the next token
    )


def _spec(name: str, title: str, parameters: int, batch_size: int, shape: DecoderShape) -> ModelSpec:
    tiny = replace(TINY, tied=shape.tied, qkv_bias=shape.qkv_bias, qk_norm=shape.qk_norm)
    return ModelSpec(
        name=name,
        family=title.partition(" ")[0].lower(),
        task="language modelling",
        summary=f"{title}: {shape.layers} layers, hidden size {shape.hidden}, {shape.heads} heads over "
        f"{shape.key_heads} of keys, SwiGLU of {shape.feed_forward}; {shape.sequence} tokens a sample",
        build=partial(build_scaled, build_llama, shape, tiny),
        parameters=parameters,
        flops=shape.forward_flops,
        batch_size=batch_size,
        sample="sequence",
        fp8=True,
        settings=asdict(shape),
    )


LLAMA2_7B = DecoderShape(
    layers=32, hidden=4096, heads=32, key_heads=32, feed_forward=11008, vocabulary=32000, context=4096
)
LLAMA3_8B = replace(LLAMA2_7B, key_heads=8, feed_forward=14336, vocabulary=128256, context=8192, theta=500_000.0)
QWEN25_7B = DecoderShape(
    layers=28,
    hidden=3584,
    heads=28,
    key_heads=4,
    feed_forward=18944,
    vocabulary=152064,
    context=32768,
    theta=1_000_000.0,
    epsilon=1e-6,
    qkv_bias=True,
)
QWEN3_8B = replace(
    QWEN25_7B,
    layers=36,
    hidden=4096,
    heads=32,
    key_heads=8,
    feed_forward=12288,
    vocabulary=151936,
    context=40960,
    head_size=128,
    qkv_bias=False,
    qk_norm=True,
)
MODELS = (
    _spec("llama2-7b", "Llama 2 7B", 6_738_415_616, 1, LLAMA2_7B),
    _spec(
        "llama2-13b",
        "Llama 2 13B",
        13_015_864_320,
        1,
        replace(LLAMA2_7B, layers=40, hidden=5120, heads=40, key_heads=40, feed_forward=13824),
    ),
    _spec(
        "llama2-70b",
        "Llama 2 70B",
        68_976_648_192,
        1,
        replace(LLAMA2_7B, layers=80, hidden=8192, heads=64, key_heads=8, feed_forward=28672),
    ),
    _spec(
        "llama3.2-1b",
        "Llama 3.2 1B",
        1_235_814_400,
        4,
        replace(LLAMA3_8B, layers=16, hidden=2048, feed_forward=8192, context=131072, tied=True),
    ),
    _spec("llama3-8b", "Llama 3 8B", 8_030_261_248, 1, LLAMA3_8B),
    _spec(
        "llama3-70b",
        "Llama 3 70B",
        70_553_706_496,
        1,
        replace(LLAMA3_8B, layers=80, hidden=8192, heads=64, feed_forward=28672),
    ),
    _spec(
        "qwen2.5-0.5b",
        "Qwen 2.5 0.5B",
        494_032_768,
        4,
        replace(
            QWEN25_7B,
            layers=24,
            hidden=896,
            heads=14,
            key_heads=2,
            feed_forward=4864,
            vocabulary=151936,
            tied=True,
        ),
    ),
    _spec("qwen2.5-7b", "Qwen 2.5 7B", 7_615_616_512, 1, QWEN25_7B),
    _spec(
        "qwen3-0.6b",
        "Qwen 3 0.6B",
        596_049_920,
        4,
        replace(QWEN3_8B, layers=28, hidden=1024, heads=16, feed_forward=3072, tied=True),
    ),
    _spec("qwen3-8b", "Qwen 3 8B", 8_190_735_360, 1, QWEN3_8B),
)
