"""Measurements as a report shows them: single figures, and sweeps of figures at points."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.case import Case
from paceline.core.grouping import group_by
from paceline.core.metric import Metric
from paceline.core.record import At, Measurement, Record
from paceline.core.stats import CONFIDENCE, student_quantile

MOST_SETTINGS = 3  # more of them are not a name


def unique_labels(cases: Sequence[Case]) -> list[str]:
    """A name for each case that no other of them has; says no more than it must."""
    labels = [plain_label(case) for case in cases]
    if len(set(labels)) == len(labels):  # as usual, and there may be ten thousand
        return labels
    labels = _extended(labels, [f"on {case.target}" for case in cases])
    labels = _extended(labels, [f"#{case.repeat}" for case in cases])
    labels = _extended(labels, _settings_apart(cases, labels))
    return _extended(labels, [f"[{case.index}]" for case in cases])


def _extended(labels: Sequence[str], extras: Sequence[str]) -> list[str]:
    """The labels, each with its extra where that distinguishes cases of the same label."""
    pairs = list(zip(labels, extras, strict=True))
    variants = Counter(label for label, _ in set(pairs))
    return [f"{label} {extra}".rstrip() if variants[label] > 1 else label for label, extra in pairs]


def _settings_apart(cases: Sequence[Case], labels: Sequence[str]) -> list[str]:
    """What cases of one label set differently, such as how long they measure; nothing where that would be a list."""
    differing: dict[str, list[str]] = {}
    for label, pairs in group_by(zip(labels, cases, strict=True), lambda pair: pair[0]).items():
        if len(pairs) > 1:  # a single one is the usual thing, and there may be ten thousand of them
            settings = [case.parameters for _, case in pairs]
            shared = set.intersection(*map(set, settings))
            names = sorted(n for n in shared if len({show_parameter(one[n]) for one in settings}) > 1)
            differing[label] = names if len(names) <= MOST_SETTINGS else []
    return [
        " ".join(f"{name}={show_parameter(case.parameters[name])}" for name in differing.get(label, ()))
        for case, label in zip(cases, labels, strict=True)
    ]


def show_parameter(value: Any) -> str:
    """A parameter's value in a word."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def shortened(names: Sequence[str], most: int = 3) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"


def plain_label(case: Case) -> str:
    """The benchmark and the title, without saying the benchmark twice."""
    title = case.title.strip()
    if not title or title == case.benchmark or title.startswith(f"{case.benchmark} "):
        return title or case.benchmark
    return f"{case.benchmark} {title}"


@dataclass(frozen=True)
class Reading:
    """A value and where it may lie; an end that is not known is None."""

    value: float
    low: float | None = None
    high: float | None = None
    is_limit: bool = False  # the value is a bound that was met, not what was measured
    count: int = 0  # samples that a percentile rests on
    more: int = 0  # samples that are missing for its interval

    @classmethod
    def of(cls, measurement: Measurement) -> Reading:
        """A measurement's headline and its interval."""
        interval = measurement.interval
        return cls(measurement.value, *((interval.low, interval.high) if interval else (None, None)))

    @classmethod
    def of_logs(cls, mean: float, variance: float, freedom: float) -> Reading:
        """The geometric mean of several, from the mean of their logarithms and how sure that is."""
        reach = student_quantile(0.5 + CONFIDENCE / 2.0, max(1.0, freedom)) * math.sqrt(variance)
        return cls(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))

    def over(self, amount: float) -> Reading:
        """`amount` divided by this; what was the high end gives the low one."""

        def divided(by: float) -> float:
            return amount / by if by > 0 else math.inf

        low, high = (divided(end) if end is not None else None for end in (self.high, self.low))
        return Reading(divided(self.value), low, high)

    def times(self, factor: float) -> Reading:
        """All of it scaled."""
        low, high = (end * factor if end is not None else None for end in (self.low, self.high))
        return Reading(self.value * factor, low, high)

    def overlaps(self, other: Reading) -> bool | None:
        """Whether both may be the same value; None where an end is not known."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return None
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class SweepPoint:
    """What a case measured at one point of its sweep."""

    at: At
    figures: tuple[Measurement, ...]

    def figure(self, name: str) -> Measurement | None:
        return next((figure for figure in self.figures if figure.name == name), None)


@dataclass(frozen=True)
class Sweep:
    """The points of one case that differ in the same ways: sizes of a message, pairs of devices."""

    axes: tuple[str, ...]
    points: tuple[SweepPoint, ...]  # in the order they were measured

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Everything that was measured at some point."""
        return tuple({figure.name: figure.metric for point in self.points for figure in point.figures}.values())

    @property
    def is_matrix(self) -> bool:
        """Whether its points are pairs, each from one device to another."""
        return self.axes == ("from", "to")

    @property
    def is_line(self) -> bool:
        """Whether its points lie on one axis of numbers and are enough for a line."""
        numbers = all(isinstance(value, int | float) for point in self.points for value in point.at.values())
        return len(self.axes) == 1 and len(self.points) > 2 and numbers


def sweeps_of(record: Record) -> tuple[Sweep, ...]:
    """What a record has measured at points, by the axes that the points lie on."""
    measured = [measurement for measurement in record.measurements if measurement.at and not measurement.scope]
    sweeps = []
    for axes, measurements in group_by(measured, lambda one: tuple(one.at)).items():
        points = group_by(measurements, lambda one: tuple(one.at.values())).values()
        sweeps.append(Sweep(axes, tuple(SweepPoint(same[0].at, tuple(same)) for same in points)))
    return tuple(sweeps)
