"""GPT-2 in its four published sizes, trained to predict the next token of random text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial

from paceline.core.transformer import transformer
from paceline.models.base import ModelSpec, Workload, build_scaled, make_text, token_loss


@dataclass(frozen=True, kw_only=True)
class Gpt2Shape:
    """The sizes that make one GPT-2; `sequence` is how many tokens a sample has."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50257
    context: int = 1024
    sequence: int = 1024


TINY = Gpt2Shape(layers=2, hidden=128, heads=4, vocabulary=1024, context=64, sequence=64)


def build_gpt2(shape: Gpt2Shape) -> Workload:
    """A GPT-2 of any shape with random tokens to train it on."""
    from paceline.models._modules.transformer import Gpt2, likeliest

    sizes = asdict(shape)
    sequence = sizes.pop("sequence")
    if sequence > shape.context:
        raise ValueError(f"a sequence of {sequence} tokens does not fit into a context of {shape.context}")
    return Workload(
        module=Gpt2(**sizes),
        make_batch=partial(make_text, sequence, shape.vocabulary),
        loss=token_loss,
        tokens_per_sample=sequence,
        answer=lambda logits: likeliest(logits[:, -1:]),  # of the next token
    )


def _spec(size: str, parameters: int, batch_size: int, shape: Gpt2Shape) -> ModelSpec:
    sizes = transformer("gpt2", shape.layers, shape.hidden, shape.heads, shape.sequence, shape.vocabulary)
    return ModelSpec(
        name=f"gpt2-{size}",
        family="gpt2",
        task="language modelling",
        summary=f"GPT-2 {size}: {shape.layers} pre-norm layers, hidden size {shape.hidden}, {shape.heads} heads; "
        f"{shape.sequence} tokens a sample, no dropout",
        build=partial(build_scaled, build_gpt2, shape, TINY),
        parameters=parameters,
        flops=sizes.forward_flops,
        batch_size=batch_size,
        sample="sequence",
        fp8=True,
        settings=asdict(shape),
    )


SMALL = Gpt2Shape(layers=12, hidden=768, heads=12)
MODELS = (
    _spec("small", 124_439_808, 8, SMALL),
    _spec("medium", 354_823_168, 8, replace(SMALL, layers=24, hidden=1024, heads=16)),
    _spec("large", 774_030_080, 4, replace(SMALL, layers=36, hidden=1280, heads=20)),
    _spec("xl", 1_557_611_200, 4, replace(SMALL, layers=48, hidden=1600, heads=25)),
)
