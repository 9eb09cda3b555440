"""What users are promised: a bound on latency that so many percent of requests keep, and how many may fail."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from paceline.core.parameters import Parameters
from paceline.core.quantity import Duration, Fraction, show_duration
from paceline.load.trace import Trace

_SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}


class Slo(Parameters):
    """Bounds on latency from the intended time of a request; several are kept together."""

    p50: Duration | None = Field(default=None, gt=0)
    """Half of the requests are answered within this time"""
    p90: Duration | None = Field(default=None, gt=0)
    """90 % of the requests are answered within this time"""
    p95: Duration | None = Field(default=None, gt=0)
    """95 % of the requests are answered within this time"""
    p99: Duration | None = Field(default=None, gt=0)
    """99 % of the requests are answered within this time"""
    p99_9: Duration | None = Field(default=None, gt=0)
    """99.9 % of the requests are answered within this time"""
    first_token: Duration | None = Field(default=None, gt=0)
    """Language models: the first token comes within this time, for as many requests as the highest percentile says"""
    between_tokens: Duration | None = Field(default=None, gt=0)
    """Language models: so long between tokens on average, for as many requests as the highest percentile says"""
    errors: Fraction = Field(default=0.01, ge=0, lt=1)
    """Part of the requests that may fail or be shed"""

    @model_validator(mode="after")
    def _says_something(self) -> Slo:
        bounds = self.bounds
        if not bounds and not self.is_about_tokens:
            raise ValueError("an slo needs a bound, like {p99: 100ms}")
        ordered = [bound.limit for bound in bounds]
        if ordered != sorted(ordered):
            raise ValueError("a higher percentile cannot have a shorter bound than a lower one")
        return self

    @property
    def bounds(self) -> list[Bound]:
        """The bounds on the whole latency, the lowest percentile first."""
        given = [(name, getattr(self, name)) for name in _SHARES]
        return [Bound(name, _SHARES[name], limit) for name, limit in given if limit is not None]

    @property
    def is_about_tokens(self) -> bool:
        """Whether it can be judged only where answers come token by token."""
        return self.first_token is not None or self.between_tokens is not None

    @property
    def share(self) -> float:
        """How many of the requests the strictest percentile speaks for."""
        return self.bounds[-1].share if self.bounds else _SHARES["p99"]

    def good(self, trace: Trace) -> NDArray[np.bool_]:
        """Which requests were answered as promised; of several percentiles the highest bound counts."""
        good = trace.ok.copy()
        if self.bounds:
            good &= trace.latency <= self.bounds[-1].limit
        if self.first_token is not None:
            good &= _first_tokens(trace) - trace.intended <= self.first_token
        if self.between_tokens is not None:
            good &= _token_gaps(trace) <= self.between_tokens
        return good

    def judge(self, trace: Trace) -> Verdict:
        """Whether the promise was kept; a request without an answer counts as infinitely late."""
        count = len(trace)
        failed = count - int(trace.ok.sum())
        latency = np.where(trace.ok, trace.latency, np.inf)
        used, reasons = [_used(failed, 1.0 - self.errors, count)], []
        if failed > _allowed(1.0 - self.errors, count):
            reasons.append(f"{failed} of {count} requests failed or were shed")
        for bound in self.bounds:
            late = int(np.count_nonzero(latency > bound.limit))
            used.append(_used(late, bound.share, count))
            if late > _allowed(bound.share, count):
                seen = float(np.quantile(latency, bound.share, method="inverted_cdf"))  # as it is told
                reasons.append(f"{bound.label} is {_shown(seen)}, above {show_duration(bound.limit)}")
        if self.is_about_tokens:
            missed = count - int(self.good(trace).sum())
            used.append(_used(missed, self.share, count))
            if missed > _allowed(self.share, count):
                reasons.append(f"{missed} of {count} requests missed the bounds on tokens")
        return Verdict(not reasons, reasons[0] if reasons else "", max(used))


@dataclass(frozen=True)
class Bound:
    """So many of the requests within a time."""

    name: str
    share: float
    limit: float

    @property
    def label(self) -> str:
        return self.name.replace("_", ".")


@dataclass(frozen=True)
class Verdict:
    """Whether a promise was kept."""

    holds: bool
    reason: str  # why not
    used: float  # how much of what may miss did, by the bound that is nearest to its limit or furthest beyond; 1 is all


def _allowed(share: float, count: int) -> float:
    """How many requests may miss a bound; a tenth of ten is one, whatever floating point says."""
    return (1.0 - share) * count + 1e-9 * count


def _used(missed: int, share: float, count: int) -> float:
    """The part that missed of those that may; endless where none may."""
    return missed / ((1.0 - share) * count) if share < 1.0 else math.inf if missed else 0.0


def _shown(seconds: float) -> str:
    return show_duration(seconds) if np.isfinite(seconds) else "without end"


def _first_tokens(trace: Trace) -> NDArray[np.float64]:
    """When the first token of each request came; never for one without any: a head that comes early holds nothing."""
    if trace.tokens is None:
        return np.full(len(trace), np.inf)
    return np.array([times[0] if len(times) else np.inf for times in trace.tokens])


def _token_gaps(trace: Trace) -> NDArray[np.float64]:
    """The mean time between the tokens of each request; 0 where it had fewer than two, endless where none are seen."""
    if trace.tokens is None:
        return np.full(len(trace), np.inf)
    return np.array([(times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0 for times in trace.tokens])
