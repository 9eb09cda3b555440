"""A model on disk in the format that an engine reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.load.tensors import TensorSpec

# eager: nothing on disk, the model is built from its name where it is served
Format = Literal["eager", "torchscript", "torch-export", "onnx", "openvino"]


@dataclass(frozen=True)
class Artifact:
    """An exported model, checked against the eager module when it was made."""

    model: str  # as the user named it
    scale: str  # full or tiny
    format: Format
    precision: str
    seed: int  # of the weights
    path: Path | None  # None for eager
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    digest: str = ""  # of the content
    device: str = "cpu"  # that torch formats were traced on, and that they can only run on
    deviation: float | None = None  # largest difference from the eager output, relative to its largest value
