"""Llama and Qwen in published sizes, trained to predict the next token of random text.

Both are decoders with RMSNorm, rotary positions, grouped-query attention and SwiGLU. Qwen 2.5 adds biases to queries,
keys and values; Qwen 3 norms queries and keys instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

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
    def attention_width(self) -> int:
        """Numbers of all query heads together."""
        return self.heads * self.head_width

    def feed_forward_products(self, layer: int) -> int:
        """Weights of one layer's feed-forward layer that each token is multiplied with."""
        return 3 * self.hidden * self.feed_forward

    @property
    def forward_flops(self) -> int:
        """Of one sample: 2 for every weight and token, and 4 s a for attention, with a the width of all query heads."""
        attention = self.layers * (self.attention_products + 2 * self.sequence * self.attention_width)
        feed_forward = sum(self.feed_forward_products(layer) for layer in range(self.layers))
        return 2 * self.sequence * (attention + feed_forward + self.hidden * self.vocabulary)


S = TypeVar("S", bound=DecoderShape)
TINY = DecoderShape(
    layers=2, hidden=128, heads=4, key_heads=2, feed_forward=256, vocabulary=1024, context=64, sequence=64
)


def build_llama(shape: DecoderShape) -> Workload:
    """A Llama of any shape with random tokens to train it on."""
    from paceline.models._modules.decoder import Decoder

    return decoder_workload(shape, Decoder)


def decoder_workload(shape: S, build: Callable[[S], nn.Module]) -> Workload:
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


def decoder_spec(
    name: str, title: str, parameters: int, batch_size: int, shape: S, tiny: S, build: Callable[[S], Workload]
) -> ModelSpec:
    """A decoder of the zoo; its title begins with the family and ends with what its feed-forward layers are."""
    title, _, feed_forward = title.partition(", ")
    return ModelSpec(
        name=name,
        family=title.partition(" ")[0].lower(),
        task="language modelling",
        summary=f"{title}: {shape.layers} layers, hidden size {shape.hidden}, {shape.heads} heads over "
        f"{shape.key_heads} of keys, {feed_forward} of {shape.feed_forward}; {shape.sequence} tokens a sample",
        build=partial(build_scaled, build, shape, tiny),
        parameters=parameters,
        flops=shape.forward_flops,
        batch_size=batch_size,
        sample="sequence",
        fp8=True,
        settings=asdict(shape),
    )


def resized(shape: S, layers: int, hidden: int, heads: int, key_heads: int, feed_forward: int, **more: Any) -> S:
    """A shape of the same kind in another size."""
    sizes: Any = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "key_heads": key_heads,
        "feed_forward": feed_forward,
    }
    return replace(shape, **sizes, **more)


LLAMA2 = replace(TINY, vocabulary=32000, context=4096, sequence=2048)
LLAMA3 = replace(LLAMA2, vocabulary=128256, context=8192, theta=500_000.0)
QWEN2 = replace(LLAMA2, vocabulary=151936, context=32768, theta=1_000_000.0, epsilon=1e-6, qkv_bias=True)
QWEN3 = replace(QWEN2, context=40960, head_size=128, qkv_bias=False, qk_norm=True)
LLAMA3_8B = resized(LLAMA3, 32, 4096, 32, 8, 14336)


def _spec(name: str, title: str, parameters: int, batch_size: int, shape: DecoderShape) -> ModelSpec:
    tiny = replace(TINY, tied=shape.tied, qkv_bias=shape.qkv_bias, qk_norm=shape.qk_norm)
    return decoder_spec(name, f"{title}, SwiGLU", parameters, batch_size, shape, tiny, build_llama)


MODELS = (
    _spec("llama2-7b", "Llama 2 7B", 6_738_415_616, 1, resized(LLAMA2, 32, 4096, 32, 32, 11008)),
    _spec("llama2-13b", "Llama 2 13B", 13_015_864_320, 1, resized(LLAMA2, 40, 5120, 40, 40, 13824)),
    _spec("llama2-70b", "Llama 2 70B", 68_976_648_192, 1, resized(LLAMA2, 80, 8192, 64, 8, 28672)),
    _spec("llama3.2-1b", "Llama 3.2 1B", 1_235_814_400, 4, resized(LLAMA3, 16, 2048, 32, 8, 8192, tied=True)),
    _spec("llama3-8b", "Llama 3 8B", 8_030_261_248, 1, LLAMA3_8B),
    _spec("llama3-70b", "Llama 3 70B", 70_553_706_496, 1, resized(LLAMA3, 80, 8192, 64, 8, 28672)),
    _spec("qwen2.5-0.5b", "Qwen 2.5 0.5B", 494_032_768, 4, resized(QWEN2, 24, 896, 14, 2, 4864, tied=True)),
    _spec("qwen2.5-7b", "Qwen 2.5 7B", 7_615_616_512, 1, resized(QWEN2, 28, 3584, 28, 4, 18944, vocabulary=152064)),
    _spec("qwen3-0.6b", "Qwen 3 0.6B", 596_049_920, 4, resized(QWEN3, 28, 1024, 16, 8, 3072, tied=True)),
    _spec("qwen3-8b", "Qwen 3 8B", 8_190_735_360, 1, resized(QWEN3, 36, 4096, 32, 8, 12288)),
)
