"""Measurements as a report shows them: single figures, and sweeps of figures at points."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.core.metric import Better, Metric
from paceline.core.record import At, Measurement, Record
from paceline.core.stats import Interval, Summary, resolves


@dataclass(frozen=True)
class Figure:
    """One metric of a case, as a report shows it."""

    metric: Metric
    scope: str
    at: At
    value: float
    interval: Interval | None
    relative: float | None  # the interval's larger half-width as a part of the value
    summary: Summary

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.metric.name

    @property
    def unit(self) -> str:
        """The metric's unit."""
        return self.metric.unit

    @property
    def count(self) -> int:
        """How many samples it rests on."""
        return self.summary.count

    @property
    def is_estimate(self) -> bool:
        """Whether it is one value that many observations gave together, and has no spread of its own."""
        is_sure = self.interval is not None and self.interval.low == self.interval.high
        return self.count > 1 and self.summary.minimum == self.summary.maximum and not is_sure

    def percentile(self, name: str) -> float | None:
        """A percentile, unless the samples are too few to tell it from their maximum."""
        return self.summary.percentiles.get(name) if resolves(self.count, float(name)) else None

    def beats(self, other: Figure) -> bool:
        """Whether this is the better value of the two."""
        return self.value < other.value if self.metric.better is Better.LOWER else self.value > other.value


@dataclass(frozen=True)
class Point:
    """What a case measured at one point of its sweep."""

    at: At
    figures: tuple[Figure, ...]

    def figure(self, name: str) -> Figure | None:
        """A metric by name."""
        return next((figure for figure in self.figures if figure.name == name), None)


@dataclass(frozen=True)
class Sweep:
    """The points of one case that differ in the same ways: sizes of a message, pairs of devices."""

    axes: tuple[str, ...]
    points: tuple[Point, ...]  # in the order they were measured

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Everything that was measured at some point."""
        return tuple({figure.name: figure.metric for point in self.points for figure in point.figures}.values())

    @property
    def is_matrix(self) -> bool:
        """Whether its points are pairs, each from one place to another."""
        return self.axes == ("from", "to")

    @property
    def is_line(self) -> bool:
        """Whether its points lie on one axis of numbers and are enough for a line."""
        numbers = all(isinstance(value, int | float) for point in self.points for value in point.at.values())
        return len(self.axes) == 1 and len(self.points) > 2 and numbers


def figure_of(measurement: Measurement) -> Figure:
    """A measurement as a report shows it."""
    interval = measurement.interval
    relative = interval.relative(measurement.value) if interval else None
    return Figure(
        metric=measurement.metric,
        scope=measurement.scope,
        at=measurement.at,
        value=measurement.value,
        interval=interval,
        relative=relative if relative is not None and math.isfinite(relative) else None,
        summary=measurement.summary,
    )


def sweeps_of(record: Record) -> tuple[Sweep, ...]:
    """What a record has measured at points, by the axes that the points lie on."""
    found: dict[tuple[str, ...], dict[tuple[object, ...], list[Measurement]]] = {}
    for measurement in record.measurements:
        if measurement.at and not measurement.scope:
            place = tuple(measurement.at.values())
            found.setdefault(tuple(measurement.at), {}).setdefault(place, []).append(measurement)
    return tuple(
        Sweep(axes, tuple(Point(told[0].at, tuple(figure_of(m) for m in told)) for told in points.values()))
        for axes, points in found.items()
    )
