"""Measurements as a report shows them: single figures, and sweeps of figures at points."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase, digits
from typing import TYPE_CHECKING, Any

from paceline.analysis.configuration import layout_of
from paceline.core.case import Case, Category, is_micro, is_of_model, section_order
from paceline.core.grouping import group_by
from paceline.core.metric import Better, Metric
from paceline.core.record import At, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import RunRecords
from paceline.core.stats import CONFIDENCE, student_quantile
from paceline.core.subject import TAILS as TAILS

if TYPE_CHECKING:
    from paceline.analysis.roofline import KnownCeilings

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


REMEDIES = {
    CauseKind.ERROR: "read the traceback or log {where}, or run this case alone",
    CauseKind.CRASHED: "read the last lines it wrote {where}, or run this case alone",
    CauseKind.INTERRUPTED: "resume the run",
    CauseKind.TIMEOUT: "raise 'timeout' of the case, or lower its 'budget' or its size",
    CauseKind.HOST_MEMORY: "lower 'batch_size', the model's size or the sizes, or free host memory",
    CauseKind.DEVICE_MEMORY: "lower 'batch_size' or the sizes, choose a narrower precision, or free device memory",
    CauseKind.MISSING_DEPENDENCY: "install what is missing, or leave the case out",
    CauseKind.UNSUPPORTED: "leave the case out on this machine, or choose another precision, target or size",
    CauseKind.CORRUPTION: "trust no number from this device until it was checked; repeat the case on another one",
}

# Parameters that say what is done; cases that differ in them do different work, so that neither wins.
_WORK = (
    *("model", "scale", "layers", "hidden", "sequence"),
    *("operation", "direction", "mode", "function", "load", "requests", "slo", "burst"),
)
_RATES = ("FLOP/s", "B/s")  # units of which more is the news of a micro benchmark


@dataclass(frozen=True)
class CaseRow:
    """What one case came to."""

    record: Record
    label: str  # unique in the run
    headline: Measurement | None

    @cached_property
    def secondary(self) -> tuple[Measurement, ...]:
        """What else was measured of the whole case or of one rank, never of one point."""
        return tuple(m for m in self.record.measurements if m is not self.headline and not m.at)

    @cached_property
    def sweeps(self) -> tuple[Sweep, ...]:
        return sweeps_of(self.record)

    def remedy(self, where: str = "") -> str:
        """What to do if it did not succeed; an error without a traceback was foreseen, and its message says that.

        `where` is where its last words are read; unset is in a page that is made of the run.
        """
        cause = self.record.cause
        if cause is None or self.ok or (cause.kind is CauseKind.ERROR and not cause.detail):
            return ""
        return REMEDIES[cause.kind].format(where=where or f"(paceline report {self.record.run_id} --html)")

    @property
    def case(self) -> Case:
        return self.record.case

    @property
    def ok(self) -> bool:
        return self.record.outcome is Outcome.OK

    @property
    def failed(self) -> bool:
        """Whether something went wrong; that the machine cannot do it is not, unless the suite requires it."""
        return not self.record.is_success

    @property
    def warnings(self) -> tuple[RecordWarning, ...]:
        return tuple(self.record.warnings)

    @property
    def figures(self) -> tuple[Measurement, ...]:
        """Everything it measured as a whole, the headline first."""
        return ((self.headline,) if self.headline else ()) + self.secondary

    def figure(self, name: str) -> Measurement | None:
        """A metric of the whole case, by name."""
        return self.record.measurement(name)

    @property
    def point(self) -> SweepPoint | None:
        """The point of a sweep at which its headline was measured."""
        points = [point for sweep in self.sweeps for point in sweep.points]
        matches = [point for point in points if any(_same(self.headline, figure) for figure in point.figures)]
        return matches[-1] if matches else None


@dataclass(frozen=True)
class Group:
    """Rows whose headlines may be compared: the same work, one metric in one unit, best first."""

    metric: Metric
    benchmark: str
    rows: tuple[CaseRow, ...]

    @cached_property
    def best(self) -> CaseRow:
        """The best case, by the middle one of its repetitions: the best of these is what chance favoured."""
        return middles(self.rows)[0]

    @cached_property
    def cases(self) -> int:
        """How many there are, their repetitions apart."""
        return len(middles(self.rows))


@dataclass(frozen=True)
class Highlight:
    """The fastest case of a category, of those that measure a rate."""

    category: str
    row: CaseRow
    of: int  # how many cases it led, itself included


@dataclass(frozen=True)
class WarningKind:
    """One kind of warning with its mark, and what to do about it."""

    kind: str
    mark: str
    remedies: tuple[str, ...]
    labels: tuple[str, ...]  # of the cases that have it


@dataclass(frozen=True)
class RunSummary:
    """A whole run, ready to be shown."""

    source: RunRecords
    rows: tuple[CaseRow, ...]
    not_run: tuple[Case, ...]  # no attempt at all
    groups: tuple[Group, ...]
    warnings: tuple[WarningKind, ...]
    ceilings: KnownCeilings | None = None  # what is known of the machine besides the run

    @property
    def total(self) -> int:
        return len(self.rows) + len(self.not_run)

    @cached_property
    def measured(self) -> tuple[CaseRow, ...]:
        return tuple(row for row in self.rows if row.ok)

    @cached_property
    def failed(self) -> tuple[CaseRow, ...]:
        return tuple(row for row in self.rows if row.failed)

    @cached_property
    def impossible(self) -> tuple[CaseRow, ...]:
        """The cases that cannot be measured on this machine, and that nobody requires."""
        return tuple(row for row in self.rows if not row.ok and not row.failed)

    @cached_property
    def with_warnings(self) -> tuple[CaseRow, ...]:
        """The cases that succeeded, but are to be trusted less."""
        return tuple(row for row in self.measured if row.warnings)

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """Which kinds of benchmarks were measured, in the order of a report."""
        return tuple(sorted(dict.fromkeys(row.case.category for row in self.measured), key=section_order))

    @property
    def is_micro(self) -> bool:
        """Whether benchmarks of single operations are among what was measured."""
        return any(map(is_micro, self.categories))

    @property
    def is_of_models(self) -> bool:
        """Whether whole models are among what was measured; then the run is about them."""
        return any(map(is_of_model, self.categories))

    @property
    def is_sectioned(self) -> bool:
        """Whether its cases need tables of their own kind, one for each category."""
        return self.is_micro or Category.SERVING in self.categories

    @property
    def highlights(self) -> tuple[Highlight, ...]:
        """The leader of every category of single operations: its highest rate; a burst leads none."""
        highlights = []
        for name in filter(is_micro, self.categories):
            heads = [(row.headline, row) for row in self.measured if row.case.category == name and row.headline]
            heads = [(head, row) for head, row in heads if row.record.pace is None or row.record.pace.kind != "burst"]
            # Rates in one unit: nothing leads what is measured in another.
            unit = next((unit for unit in _RATES if any(head.unit == unit for head, _ in heads)), "")
            rates = [(head.value, row) for head, row in heads if head.unit == unit and math.isfinite(head.value)]
            if rates:
                best_first = [row for _, row in sorted(rates, key=lambda pair: -pair[0])]
                cases = middles(best_first)
                highlights.append(Highlight(name, cases[0], len(cases)))
        return tuple(highlights)

    def notable(self, limit: int) -> tuple[CaseRow, ...]:
        """All cases, or of very many those that a reader would look at first: not ok, uncertain, leading."""
        if len(self.rows) <= limit:
            return self.rows
        return tuple(sorted(self._by_notice[:limit], key=lambda row: row.case.index))

    @cached_property
    def _by_notice(self) -> list[CaseRow]:
        leaders = {group.best.case.index for group in self.groups}
        return sorted(self.rows, key=lambda row: (row.ok, not row.warnings, row.case.index not in leaders))

    def marks(self, row: CaseRow) -> str:
        """The marks of one row's warnings."""
        kinds = {warning.kind for warning in row.warnings}
        return "".join(kind.mark for kind in self.warnings if kind.kind in kinds)


