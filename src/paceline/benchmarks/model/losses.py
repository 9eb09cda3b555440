"""What the losses of a training say about its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.core.record import Doubt


def loss_doubts(trace: Sequence[float]) -> list[Doubt]:
    """The doubt about a step whose result is not a number."""
    if all(math.isfinite(loss) for loss in trace):
        return []
    return [
        Doubt(
            kind="diverged",
            message=f"the loss of the first steps or of the last one is not finite: {list(trace)}",
            remedy="use bf16 or fp32; a step that computes nothing sensible may take another time",
        )
    ]


def scale_doubts(before: float, after: float) -> list[Doubt]:
    """The doubt about steps that were skipped because the scaled gradients of fp16 overflowed."""
    if after >= before:
        return []
    return [
        Doubt(
            kind="skipped-steps",
            message=f"the loss scale fell from {before:g} to {after:g}: gradients overflowed and optimizer steps were "
            "skipped, which is cheaper than taking them",
            remedy="use bf16, or allow more warm-up so that the scale settles",
        )
    ]
