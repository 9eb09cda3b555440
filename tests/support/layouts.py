"""Parallel trainings that are small enough for a unit test."""

from __future__ import annotations

from typing import Any

TINY: dict[str, Any] = {
    "layers": 2,
    "hidden": 32,
    "heads": 2,
    "sequence": 16,
    "vocabulary": 128,
    "precision": "fp32",
    "global_batch": 4,
    "seed": 7,
}
