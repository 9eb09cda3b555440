"""Parameters that every benchmark of a whole model takes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paceline.core.parameters import MeasuringParameters, OnOff
from paceline.models.base import Scale
from paceline.models.user import MODEL_NAME

PrecisionName = Literal["fp32", "tf32", "fp16", "bf16", "fp8_hybrid", "fp8_e4m3"]


Switch = Annotated[Literal["auto", "on", "off"], OnOff]


class ModelParameters(MeasuringParameters):
    """A model, how it is computed, and how much at once."""

    model: Annotated[str, MODEL_NAME]
    """A model of the zoo (paceline list models), generated/FAMILY:knob=value, or your own as package.module:factory"""
    precision: PrecisionName = "fp32"
    """fp32 (true), tf32, fp16 or bf16 (mixed), fp8_hybrid, fp8_e4m3"""
    batch_size: Literal["auto"] | Annotated[int, Field(ge=1)] | None = None
    """Samples per step and rank; auto finds the largest that fits; unset takes the model's own"""
    scale: Scale = "full"
    """full, or tiny: the same kind of model, small enough for a slow machine"""
    compile: Switch = "auto"
    """Compile with torch.compile; auto does on a GPU where it can"""
    channels_last: Switch = "auto"
    """Memory layout of images; auto takes it for models that gain from it"""
    autotune: Switch = "auto"
    """Let cuDNN try its algorithms for every convolution, which can take a minute; auto does when compiling"""
    graph: bool = False
    """Replay each step as one CUDA graph"""
    deterministic: bool = False
    """Compute twice from the same seed; a difference is reported as silent corruption"""
