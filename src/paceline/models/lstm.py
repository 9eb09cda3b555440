"""A deep LSTM that classifies sequences of random features, in the size that cluster acceptance tests commonly use."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

from paceline.models.base import ModelSpec, Workload, build_scaled, class_loss, classification_batch


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
        make_batch=partial(classification_batch, (shape.sequence, shape.inputs), shape.classes),
        loss=class_loss,
        tokens_per_sample=shape.sequence,
    )


LSTM = ModelSpec(
    name="lstm",
    family="lstm",
    task="sequence classification",
    summary=f"{FULL.layers} LSTM layers, hidden size {FULL.hidden}, over {FULL.sequence} steps of {FULL.inputs} "
    f"features; {FULL.classes} classes from the last step",
    build=partial(build_scaled, build_lstm, FULL, TINY),
    parameters=64_131_172,
    flops=65_498_456_064,
    batch_size=32,
    sample="sequence",
    settings=asdict(FULL),
)
