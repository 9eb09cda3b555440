"""The zoo: one file per family, plain single-device modules, random weights, synthetic data."""

from __future__ import annotations

from paceline.core.registry import Kind
from paceline.models.base import Batch, ModelSpec, Workload

__all__ = ["MODELS", "Batch", "ModelSpec", "Workload"]

MODELS: Kind[ModelSpec] = Kind("model", "models", ModelSpec)