def summarize_run(records: RunRecords, ceilings: KnownCeilings | None = None) -> RunSummary:
    """All rows of a run; `ceilings` are what is known of the machine besides it."""
    ordered = sorted(records.records, key=lambda record: record.case.index)
    with_record = {record.case.index for record in ordered}
    labels = unique_labels([record.case for record in ordered])
    rows = tuple(CaseRow(record, label, headline_of(record)) for record, label in zip(ordered, labels, strict=True))
    return RunSummary(
        source=records,
        rows=rows,
        not_run=tuple(case for case in records.run.cases if case.index not in with_record),
        groups=_groups(rows),
        warnings=_warning_kinds(rows),
        ceilings=ceilings,
    )


def headline_of(record: Record) -> Measurement | None:
    """The measurement that leads: the primary one, or the first with a direction, of the whole case if it can be."""
    whole = [m for m in record.measurements if not m.scope and not m.at] or list(record.measurements)
    primary = next((m for m in whole if m.metric.name == record.primary), None)
    return primary or next((m for m in whole if m.metric.better is not Better.NEITHER), None)


def sampled(record: Record, headline: Measurement | None) -> Measurement | None:
    """The measurement whose raw samples are behind the headline, otherwise the first that has several."""
    candidates: list[Measurement | None] = []
    if headline is not None:
        points = [m for m in record.measurements if m.at and not m.scope and _same(m, headline)]
        twins = [headline, *reversed(points)]
        candidates += [record.measurement(m.derived_from, m.scope, m.at) if m.derived_from else m for m in twins]
    candidates += record.measurements
    return next((m for m in candidates if m is not None and len(m.samples) > 1), None)


