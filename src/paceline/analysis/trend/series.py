"""The series of a metric over runs: one for each case and each kind of machine, with what changed where."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from paceline.analysis.trend.steps import (
    FEWEST,
    SMALLEST_NOISE,
    Change,
    EnvironmentChange,
    Fit,
    commit,
    differences,
    find_changes,
    fingerprint,
    machine,
    settings,
)
from paceline.core.case import Case
from paceline.core.metric import Better, Metric
from paceline.core.record import At, Measurement, Outcome
from paceline.core.run import Run, RunRecords
from paceline.core.stats import Interval, summarize

TrendVerdict = Literal["regression", "improvement", "change"]


@dataclass(frozen=True)
class TrendPoint:
    """What one run came to."""

    run_id: str
    started_at: datetime
    value: float
    interval: Interval | None
    commit: str  # empty where none is known
    dirty: bool
    fingerprint: str
    settings: Mapping[str, str]
    warnings: tuple[str, ...]
    repetitions: int


@dataclass(frozen=True)
class Shift:
    """A change of level, with the runs on either side of it and what else changed there."""

    change: Change
    verdict: TrendVerdict
    factor: float | None  # new level over old one; None where values are not all above zero
    interval: Interval | None  # of the factor
    last_before: TrendPoint
    first: TrendPoint
    changed: tuple[EnvironmentChange, ...]


@dataclass(frozen=True)
class TrendSeries:
    """One metric of one case on one kind of machine, in the order of the runs."""

    case: Case
    label: str
    at: At
    metric: Metric
    machine: str
    points: tuple[TrendPoint, ...]
    levels: tuple[float, ...]
    outliers: tuple[bool, ...]
    noise: float  # of one run, as a part of the value where all are above zero
    shifts: tuple[Shift, ...]

    @property
    def is_long_enough(self) -> bool:
        """Whether a change could be told from noise."""
        return len(self.points) >= FEWEST

    @property
    def is_worse(self) -> bool:
        """Whether its last level is worse than the one before."""
        return bool(self.shifts) and self.shifts[-1].verdict == "regression"

    @property
    def value(self) -> float:
        """The level it has now."""
        return self.levels[-1]


@dataclass(frozen=True)
class History:
    """All series of a metric, those that got worse first."""

    metric: str
    series: tuple[TrendSeries, ...]
    seen_once: int  # cases on one machine that only one run measured
    runs: int

    @property
    def worse(self) -> tuple[TrendSeries, ...]:
        """The series whose last level is worse than the one before."""
        return tuple(series for series in self.series if series.is_worse)

    @property
    def machines(self) -> tuple[str, ...]:
        """Every kind of machine among them."""
        return tuple(dict.fromkeys(series.machine for series in self.series))


@dataclass(frozen=True)
class _Seen:
    """One measurement with the run that it belongs to."""

    run: Run
    case: Case
    measurement: Measurement
    warnings: tuple[str, ...]


def history(runs: Iterable[RunRecords], metric: str) -> History:
    """Every series of a metric over these runs; cases that did not succeed have no value in theirs."""
    found: dict[tuple[object, ...], list[_Seen]] = {}
    counted = set()
    for records in sorted(runs, key=lambda records: (records.run.started_at, records.run.id)):
        for record in records.records if records.run.id not in counted else ():
            if record.outcome is not Outcome.OK:
                continue
            warnings = tuple(dict.fromkeys(warning.kind for warning in record.warnings))
            where = machine(records.run.environment, record.case.target)
            for measurement in _told(record.measurements, metric):
                key = (record.case.key, tuple(measurement.at.items()), measurement.metric.unit, where)
                found.setdefault(key, []).append(_Seen(records.run, record.case, measurement, warnings))
        counted.add(records.run.id)
    long = {key: seen for key, seen in found.items() if len({one.run.id for one in seen}) > 1}
    labels = _labels({seen[-1].case.key: seen[-1].case for seen in long.values()})
    points = _Points()
    made = [_series(seen, labels[seen[-1].case.key], str(key[-1]), points) for key, seen in long.items()]
    return History(
        metric=metric,
        series=tuple(sorted(made, key=lambda series: not series.is_worse)),
        seen_once=len(found) - len(long),
        runs=len({one.run.id for seen in found.values() for one in seen}),
    )


def _told(measurements: Sequence[Measurement], metric: str) -> list[Measurement]:
    """The metric of the whole case, or else at every point of its sweep; never of one rank."""
    mine = [m for m in measurements if m.metric.name == metric and not m.scope and math.isfinite(m.value)]
    return [m for m in mine if not m.at] or mine


class _Points:
    """Makes points; what a run's environment says is read once, however many cases it has."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, bool, str, dict[str, str]]] = {}

    def of(self, seen: Sequence[_Seen]) -> TrendPoint:
        """One run's value: of several repetitions their median."""
        run, only = seen[0].run, seen[0].measurement
        if run.id not in self._known:
            self._known[run.id] = (*commit(run.environment), fingerprint(run.environment), settings(run.environment))
        known = self._known[run.id]
        value, interval = only.value, only.interval
        if len(seen) > 1:
            summary = summarize([one.measurement.value for one in seen])
            value, interval = summary.median, summary.median_interval
        return TrendPoint(
            run_id=run.id,
            started_at=run.started_at,
            value=value,
            interval=interval,
            commit=known[0],
            dirty=known[1],
            fingerprint=known[2],
            settings=known[3],
            warnings=tuple(dict.fromkeys(warning for one in seen for warning in one.warnings)),
            repetitions=len(seen),
        )


