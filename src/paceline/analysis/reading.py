"""A value together with where it may lie, and what can be computed from such values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.core.record import Measurement


@dataclass(frozen=True)
class Reading:
    """A value and where it may lie; an end that is not known is None."""

    value: float
    low: float | None = None
    high: float | None = None
    is_limit: bool = False  # the value is a bound that was kept, not what was seen

    @classmethod
    def of(cls, measurement: Measurement) -> Reading:
        """A measurement's headline and its interval."""
        interval = measurement.interval
        return cls(measurement.value, *((interval.low, interval.high) if interval else (None, None)))

    def over(self, amount: float) -> Reading:
        """`amount` divided by this; what was the high end gives the low one."""
        low, high = (_divided(amount, end) if end is not None else None for end in (self.high, self.low))
        return Reading(_divided(amount, self.value), low, high)

    def times(self, factor: float) -> Reading:
        """All of it scaled."""
        low, high = (end * factor if end is not None else None for end in (self.low, self.high))
        return Reading(self.value * factor, low, high)

    def overlaps(self, other: Reading) -> bool | None:
        """Whether both may be the same value; None where an end is not known."""
        ends = (self.low, self.high, other.low, other.high)
        if any(end is None for end in ends):
            return None
        assert self.low is not None and self.high is not None and other.low is not None and other.high is not None
        return self.low <= other.high and other.low <= self.high


def _divided(amount: float, by: float) -> float:
    return amount / by if by > 0 else math.inf
