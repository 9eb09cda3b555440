"""A deep LSTM that classifies sequences of random features, in the size that cluster acceptance tests commonly use."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from paceline.models.base import Batch, ModelSpec, Scale, Workload

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LstmShape:
    """The sizes that make one LSTM classifier; `sequence` is how many steps a sample has."""

    layers: int
    inputs: int
    hidden: int
    sequence: int
    classes: int = 100


FULL = LstmShape(layers=8, inputs=256, hidden=1024, sequence=512)
TINY = LstmShape(layers=2, inputs=32, hidden=64, sequence=32)


def build_lstm(shape: LstmShape) -> Workload:
    """An LSTM classifier of any shape with random features to train it on."""
    from paceline.models._modules.generated import LstmClassifier

    return Workload(
        module=LstmClassifier(layers=shape.layers, inputs=shape.inputs, hidden=shape.hidden, classes=shape.classes),
        make_batch=partial(_make_batch, shape),
        loss=_class_loss,
        tokens_per_sample=shape.sequence,
    )


def _make_batch(shape: LstmShape, samples: int, generator: torch.Generator) -> Batch:
    import torch

    features = torch.empty(samples, shape.sequence, shape.inputs, device=generator.device)
    labels = torch.empty(samples, dtype=torch.int64, device=generator.device)
    for row in range(samples):  # row by row: the first samples must not depend on how many follow
        features[row].normal_(generator=generator)
        labels[row].random_(shape.classes, generator=generator)
    return Batch(inputs=(features,), targets=(labels,))


def _class_loss(logits: Tensor, batch: Batch) -> Tensor:
    import torch.nn.functional as F

    return F.cross_entropy(logits, batch.targets[0])


def _build(scale: Scale) -> Workload:
    return build_lstm(FULL if scale == "full" else TINY)


LSTM = ModelSpec(
    name="lstm",
    family="lstm",
    task="sequence classification",
    summary=f"{FULL.layers} LSTM layers, hidden size {FULL.hidden}, over {FULL.sequence} steps of {FULL.inputs} "
    f"features; {FULL.classes} classes from the last step",
    build=_build,
    parameters=64_131_172,
    flops=65_498_456_064,
    batch_size=32,
    sample="sequence",
    settings=asdict(FULL),
)
