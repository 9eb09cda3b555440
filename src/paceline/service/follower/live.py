"""What a case shows while it is measured, for people who watch: its latest figures, once a second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.text import clean
from paceline.service.engines.base import LiveFigure

EVERY = 1.0  # seconds
_UNITS = {"rate": "requests/s", "p50": "s", "p99": "s", "failures": "requests/s"}  # of a load
_RECENT = 100  # samples that tell what is going on now
_LONGEST = 100  # characters of a name or a unit
_MOST = 8  # figures


def live_figures(progress: Mapping[str, Any], samples: Sequence[float]) -> dict[str, LiveFigure]:
    """The figures of a report on a case in flight; what is not a finite number is left out."""
    found: dict[str, tuple[Any, str]] = {}
    metric, work = progress.get("metric"), progress.get("work")
    if metric and samples:
        recent = sorted(samples[-_RECENT:])
        middle = recent[len(recent) // 2]
        if work and middle > 0:
            found["rate"] = (work / middle, progress.get("rate_unit", ""))
        found[metric] = (middle, progress.get("unit", ""))
    given = progress.get("load")
    if isinstance(given, Mapping):
        found |= {str(name): (value, _UNITS.get(name, "")) for name, value in given.items()}
    return {
        clean(name)[:_LONGEST]: LiveFigure(value=value, unit=clean(str(unit))[:_LONGEST])
        for name, (value, unit) in list(found.items())[:_MOST]
        if isinstance(value, int | float) and math.isfinite(value)
    }