def _series(seen: Sequence[_Seen], label: str, where: str, points: _Points) -> TrendSeries:
    of_run: dict[str, list[_Seen]] = {}
    for one in seen:
        of_run.setdefault(one.run.id, []).append(one)
    made = tuple(points.of(repeated) for repeated in of_run.values())
    # A factor is what people ask for, and noise grows with the value: ratios where there can be any.
    as_ratios = all(point.value > 0 for point in made)
    if as_ratios:
        fit = find_changes([math.log(point.value) for point in made])
    else:
        largest = max(abs(point.value) for point in made)
        fit = find_changes([point.value for point in made], SMALLEST_NOISE * largest or 1.0)
    last = seen[-1]
    better = last.measurement.metric.better
    return TrendSeries(
        case=last.case,
        label=label,
        at=last.measurement.at,
        metric=last.measurement.metric,
        machine=where,
        points=made,
        levels=tuple(math.exp(level) for level in fit.levels) if as_ratios else fit.levels,
        outliers=fit.outliers,
        noise=fit.noise,
        shifts=_shifts(fit, made, better, as_ratios),
    )


def _shifts(fit: Fit, points: Sequence[TrendPoint], better: Better, as_ratios: bool) -> tuple[Shift, ...]:
    made = []
    for change in fit.changes:
        before, first = points[change.at - 1], points[change.at]
        interval = change.interval
        made.append(
            Shift(
                change=change,
                verdict=_verdict(change.difference, better),
                factor=math.exp(change.difference) if as_ratios else None,
                interval=interval.model_copy(update={"low": math.exp(interval.low), "high": math.exp(interval.high)})
                if as_ratios
                else None,
                last_before=before,
                first=first,
                changed=differences(before.settings, points[change.until].settings),
            )
        )
    return tuple(made)


def _verdict(difference: float, better: Better) -> TrendVerdict:
    if better is Better.NEITHER:
        return "change"
    return "improvement" if (difference > 0) == (better is Better.HIGHER) else "regression"


def _labels(cases: Mapping[str, Case]) -> dict[str, str]:
    """A name for each case; what tells namesakes apart is added."""
    plain = {key: _plain(case) for key, case in cases.items()}
    found = {}
    for key, case in cases.items():
        namesakes = [other for name, other in cases.items() if plain[name] == plain[key]]
        traits = [{"target": other.target, "ranks": other.ranks, **other.parameters} for other in namesakes]
        names = dict.fromkeys(name for trait in traits for name in trait)
        differing = [name for name in names if len({repr(trait.get(name)) for trait in traits}) > 1]
        own = {"target": case.target, "ranks": case.ranks, **case.parameters}
        found[key] = " ".join([plain[key], *(f"{name}={own.get(name)}" for name in differing)])
    return found


def _plain(case: Case) -> str:
    title = case.title.strip()
    alone = not title or title == case.benchmark or title.startswith(f"{case.benchmark} ")
    return (title or case.benchmark) if alone else f"{case.benchmark} {title}"
