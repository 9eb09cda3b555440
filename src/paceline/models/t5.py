"""T5 in three published sizes, trained to write random text from random text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from paceline.models.base import Batch, ModelSpec, Workload, build_scaled, token_loss

if TYPE_CHECKING:
    import torch

START = 0  # the token that the decoder begins with


@dataclass(frozen=True, kw_only=True)
class T5Shape:
    """The sizes that make one T5; a sample has `source` tokens to read and `target` tokens to write."""

    layers: int  # of the encoder, and as many of the decoder
    hidden: int
    heads: int
    feed_forward: int
    head_size: int = 64
    vocabulary: int = 32128
    source: int = 512
    target: int = 128

    @property
    def forward_flops(self) -> int:
        """Of one sample: 2 for each weight and token that meet, and 4 for each pair of tokens and number of a head."""
        width, source, target = self.heads * self.head_size, self.source, self.target
        feed_forward = 2 * self.hidden * self.feed_forward
        attention = 4 * self.hidden * width
        encoder = source * (attention + feed_forward + 2 * source * width)
        # Across, queries and outputs are of the target, keys and values of the source.
        across = 2 * (source + target) * self.hidden * width + 2 * target * source * width
        decoder = target * (attention + feed_forward + 2 * target * width) + across
        return 2 * (self.layers * (encoder + decoder) + target * self.hidden * self.vocabulary)


TINY = T5Shape(layers=2, hidden=128, heads=4, head_size=32, feed_forward=256, vocabulary=1024, source=48, target=16)


def build_t5(shape: T5Shape) -> Workload:
    """A T5 of any shape with random tokens to train it on."""
    from paceline.models._modules.t5 import T5
    from paceline.models._modules.transformer import likeliest

    return Workload(
        module=T5(shape),
        make_batch=partial(_make_batch, shape),
        loss=token_loss,
        tokens_per_sample=shape.source + shape.target,
        answer=lambda logits: likeliest(logits[:, -1:]),  # of the next token
    )


def _make_batch(shape: T5Shape, samples: int, generator: torch.Generator) -> Batch:
    import torch

    tokens = torch.empty(samples, shape.source + shape.target, dtype=torch.int64, device=generator.device)
    for row in tokens:  # row by row: the first samples must not depend on how many follow
        row.random_(1, shape.vocabulary, generator=generator)
    source, target = torch.split(tokens, [shape.source, shape.target], 1)
    written = torch.cat((torch.full_like(target[:, :1], START), target[:, :-1]), 1)
    return Batch(inputs=(source.contiguous(), written), targets=(target.contiguous(),))


def _spec(size: str, parameters: int, batch_size: int, shape: T5Shape) -> ModelSpec:
    return ModelSpec(
        name=f"t5-{size}",
        family="t5",
        task="sequence to sequence",
        summary=f"T5 {size}: {shape.layers} + {shape.layers} layers, hidden size {shape.hidden}, {shape.heads} heads; "
        f"{shape.source} tokens to read and {shape.target} to write a sample, no dropout",
        build=partial(build_scaled, build_t5, shape, TINY),
        parameters=parameters,
        flops=shape.forward_flops,
        batch_size=batch_size,
        sample="sequence",
        fp8=True,
        settings=asdict(shape),
    )


SMALL = T5Shape(layers=6, hidden=512, heads=8, feed_forward=2048)
MODELS = (
    _spec("small", 60_506_624, 16, SMALL),
    _spec("base", 222_903_552, 8, replace(SMALL, layers=12, hidden=768, heads=12, feed_forward=3072)),
    _spec("large", 737_668_096, 4, replace(SMALL, layers=24, hidden=1024, heads=16, feed_forward=4096)),
)
