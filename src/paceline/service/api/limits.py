"""How often somebody may ask: a bucket of requests each, filled at a steady rate."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_MOST_KEYS = 10_000


@dataclass(frozen=True)
class Limits:
    """What one who asks may use."""

    rate: float = 100.0  # requests per second
    burst: int = 500
    failures: float = 2.0  # per second and address, of requests with a wrong token or none
    failure_burst: int = 20
    body: int = 1 << 20  # bytes
    body_seconds: float = 30.0  # for a body to arrive


class Buckets:
    """One bucket for each who asks; those who have not asked for long are forgotten first."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when that was so

    def take(self, key: str, count: float = 1.0) -> float:
        """Take one; 0 if there was one, else the seconds until there will be. Taking none only asks."""
        now = self._clock()
        level, at = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._rate)
        enough = level >= 1.0
        self._levels[key] = (level - count if enough else level, now)
        if len(self._levels) > _MOST_KEYS:
            self._levels.popitem(last=False)
        return 0.0 if enough else (1.0 - level) / self._rate