def middles(best_first: Sequence[CaseRow]) -> list[CaseRow]:
    """Of each case the middle repetition, the worse of two; the best case first."""
    repetitions = group_by(best_first, lambda row: (row.case.key, row.case.title)).values()
    middle = {rows[len(rows) // 2].case.index for rows in repetitions}
    return [row for row in best_first if row.case.index in middle]


def _same(one: Measurement | None, other: Measurement) -> bool:
    return one is not None and (one.metric, one.summary) == (other.metric, other.summary)


def leading_metric(row: CaseRow, sweep: Sweep) -> Metric | None:
    """The metric that a sweep is about: the headline's, otherwise the first rate, or the first with a direction."""
    name = row.headline.name if row.headline else ""
    directed = [metric for metric in sweep.metrics if metric.better is not Better.NEITHER]
    rates = [metric for metric in directed if metric.unit.endswith("/s")]
    headlines = [metric for metric in directed if metric.name == name]
    return next(iter((*headlines, *rates, *directed)), None)


def _groups(rows: Iterable[CaseRow]) -> tuple[Group, ...]:
    groups: dict[tuple[str, ...], list[tuple[Measurement, CaseRow]]] = {}
    for row in rows:
        if row.ok and row.headline is not None and math.isfinite(row.headline.value):
            # That one model is faster than another is not news; that one way to run it is, is.
            layout = layout_of(row.record)
            parameters = row.case.parameters
            if layout is not None:
                parameters = parameters | {"model": layout.model, "layers": layout.layers}
            work = [str(parameters.get(name, "")) for name in _WORK]
            key = (row.case.benchmark, row.headline.name, row.headline.unit, *work)
            groups.setdefault(key, []).append((row.headline, row))
    made = []
    for (benchmark, *_), members in groups.items():
        metric = members[0][0].metric
        ordered = sorted(members, key=lambda pair: pair[0].value, reverse=metric.better is not Better.LOWER)
        made.append(Group(metric=metric, benchmark=benchmark, rows=tuple(row for _, row in ordered)))
    return tuple(made)


def _warning_kinds(rows: Iterable[CaseRow]) -> tuple[WarningKind, ...]:
    kinds = group_by(((warning, row.label) for row in rows for warning in row.warnings), lambda pair: pair[0].kind)
    marks = warning_marks(kinds)
    warnings = []
    for kind, pairs in kinds.items():
        remedies = tuple(dict.fromkeys(warning.remedy for warning, _ in pairs))
        warnings.append(WarningKind(kind, marks[kind], remedies, tuple(dict.fromkeys(label for _, label in pairs))))
    return tuple(warnings)


def warning_marks(kinds: Iterable[str]) -> dict[str, str]:
    """The letter that marks each kind of warning: the first of its name, or of all, that is free."""
    marks: dict[str, str] = {}
    for kind in dict.fromkeys(kinds):
        letters = [letter for letter in kind.upper() if letter.isascii() and letter.isalpha()]
        free = (one for one in (*letters, *ascii_uppercase, *digits) if one not in marks.values())
        marks[kind] = next(free, "*")
    return marks
