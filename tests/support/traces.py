"""Traces written down by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.load.trace import OK, Trace


def trace(
    latency: list[float], *, gap: float = 0.1, status: list[int] | None = None, late: float = 0.0, **more: Any
) -> Trace:
    """Requests one gap apart, each with its latency; NaN for one without an answer."""
    count = len(latency)
    intended = np.arange(count) * gap
    done = intended + np.array(latency)
    known: dict[str, Any] = {
        "intended": intended,
        "sent": intended + late,
        "first": done,
        "done": done,
        "status": np.array(status or [OK] * count, np.int32),
        "kind": np.zeros(count, np.int32),
        "worker": np.zeros(count, np.int32),
        "samples": np.ones(count, np.int32),
    }
    return Trace(**known | more)
