"""The series of a metric over runs: one for each case and each kind of machine, with what changed where."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, Literal

from paceline.analysis.compare.sides import side_of
from paceline.analysis.summary import headline_of, unique_labels
from paceline.analysis.trend.steps import FEWEST, SMALLEST_NOISE, Change, Modes, find_changes
from paceline.core.case import Case
from paceline.core.environment import Driver, Environment, Git
from paceline.core.grouping import group_by
from paceline.core.metric import Better, Metric
from paceline.core.record import At, Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.stats import Interval, summarize

_PLAIN = ("host", "kernel", "distribution", "architecture", "container", "virtualization")
_CPU = ("model", "usable", "governor", "boost")
_GPU = ("name", "power_limit_watts", "sm_clock_max_mhz", "memory_clock_max_mhz", "mig", "persistence")
_SOFTWARE = ("python", "paceline", "torch_cuda", "torch_hip")
LASTING = 3  # runs that make a level one to be held to
_PASSING = ("host", "commit", "uncommitted changes")  # shown where they change, but not part of the fingerprint

TrendVerdict = Literal["regression", "improvement", "change"]


@dataclass(frozen=True)
class EnvironmentChange:
    """Something that differs between two runs; empty where a run does not have it."""

    name: str
    before: str
    after: str


def settings(environment: Environment) -> dict[str, str]:
    """Everything lasting that may change a number, by a name that people read; loads and temperatures are not."""
    cpu, memory, software, gpus = environment.cpu, environment.memory, environment.software, environment.gpus
    driver, git = environment.driver or Driver(), environment.git or Git()
    values: dict[str, Any] = {name: getattr(environment, name) for name in _PLAIN}
    values |= {f"CPU {name}": getattr(cpu, name) for name in _CPU}
    values |= {"memory": memory.total, "memory limit": memory.limit}
    values |= {"driver": driver.version, "driver's CUDA": driver.cuda}
    values |= {f"GPU {name.replace('_', ' ')}": _together([getattr(gpu, name) for gpu in gpus]) for name in _GPU}
    values["GPU ECC"] = _together([gpu.ecc.enabled for gpu in gpus])
    values["GPUs"] = len(gpus) or None
    values |= {name.replace("_", " "): getattr(software, name) for name in _SOFTWARE}
    values |= software.packages
    values |= {f"${name}": value for name, value in environment.variables.items()}
    values |= {"commit": git.commit, "uncommitted changes": git.dirty}
    return {name: _word(value) for name, value in values.items() if value is not None}


def fingerprint(environment: Environment) -> str:
    """The same for the same hardware, software and variables, whatever the host is called and the commit is."""
    lasting = {name: value for name, value in settings(environment).items() if name not in _PASSING}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:8]


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[EnvironmentChange, ...]:
    """What differs between the settings of two runs."""
    names = dict.fromkeys([*before, *after])
    pairs = [EnvironmentChange(name, before.get(name, ""), after.get(name, "")) for name in names]
    return tuple(pair for pair in pairs if pair.before != pair.after)


def machine(environment: Environment, target: str) -> str:
    """Which kind of machine measured: its processor, and for what ran on GPUs those as well.

    Two hosts of one kind are one machine here: in a cluster or in the cloud, runs land on any of them.
    """
    cpu = environment.cpu
    model = cpu.model or environment.architecture or "unknown CPU"
    names = [gpu.name or "unknown GPU" for gpu in environment.gpus]
    if target != "cpu" and names:
        counts = {name: names.count(name) for name in names}
        gpus = " and ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
        return f"{gpus} with {model}"
    usable = cpu.usable or cpu.physical_cores
    return f"{model}, {usable:g} cores" if usable else model


def commit(environment: Environment) -> tuple[str, bool]:
    """The commit of the repository that the run was started in, empty where none is known; whether files differed."""
    git = environment.git or Git()
    return git.commit or "", bool(git.dirty)


def _together(values: list[Any]) -> str | None:
    """The values of several devices, once where they agree."""
    words = [_word(value) for value in values]
    if all(value is None for value in values):
        return None
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    modes: Modes | None = None  # logarithms where all values are above zero

    @property
    def is_long_enough(self) -> bool:
        """Whether a change could be distinguished from noise."""
        return len(self.points) >= FEWEST

    @property
    def is_worse(self) -> bool:
        """Whether its last level is worse than the best one that it had."""
        return self.best_before is not None

    @property
    def best_before(self) -> int | None:
        """The last run of the best level, if the level now is worse by more than the changes since are unsure.

        A level counts from its third run on: two lucky runs are not what later ones are held to.
        """
        way = {Better.HIGHER: -1.0, Better.LOWER: 1.0}.get(self.metric.better)
        if way is None:
            return None
        worst, best, loss, doubt = 0.0, None, 0.0, 0.0
        for place, shift in reversed(list(enumerate(self.shifts))):
            loss += way * shift.change.difference
            doubt = math.hypot(doubt, shift.change.half_width)
            begun = self.shifts[place - 1].change.until if place else 0
            if shift.change.at - begun >= LASTING and loss > max(worst, doubt):
                worst, best = loss, shift.change.at - 1
        return best

    @property
    def now(self) -> float:
        """What the last run measured."""
        return self.points[-1].value

    @property
    def level(self) -> float:
        """The level of the last runs together."""
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
        """The series whose last level is worse than their best one."""
        return tuple(series for series in self.series if series.is_worse)

    @property
    def machines(self) -> tuple[str, ...]:
        """Every kind of machine among them."""
        return tuple(dict.fromkeys(series.machine for series in self.series))


@dataclass(frozen=True)
class _CaseValue:
    """One measurement with the run that it belongs to."""

    run: Run
    record: Record
    measurement: Measurement


def history(runs: Iterable[RunRecords], metric: str) -> History:
    """Every series of a metric over these runs; cases that did not succeed have no value in theirs."""
    groups: dict[tuple[object, ...], list[_CaseValue]] = {}
    counted = set()
    for records in sorted(runs, key=lambda records: (records.run.started_at, records.run.id)):
        for record in records.records if records.run.id not in counted else ():
            if record.outcome is not Outcome.OK or side_of(record.case) is not None:  # a side may be an old commit
                continue
            where = machine(records.run.environment, record.case.target)
            # The metric of the whole case, or of every point of its sweep; never of one rank.
            finite = [m for m in record.measurements if m.metric.name == metric and math.isfinite(m.value)]
            finite = [m for m in finite if not m.scope]
            for measurement in [m for m in finite if not m.at] or finite:
                key = (record.case.key, tuple(measurement.at.items()), measurement.metric.unit, where)
                groups.setdefault(key, []).append(_CaseValue(records.run, record, measurement))
        counted.add(records.run.id)
    long = {key: values for key, values in groups.items() if len({one.run.id for one in values}) > 1}
    cases = {values[-1].record.case.key: values[-1].record.case for values in long.values()}
    labels = dict(zip(cases, unique_labels(list(cases.values())), strict=True))
    # What a run's environment says is read once, however many cases it has.
    environments = {one.run.id: one.run.environment for values in long.values() for one in values}
    facts = {run: (*commit(one), fingerprint(one), settings(one)) for run, one in environments.items()}
    made = [_series(values, labels[values[-1].record.case.key], str(key[-1]), facts) for key, values in long.items()]
    return History(
        metric=metric,
        series=tuple(sorted(made, key=lambda series: not series.is_worse)),
        seen_once=len(groups) - len(long),
        runs=len({one.run.id for values in groups.values() for one in values}),
    )


_RunFacts = Mapping[str, tuple[str, bool, str, dict[str, str]]]  # commit, dirty, fingerprint, settings by run


def _series(values: Sequence[_CaseValue], label: str, where: str, facts: _RunFacts) -> TrendSeries:
    points = []
    for run_id, repeated in group_by(values, lambda one: one.run.id).items():
        value, interval = repeated[0].measurement.value, repeated[0].measurement.interval
        if len(repeated) > 1:
            summary = summarize([one.measurement.value for one in repeated])
            value, interval = summary.median, summary.median_interval
        warnings = tuple(dict.fromkeys(warning.kind for one in repeated for warning in one.record.warnings))
        started_at = repeated[0].run.started_at
        points.append(TrendPoint(run_id, started_at, value, interval, *facts[run_id], warnings, len(repeated)))
    # A factor is what people ask for, and noise grows with the value: ratios where there can be any.
    as_ratios = all(point.value > 0 for point in points)
    if as_ratios:
        fit = find_changes([math.log(point.value) for point in points])
    else:
        largest = max(abs(point.value) for point in points)
        fit = find_changes([point.value for point in points], SMALLEST_NOISE * largest or 1.0)
    last = values[-1]
    return TrendSeries(
        case=last.record.case,
        label=label,
        at=last.measurement.at,
        metric=last.measurement.metric,
        machine=where,
        points=tuple(points),
        levels=tuple(math.exp(level) for level in fit.levels) if as_ratios else fit.levels,
        outliers=fit.outliers,
        noise=fit.noise,
        shifts=tuple(_shift(change, points, last.measurement.metric.better, as_ratios) for change in fit.changes),
        modes=fit.modes,
    )


def _shift(change: Change, points: Sequence[TrendPoint], better: Better, as_ratios: bool) -> Shift:
    before, first = points[change.at - 1], points[change.at]
    ends = {"low": math.exp(change.interval.low), "high": math.exp(change.interval.high)} if as_ratios else {}
    verdict: TrendVerdict = "improvement" if (change.difference > 0) == (better is Better.HIGHER) else "regression"
    return Shift(
        change=change,
        verdict="change" if better is Better.NEITHER else verdict,
        factor=math.exp(change.difference) if as_ratios else None,
        interval=change.interval.model_copy(update=ends) if as_ratios else None,
        last_before=before,
        first=first,
        changed=differences(before.settings, points[change.until].settings),
    )


class TrendStanding(IntEnum):
    """How a series stands, in the order of reading."""

    WORSE = 0
    CHANGED = 1
    UNDECIDED = 2  # too few runs, or two modes
    STEADY = 3


def standing(series: TrendSeries) -> TrendStanding:
    """How a series stands now."""
    if series.is_worse:
        return TrendStanding.WORSE
    if series.shifts:
        return TrendStanding.CHANGED
    is_open = not series.is_long_enough or series.modes is not None
    return TrendStanding.UNDECIDED if is_open else TrendStanding.STEADY


def leading_series(runs: Iterable[RunRecords]) -> list[TrendSeries]:
    """A series for each case on each kind of machine, of the metric that leads it; what changed last comes first."""
    by_metric: dict[str, list[RunRecords]] = {}
    for records in runs:
        mine: dict[str, list[Record]] = {}
        for record in records.records:
            headline = headline_of(record) if record.outcome is Outcome.OK else None
            if headline is not None and not headline.scope:
                mine.setdefault(headline.name, []).append(record.model_copy(update={"measurements": [headline]}))
        for metric, found in mine.items():
            by_metric.setdefault(metric, []).append(records.model_copy(update={"records": found}))
    series = [one for metric, found in by_metric.items() for one in history(found, metric).series]
    return sorted(series, key=lambda one: (standing(one), -_last_change(one), one.label))


def _last_change(series: TrendSeries) -> float:
    return series.shifts[-1].first.started_at.timestamp() if series.shifts else 0.0
