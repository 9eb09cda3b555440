"""BERT in its two published sizes, trained to fill masked tokens of random text; full-length rows, so no padding mask.

A fixed number of positions is masked in every row, so that shapes never change. The full scale masks 80 of 512 tokens:
15 % rounded up to a multiple of 16, which keeps the head's matrix products aligned at every batch size. All of them
become the mask token, since replacing some by random tokens instead would change nothing that is measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from paceline.core.transformer import transformer
from paceline.models.base import Batch, ModelSpec, Workload, build_scaled, token_loss

if TYPE_CHECKING:
    import torch

MASK_TOKEN = 103


@dataclass(frozen=True, kw_only=True)
class BertShape:
    """The sizes that make one BERT; of `sequence` tokens a sample, `masked` are to be predicted."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 30522
    context: int = 512
    sequence: int = 512
    masked: int = 80


TINY = BertShape(layers=2, hidden=128, heads=4, vocabulary=1024, context=64, sequence=64, masked=10)


def build_bert(shape: BertShape) -> Workload:
    """A BERT of any shape with random tokens to train it on."""
    from paceline.models._modules.transformer import Bert, likeliest

    sizes = asdict(shape)
    sequence, masked = sizes.pop("sequence"), sizes.pop("masked")
    if not 0 < masked <= sequence <= shape.context:
        raise ValueError(
            f"{masked} masked of {sequence} tokens do not fit into a context of {shape.context}: "
            "choose 0 < masked <= sequence <= context"
        )
    return Workload(
        module=Bert(**sizes),
        make_batch=partial(_make_batch, shape),
        loss=token_loss,
        tokens_per_sample=sequence,
        answer=likeliest,
    )


def _make_batch(shape: BertShape, samples: int, generator: torch.Generator) -> Batch:
    import torch

    device = generator.device
    tokens = torch.empty(samples, shape.sequence, dtype=torch.int64, device=device)
    masked = torch.empty(samples, shape.masked, dtype=torch.int64, device=device)
    for row in range(samples):  # row by row: the first samples must not depend on how many follow
        tokens[row].random_(shape.vocabulary, generator=generator)
        order = torch.randperm(shape.sequence, generator=generator, device=device)
        masked[row] = order[: shape.masked].sort().values
    targets = tokens.gather(1, masked)
    types = torch.zeros_like(tokens)
    types[:, shape.sequence // 2 :] = 1
    return Batch(inputs=(tokens.scatter(1, masked, MASK_TOKEN), types, masked), targets=(targets,))


def _spec(size: str, parameters: int, shape: BertShape) -> ModelSpec:
    sizes = transformer("bert", shape.layers, shape.hidden, shape.heads, shape.sequence, shape.vocabulary)
    return ModelSpec(
        name=f"bert-{size}",
        family="bert",
        task="masked language modelling",
        summary=f"BERT {size}: {shape.layers} post-norm layers, hidden size {shape.hidden}, {shape.heads} heads; "
        f"{shape.sequence} tokens a sample, the head over {shape.masked} masked ones, no dropout",
        build=partial(build_scaled, build_bert, shape, TINY),
        parameters=parameters,
        flops=sizes.forward_flops,
        batch_size=16,
        sample="sequence",
        fp8=True,
        settings=asdict(shape),
    )


BASE = BertShape(layers=12, hidden=768, heads=12)
MODELS = (
    _spec("base", 109_514_298, BASE),
    _spec("large", 335_174_458, replace(BASE, layers=24, hidden=1024, heads=16)),
)
