"""A sweep: load after load, each heavier than the one before, until more load gives no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.benchmarks.serving import trace_metrics
from paceline.core.errors import CaseError
from paceline.core.grouping import group_by
from paceline.core.quantity import show_count, show_duration
from paceline.core.record import Measurement, RecordWarning, Result
from paceline.load.parameters import SWEEP_POINTS, LoadParameters
from paceline.load.trace import Trace

MOST_ERRORS = 0.05  # part of the requests, unless an SLO says it
RISES = 1.05  # times the most so far: what still counts as more throughput
DOUBLES = 1.8  # times the latency there: with twice the users and no more throughput it doubles, but for noise


@dataclass(frozen=True)
class SweepPoint:
    """What one load of a sweep came to."""

    axis: str  # users, rate
    amount: float
    throughput: float  # tokens/s, or requests/s of what makes none
    latency: float  # median, seconds
    failed: float  # part of the requests
    result: Result
    begun: float = 0.0  # on the monotonic clock

    @classmethod
    def of(cls, axis: str, amount: float, trace: Trace, result: Result) -> SweepPoint:
        """From what was sent and what it came to."""
        measured = {one.metric: one.value for one in result.measurements if not one.at}
        throughput = measured.get(trace_metrics.TOKEN_THROUGHPUT, measured[trace_metrics.THROUGHPUT])
        latency = float(np.median(trace.latency[trace.ok]))
        failed = float(np.mean(~trace.kept.ok))
        return cls(axis, amount, throughput, latency, failed, result, trace.begun)

    @property
    def name(self) -> str:
        return load_name(self.axis, self.amount)

    @property
    def at_point(self) -> Iterator[Measurement]:
        """The figures of the load as a whole, as those of a point."""
        return (replace(one, at={self.axis: self.amount}) for one in self.result.measurements if not one.at)


def load_name(axis: str, amount: float) -> str:
    """A load in words: `8 users`, `12.5/s`."""
    return f"{show_count(amount)}/s" if axis == "rate" else f"{amount:.0f} {'user' if amount == 1 else 'users'}"


def run_sweep(
    load: LoadParameters,
    measure: Callable[[str, float, LoadParameters], SweepPoint],
    most_errors: float = MOST_ERRORS,
) -> tuple[list[SweepPoint], str]:
    """The loads in their order, and why the sweep ended before the last of them, if it did."""
    points: list[SweepPoint] = []
    try:
        for users in load.swept_users:
            points.append(measure("users", users, load.of_sweep(users=users)))
            if load.over != "rate" and (reason := why_stop(points, most_errors)):
                return points, reason
        ends = [_rate(point.result) for point in points]
        for rate in np.linspace(min(ends), max(ends), load.points or SWEEP_POINTS) if load.over == "rate" else ():
            rate = float(f"{rate:.4g}")
            points.append(measure("rate", rate, load.of_sweep(rate=rate)))
            if reason := why_stop([point for point in points if point.axis == "rate"], most_errors):
                return points, reason
    except CaseError as error:  # a limit, a server that ended, nothing answered: what was measured before stays
        if not any(point.axis == (load.over or "users") for point in points):
            raise
        return points, str(error)
    return points, ""


def _rate(result: Result) -> float:
    return next(one.value for one in result.measurements if one.metric == trace_metrics.THROUGHPUT and not one.at)


def why_stop(points: Sequence[SweepPoint], most_errors: float = MOST_ERRORS) -> str:
    """Why a heavier load would show nothing new: too many requests fail, or the server is saturated."""
    *before, last = points
    if last.failed > most_errors:
        return f"{100 * last.failed:.3g} % of the requests failed at {last.name}"
    if not before:
        return ""
    best = max(before, key=lambda point: point.throughput)
    if last.throughput < RISES * best.throughput and last.latency >= DOUBLES * best.latency:
        return (
            f"saturated at {last.name}: throughput no longer rises, and latency went from "
            f"{show_duration(best.latency)} at {best.name} to {show_duration(last.latency)}"
        )
    return ""


def together(points: Sequence[SweepPoint], axis: str, stopped: str, most_errors: float = MOST_ERRORS) -> Result:
    """One result: that of the load with the most throughput, and the figures of every load."""
    swept = [point for point in points if point.axis == axis]
    good = [point for point in swept if point.failed <= most_errors] or swept
    held = [point for point in good if not str(point.result.facts.get("slo", "")).startswith("missed")]
    best = max(held or good, key=lambda point: point.throughput)
    loads = [
        {"at": point.amount, "begun": point.begun - points[0].begun, "slo": str(point.result.facts.get("slo", ""))}
        for point in swept
    ]
    series = [one for point in points for one in point.result.facts.get("series", ())]
    ends = f"ended early: {stopped}" if stopped else "all loads were sent"
    facts: dict[str, Any] = best.result.facts | {
        "headline_at": best.name,
        "sweep": f"{', '.join(point.name for point in swept)}; {ends}",
        "loads": loads,
        "series": series,
    }
    return Result(
        measurements=[*best.result.measurements, *(one for point in points for one in point.at_point)],
        facts=facts,
        warnings=_joined(points),
    )


def _joined(points: Sequence[SweepPoint]) -> list[RecordWarning]:
    """One warning of each kind, which names the loads that have it."""
    found = [(point.name, warning) for point in points for warning in point.result.warnings]
    joined = []
    for pairs in group_by(found, lambda pair: pair[1].kind).values():
        (name, first), others = pairs[0], list(dict.fromkeys(name for name, _ in pairs[1:]))
        more = f" (and at {', '.join(others)})" if others else ""
        joined.append(first.model_copy(update={"message": f"at {name}: {first.message}{more}"}))
    return joined
