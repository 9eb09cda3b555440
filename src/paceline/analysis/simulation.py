"""What a simulated schedule says: completion times, fairness, utilisation, starvation, and how policies compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.summary import CaseRow
from paceline.core.stats import CONFIDENCE, Interval, student_quantile, summarize
from paceline.core.subject import StepTrace
from paceline.core.trace_events import IDLE

MUCH = 0.2  # of a step: worth doing something about
MOST = 0.5
SLOWED = 1.1  # from this ratio on, tracing itself is to be seen in the shares


@dataclass(frozen=True)
class Traced:
    """One case that was to be traced."""

    row: CaseRow
    trace: StepTrace

    @property
    def is_slowed(self) -> bool:
        """Whether tracing made the steps so much longer that the shares show it."""
        return self.trace.slowdown is not None and self.trace.slowdown > SLOWED


def traced(rows: Iterable[CaseRow]) -> list[Traced]:
    """The cases that were to be traced."""
    return [Traced(row, row.record.trace) for row in rows if row.record.trace is not None]


def advice(trace: StepTrace) -> tuple[str, ...]:
    """What would make the step shorter, where the shares show it plainly."""
    if trace.spent is None:
        return ()
    shares = trace.spent.shares
    remedies = []
    if trace.spent.on_device and shares.get(IDLE, 0.0) >= MUCH:
        ways = ["a larger batch", *trace.switches]
        remedies.append(f"the device waits for the host: give it more at once with {' or '.join(ways)}")
    if shares.get("communication", 0.0) >= MUCH:
        remedies.append(
            "communication is waited for: larger batches for each rank, or another layout (paceline plan), hide it"
        )
    if shares.get("memory", 0.0) >= MOST:
        remedies.append(
            "moving numbers takes longer than computing with them: a narrower precision moves fewer bytes, and "
            "--compile on moves them fewer times"
        )
    return tuple(remedies)


SHORT = 0.1  # of the mean duration: the slowdown of a shorter task counts as if it took so long
BASELINE, OURS, CLAIRVOYANT = "round-robin", "two-tier", "clairvoyant"


@dataclass(frozen=True)
class Schedule:
    """When each task of a workload came, started and ended; all in seconds."""

    submitted: NDArray[np.float64]
    started: NDArray[np.float64]
    ended: NDArray[np.float64]
    device_seconds: float
    devices: int  # of the whole cluster


@dataclass(frozen=True)
class SimulatedOutcome:
    """One schedule in figures."""

    mean: float  # completion time, from submission to end
    p50: float
    p95: float
    p99: float
    longest: float
    slowdown: float  # mean of completion time over duration
    fairness: float  # Jain's index of the slowdowns: 1 if all are equal
    utilisation: float
    worst_wait: float  # in mean durations


@dataclass(frozen=True)
class Estimate:
    """A figure over several seeds."""

    value: float
    interval: Interval | None  # None for a single seed

    @property
    def relative(self) -> float | None:
        return self.interval.relative(self.value) if self.interval else None


@dataclass(frozen=True)
class Line:
    """One policy on one workload at one load."""

    policy: str
    outcomes: tuple[SimulatedOutcome, ...]  # one for each seed

    def estimate(self, name: str) -> Estimate:
        """The mean over the seeds; of extremes the most extreme."""
        values = [float(getattr(outcome, name)) for outcome in self.outcomes]
        if name in ("longest", "worst_wait"):
            return Estimate(max(values), None)
        return mean_estimate(values)


@dataclass(frozen=True)
class StudyCell:
    """One workload at one load under several policies, on the same tasks."""

    workload: str
    load: float
    lines: tuple[Line, ...]
    bound: float  # no schedule has a lower mean completion time

    def line(self, policy: str) -> Line | None:
        return next((line for line in self.lines if line.policy == policy), None)

    def gain(self, policy: str, over: str = BASELINE) -> Estimate | None:
        """How many times lower the mean completion time is than under another policy."""
        line, other = self.line(policy), self.line(over)
        return ratio(other, line) if line and other else None


@dataclass(frozen=True)
class Study:
    """Everything that one call of the simulator found, with its settings."""

    cells: tuple[StudyCell, ...]
    settings: dict[str, Any]
    seconds: float  # that it took


def measure(schedule: Schedule) -> SimulatedOutcome:
    """All figures of a schedule."""
    durations = schedule.ended - schedule.started
    times = schedule.ended - schedule.submitted
    mean = float(durations.mean())
    slowdowns = np.maximum(1.0, times / np.maximum(durations, SHORT * mean))
    p50, p95, p99 = (float(value) for value in np.percentile(times, (50, 95, 99)))
    span = float(schedule.ended.max() - schedule.submitted.min())
    return SimulatedOutcome(
        mean=float(times.mean()),
        p50=p50,
        p95=p95,
        p99=p99,
        longest=float(times.max()),
        slowdown=float(slowdowns.mean()),
        fairness=float(slowdowns.sum() ** 2 / (slowdowns.size * (slowdowns**2).sum())),
        utilisation=schedule.device_seconds / (schedule.devices * span),
        worst_wait=float((schedule.started - schedule.submitted).max()) / mean,
    )


def ratio(over: Line, under: Line) -> Estimate:
    """Mean completion time of one policy over that of another, on the same tasks."""
    return ratio_estimate(*([outcome.mean for outcome in line.outcomes] for line in (over, under)))


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean over seeds, which are independent of each other."""
    mean = summarize(values).mean
    if len(values) < 2:
        return Estimate(mean, None)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, _student_interval(mean, error, len(values)))


def ratio_estimate(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """The sum of one figure over that of another, both of the same seeds; its interval by the jackknife."""
    above, below = np.asarray(over, dtype=np.float64), np.asarray(under, dtype=np.float64)
    value = float(above.sum() / below.sum())
    count = above.size
    if count < 2:
        return Estimate(value, None)
    left_out = (above.sum() - above) / (below.sum() - below)
    error = math.sqrt((count - 1) / count * float(((left_out - left_out.mean()) ** 2).sum()))
    return Estimate(value, _student_interval(value, error, count))


def _student_interval(value: float, error: float, count: int) -> Interval:
    reach = student_quantile(0.5 + CONFIDENCE / 2, count - 1) * error
    return Interval(low=value - reach, high=value + reach, confidence=CONFIDENCE)
