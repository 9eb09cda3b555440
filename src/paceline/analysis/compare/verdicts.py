"""A comparison: for every matched case and metric the ratio, and what it comes to in a word.

Two sides that were measured in alternation within one run, A B B A ..., are compared round by round, so that drift
cancels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import islice, zip_longest
from typing import NamedTuple

from paceline.analysis.compare.matching import (
    Difference,
    Match,
    Matched,
    Pool,
    Side,
    differences,
    environment_differences,
    match,
)
from paceline.analysis.compare.sequential import ratio_of_rounds
from paceline.analysis.compare.significance import (
    FALSE_ALARMS,
    FLOOR,
    MOST_FREEDOM,
    Ratio,
    RepeatSamples,
    ratios,
    significant,
)
from paceline.analysis.figures import shortened
from paceline.analysis.summary import headline_of, warning_marks
from paceline.core.case import Case
from paceline.core.device import is_accelerator
from paceline.core.errors import InputError, unknown
from paceline.core.grouping import group_by
from paceline.core.metric import Better, Metric
from paceline.core.record import At, Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.session import machine_key, sessions_of
from paceline.core.stats import CONFIDENCE, Interval, student_quantile
from paceline.core.uncertainty import ENOUGH, Part, units_needed
from paceline.core.uncertainty import differences as model_differences

RESOLVED = 0.05  # a difference that a comparison is to show or to rule out
MARKS = (" [A]", " [B]")  # of the sides of an alternation, at the end of a title
_EXPRESSION = re.compile(r"\s*(?P<metric>\*|[A-Za-z_][\w.-]*)\s*(?P<sign>[<>])\s*(?P<bound>[0-9.eE+-]+)\s*")


@dataclass(frozen=True)
class Limit:
    """A bound on the ratio new / reference of one metric, or of every one that is compared."""

    metric: str
    sign: str  # < or >
    bound: float

    @classmethod
    def parse(cls, text: str, *, strict: bool = False) -> Limit:
        """Read one; what would fail without any change is refused unless significance is not asked for."""
        parts = _EXPRESSION.fullmatch(text)
        if parts is None:
            raise _refused("not-a-limit", text, "write it as METRIC<RATIO or METRIC>RATIO, like 'throughput<0.97'")
        try:
            bound = float(parts["bound"])
        except ValueError:
            raise _refused("not-a-number", text, f"'{parts['bound']}' is not a number; write one like 0.97") from None
        if not 0 < bound < math.inf:
            raise _refused("out-of-range", text, f"a ratio is above 0, so that {bound:g} is not a bound for it")
        if not strict and (bound > 1 if parts["sign"] == "<" else bound < 1):
            message = (
                "it would fail without any change, which is never significant: "
                f"write a bound {'below' if parts['sign'] == '<' else 'above'} 1, or add --strict"
            )
            raise _refused("fails-without-change", text, message)
        return cls(parts["metric"], parts["sign"], bound)

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.bound:g}"

    def covers(self, metric: str) -> bool:
        return self.metric in ("*", metric)

    def is_crossed(self, ratio: float) -> bool:
        """Whether this ratio lies beyond the bound."""
        return ratio < self.bound if self.sign == "<" else ratio > self.bound

    def is_open(self, row: ComparisonRow) -> bool:
        """Whether it cannot be decided on which side of the bound this ratio lies."""
        ratio, interval = row.ratio, row.ratio.interval
        if ratio.value is None:
            return ratio.reference != ratio.new
        if row.is_change and self.is_crossed(ratio.value):
            return False
        return interval is None or self.is_crossed(interval.low) or self.is_crossed(interval.high)


def _refused(code: str, text: str, message: str) -> InputError:
    return InputError(code, message, where=f"--fail-on '{text}'", key="--fail-on", value=text)


Key = tuple[str, str, tuple[tuple[str, int | float | str], ...]]  # a metric of a scope at a point of a sweep
Figures = Mapping[Key, Measurement]


class ComparisonVerdict(StrEnum):
    """What a ratio comes to."""

    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"  # of a metric without a direction
    SAME = "no significant change"  # and any that would matter is ruled out
    UNDECIDED = "undecided"
    NONE = "no ratio"  # a value is zero, negative or not a number


@dataclass(frozen=True)
class ComparisonRow:
    """One metric of one case on both sides."""

    label: str
    category: str
    metric: Metric
    scope: str  # empty for the case as a whole
    at: At
    ratio: Ratio
    parts: tuple[int, int]  # repetitions on each side
    samples: tuple[int, int]
    warnings: tuple[tuple[str, ...], tuple[str, ...]]  # kinds, of each side
    is_significant: bool  # among all ratios that were judged with it

    @cached_property
    def verdict(self) -> ComparisonVerdict:
        """What the ratio comes to."""
        if self.ratio.value is None:
            return ComparisonVerdict.NONE
        if self.ratio.interval is None:
            return ComparisonVerdict.UNDECIDED
        if not self.is_significant:
            is_excluded = self.ruled_out is not None and self.ruled_out <= RESOLVED
            return ComparisonVerdict.SAME if is_excluded else ComparisonVerdict.UNDECIDED
        if self.gain is None:
            return ComparisonVerdict.CHANGED
        return ComparisonVerdict.BETTER if self.gain > 1 else ComparisonVerdict.WORSE

    @cached_property
    def ruled_out(self) -> float | None:
        """The smallest difference, as a part of a value, such that any larger one is ruled out."""
        interval = self.ratio.interval
        return max(interval.high, 1.0 / interval.low) - 1.0 if interval and interval.low > 0 else None

    @cached_property
    def units_needed(self) -> int | None:
        """How many runs, or sessions, of each side would show a difference of 5 %; None where that is unknown."""
        if self.ratio.interval is None:
            return None
        return units_needed(self.ratio.scatter, math.log1p(RESOLVED))

    @property
    def is_change(self) -> bool:
        """Whether it is called a change."""
        return self.verdict in (ComparisonVerdict.BETTER, ComparisonVerdict.WORSE, ComparisonVerdict.CHANGED)

    @cached_property
    def gain(self) -> float | None:
        """The ratio turned so that more than 1 is better; None where neither direction is, or there is no ratio."""
        if not self.ratio.value or self.metric.better is Better.NEITHER:
            return None
        return self.ratio.value if self.metric.better is Better.HIGHER else 1.0 / self.ratio.value


@dataclass(frozen=True)
class Mean:
    """The geometric mean of the gains of some cases; above 1 is better."""

    category: str  # empty for all that were compared
    count: int
    value: float
    interval: Interval | None  # None where one of them has none

    @property
    def is_change(self) -> bool:
        """Whether 1 lies outside the interval."""
        return self.interval is not None and not self.interval.low <= 1.0 <= self.interval.high


@dataclass(frozen=True)
class Broken:
    """A case that succeeded on one side only."""

    label: str
    side: str  # where it did not
    is_new: bool
    reason: str


@dataclass(frozen=True)
class Pairing:
    """One side against the reference."""

    reference: Side
    new: Side
    matched: Matched
    uncompared: tuple[str, ...]  # why some matched cases have no row
    broken: tuple[Broken, ...] = ()
    environment: tuple[Difference, ...] = ()
    rows: tuple[ComparisonRow, ...] = ()
    means: tuple[Mean, ...] = ()  # of all, then of each category where there are several

    def count(self, verdict: ComparisonVerdict) -> int:
        return sum(row.verdict is verdict for row in self.rows)


@dataclass(frozen=True)
class Comparison:
    """Every other side against the first."""

    pairings: tuple[Pairing, ...]
    is_paired: bool = False  # measured in alternation, and compared round by round

    @property
    def rows(self) -> Iterator[ComparisonRow]:
        return (row for pairing in self.pairings for row in pairing.rows)

    @property
    def warnings(self) -> dict[str, str]:
        """The kinds of warnings and the letter that marks each."""
        return warning_marks(kind for row in self.rows for side in row.warnings for kind in side)


@dataclass(frozen=True)
class Violation:
    """A ratio beyond a limit, or a case that no longer succeeds."""

    limit: Limit
    pairing: Pairing
    label: str
    row: ComparisonRow | None
    reason: str


# Earlier runs of the machines of these runs, but not these themselves, with the metrics named.
Earlier = Callable[[Sequence[Run], Sequence[str]], Sequence[RunRecords]]


def compare(
    sides: Sequence[Side],
    *,
    metrics: Sequence[str] = (),
    also: Sequence[str] = (),
    every: bool = False,
    earlier: Earlier | None = None,
) -> Comparison:
    """Compare every side with the first: by each case's headline, or by the metrics named; `also` by others.

    `earlier` is asked how far runs of a machine scatter where a side has few.
    """
    if len(sides) < 2:
        raise InputError("too-few-sides", "a comparison needs two sides: name a reference and at least one other")
    selection = MetricSelection(tuple(metrics), tuple(also), every)
    pairings = [_pairing(sides[0], side, selection) for side in sides[1:]]
    drafts = [draft for _, drafts in pairings for draft in drafts]
    selection.check(drafts, [record for side in sides for record in side.records])
    drafts = _with_histories(drafts, sides, earlier)
    histories = list(zip_longest(*(draft.past for draft in drafts), fillvalue=()))  # of all cases, group by group
    rows = _judged(drafts, ratios([one.before for one in drafts], [one.after for one in drafts], histories))
    made = iter(zip(drafts, rows, strict=True))
    compared = []
    for pairing, ours in pairings:
        mine = list(islice(made, len(ours)))
        compared.append(replace(pairing, rows=tuple(row for _, row in mine), means=tuple(_means(mine))))
    return Comparison(tuple(compared))


def _with_histories(drafts: Sequence[Draft], sides: Sequence[Side], earlier: Earlier | None) -> list[Draft]:
    """The drafts with the session of each part, and with earlier parts of the same case and machine."""
    runs = [one.run for side in sides for one in side.runs]
    past: Sequence[RunRecords] = ()
    if earlier is not None and drafts and any(len(side.runs) < ENOUGH for side in sides):
        past = earlier(runs, sorted({draft.measured.metric.name for draft in drafts}))
    sessions = sessions_of([*runs, *(one.run for one in past)])
    machines = {run.id: machine_key(run.environment) for run in runs}
    stored: dict[tuple[str, str, Key], dict[tuple[str | None, ...], list[RepeatSamples]]] = {}
    for one in past:
        machine, software = machine_key(one.run.environment), _software(one.run)
        for record in one.records if machine else ():
            for key, measured in _figures(record).items():
                part = RepeatSamples(measured, (), one.run.id, sessions[one.run.id])
                of_case = stored.setdefault((machine, record.case.key, key), {})
                of_case.setdefault(software, []).append(part)

    def completed(draft: Draft) -> Draft:
        sides = ((draft.pair.reference, draft.before), (draft.pair.new, draft.after))
        known: dict[tuple[str, str, Key], dict[tuple[str | None, ...], list[RepeatSamples]]] = {}
        for pool, parts in sides if stored else ():
            case, metric = pool.case.key, _key(draft.measured)
            places = [(machines.get(part.run, ""), case, metric) for part in parts]
            known |= {place: stored[place] for place in places if place in stored}
        before, after = (
            [RepeatSamples(one, samples, run, sessions.get(run, run)) for one, samples, run, _ in parts]
            for _, parts in sides
        )
        past_parts = [parts for of_case in known.values() for parts in of_case.values()]
        return draft._replace(before=before, after=after, past=past_parts)

    return [completed(draft) for draft in drafts]


def _software(run: Run) -> tuple[str | None, ...]:
    """What a new version of moves figures: runs of different ones do not show how far runs scatter."""
    of = run.environment
    return run.version, of.driver.version if of.driver else None, of.software.packages.get("torch")


def _judged(drafts: Sequence[Draft], ratios_of_drafts: Sequence[Ratio]) -> list[ComparisonRow]:
    """Rows with verdicts: which of all ratios are changes is decided for all together."""
    called = significant([ratio.chance for ratio in ratios_of_drafts], FALSE_ALARMS)
    return [
        ComparisonRow(
            label=pair.label,
            category=pair.reference.case.category,
            metric=measured.metric,
            scope=measured.scope,
            at=measured.at,
            ratio=ratio,
            parts=(len(before), len(after)),
            samples=(
                sum([part.measurement.summary.count for part in before]),
                sum([part.measurement.summary.count for part in after]),
            ),
            warnings=(_warnings(pair.reference), _warnings(pair.new)),
            is_significant=is_significant,
        )
        for (pair, measured, before, after, _), ratio, is_significant in zip(
            drafts, ratios_of_drafts, called, strict=True
        )
    ]


def violations(comparison: Comparison, limits: Iterable[Limit], *, strict: bool = False) -> list[Violation]:
    """What crosses a limit: the ratio lies beyond it and is a significant change; strictly, without the second.

    A case that succeeded in the reference and not on the new side crosses every limit that is about it.
    """
    crossed = []
    for limit in limits:
        rows = [row for row in comparison.rows if limit.covers(row.metric.name)]
        gone = [broken for pairing in comparison.pairings for broken in pairing.broken if broken.is_new]
        if not rows and not gone:
            names = {row.metric.name for row in comparison.rows}
            raise unknown("metric in --fail-on", limit.metric, names, key="--fail-on")
        for pairing in comparison.pairings:
            for row in pairing.rows:
                value = row.ratio.value
                is_meant = limit.covers(row.metric.name) and (strict or row.is_change)
                if is_meant and value is not None and limit.is_crossed(value):
                    crossed.append(Violation(limit, pairing, row.label, row, ""))
            crossed += [Violation(limit, pairing, one.label, None, one.reason) for one in pairing.broken if one.is_new]
    return crossed


@dataclass(frozen=True)
class Undecided:
    """A ratio of which it is open on which side of a limit it lies."""

    limit: Limit
    pairing: Pairing
    row: ComparisonRow


def undecided(comparison: Comparison, limits: Iterable[Limit]) -> list[Undecided]:
    """What neither crosses a limit nor is shown not to: its interval reaches beyond the limit, or there is none."""
    return [
        Undecided(limit, pairing, row)
        for limit in limits
        for pairing in comparison.pairings
        for row in pairing.rows
        if limit.covers(row.metric.name) and limit.is_open(row)
    ]


@dataclass(frozen=True)
class MetricSelection:
    """Which metrics to compare."""

    names: tuple[str, ...] = ()  # instead of the headline
    also: tuple[str, ...] = ()
    every: bool = False

    def keys(self, records: tuple[Record, Record], before: Figures, after: Figures) -> list[Key]:
        """Those that both sides have, the headline first."""
        keys = [self._headline(records, before, after)] if not self.names else []
        for name in (*self.names, *self.also):
            # The metric of the case as a whole, otherwise at every point and of every rank.
            whole: Key = (name, "", ())
            keys += [whole] if whole in before else [key for key in before if key[0] == name]
        keys += before if self.every else []
        return [key for key in dict.fromkeys(keys) if key is not None and key in before and key in after]

    def check(self, drafts: Sequence[Draft], records: Iterable[Record]) -> None:
        """Refuse a metric that was named and is in none of the drafts."""
        for name in (*self.names, *self.also):
            if any(draft.measured.metric.name == name for draft in drafts):
                continue
            names = {m.metric.name for record in records for m in record.measurements}
            if name not in names:
                raise unknown("metric", name, names)
            message = f"no case that both sides have has the metric '{name}' on both"
            raise InputError("metric-not-in-common", message, value=name)

    def _headline(self, records: tuple[Record, Record], before: Figures, after: Figures) -> Key | None:
        """The reference's or the new side's, if the other has it, too; otherwise the first with a direction."""
        for record in records:
            headline = headline_of(record)
            if headline is not None and (key := _key(headline)) in before and key in after:
                return key
        directed = (key for key, measured in before.items() if measured.metric.better is not Better.NEITHER)
        return next((key for key in directed if key in after), None)


class Draft(NamedTuple):
    """What a row is made of."""

    pair: Match
    measured: Measurement
    before: list[RepeatSamples]
    after: list[RepeatSamples]
    past: Sequence[Sequence[RepeatSamples]] = ()  # of the same case and machine; each machine and case by itself


def _pairing(reference: Side, new: Side, selection: MetricSelection) -> tuple[Pairing, list[Draft]]:
    matched = match(reference, new)
    if not matched.matches:
        message = (
            f"'{reference.name}' and '{new.name}' have no case in common: "
            f"the one has {shortened(matched.only_reference)}, the other {shortened(matched.only_new)}"
        )
        raise InputError("no-case-in-common", message, value=new.name)
    drafts: list[Draft] = []
    broken: list[Broken] = []
    uncompared: list[str] = []
    for pair in matched.matches:
        bad = [side for side in ((pair.reference, reference), (pair.new, new)) if not side[0].good]
        if bad:
            for pool, side in bad if len(bad) == 1 else ():  # where neither side has it, nothing changed
                last = pool.records[-1]
                reason = f"{last.outcome.value}: {last.cause.message}" if last.cause else last.outcome.value
                broken.append(Broken(pair.label, side.name, side is new, reason))
            continue
        made, why = _drafts(pair, selection)
        drafts += made
        uncompared += [f"{pair.label}: {why}"] if why else []
    targets = [pool.case.target for pair in matched.matches for pool in (pair.reference, pair.new)]
    pairing = Pairing(
        reference=reference,
        new=new,
        matched=matched,
        broken=tuple(broken),
        uncompared=tuple(uncompared),
        environment=environment_differences(reference, new, on_gpus=any(map(is_accelerator, targets))),
    )
    return pairing, drafts


def _drafts(pair: Match, selection: MetricSelection) -> tuple[list[Draft], str]:
    before = [(record.run_id, _figures(record)) for record in pair.reference.good]
    after = [(record.run_id, _figures(record)) for record in pair.new.good]
    first = (pair.reference.good[0], pair.new.good[0])
    made: list[Draft] = []
    for key in selection.keys(first, before[0][1], after[0][1]):
        measured, other = before[0][1][key], after[0][1][key]
        if measured.metric.unit != other.metric.unit:
            return made, f"'{key[0]}' is in {measured.metric.unit} and in {other.metric.unit}"
        parts = [[_repeat_samples(one, key, run) for run, one in side if key in one] for side in (before, after)]
        made.append(Draft(pair, measured, parts[0], parts[1]))
    return made, "" if made or selection.names else "no metric that both sides have"


def _figures(record: Record) -> dict[Key, Measurement]:
    """The measurements of the case as a whole and at its points; those of single ranks where it has no other."""
    whole = {measured.metric.name for measured in record.measurements if not measured.scope}
    return {
        _key(measured): measured
        for measured in record.measurements
        if not measured.scope or measured.metric.name not in whole
    }


def _key(measured: Measurement) -> Key:
    return measured.metric.name, measured.scope, tuple(measured.at.items()) if measured.at else ()


def _repeat_samples(index: Figures, key: Key, run: str = "") -> RepeatSamples:
    """The metric with the samples behind it."""
    measured = index[key]
    source = index.get((measured.derived_from, *key[1:])) if measured.derived_from else measured
    return RepeatSamples(measured, source.sample_array() if source is not None else (), run)


def _warnings(pool: Pool) -> tuple[str, ...]:
    return tuple(dict.fromkeys([warning.kind for record in pool.good for warning in record.warnings]))


def _means(judged: Sequence[tuple[Draft, ComparisonRow]], *, is_paired: bool = False) -> Iterator[Mean]:
    """One metric of each case counts: several that say the same would weigh it twice."""
    first: dict[str, tuple[Draft, ComparisonRow]] = {}
    for draft, row in judged:
        if row.gain is not None and not row.at and not row.scope:
            first.setdefault(row.label, (draft, row))
    if len(first) < 2:
        return
    groups = group_by(first.values(), lambda one: one[1].category)
    for category, chosen in {"": list(first.values()), **(groups if len(groups) > 1 else {})}.items():
        gains = [math.log(row.gain) for _, row in chosen if row.gain]
        error, freedom = _paired_error(chosen) if is_paired else _error_of_mean(chosen)
        yield _mean(category, gains, error, freedom)


def _mean(category: str, gains: Sequence[float], error: float, freedom: float) -> Mean:
    """Of these cases and no others: what differs between cases is not an error."""
    centre = math.fsum(gains) / len(gains)
    if not math.isfinite(error):
        return Mean(category, len(gains), math.exp(centre), None)
    reach = student_quantile(0.5 + CONFIDENCE / 2.0, freedom) * error
    interval = Interval(low=math.exp(centre - reach), high=math.exp(centre + reach), confidence=CONFIDENCE)
    return Mean(category, len(gains), math.exp(centre), interval)


def _error_of_mean(chosen: Sequence[tuple[Draft, ComparisonRow]]) -> tuple[float, float]:
    """Of the mean over cases in each run, as if it were a case: what shifts a run or a session shifts all its cases."""
    signs = [1.0 if row.metric.better is Better.HIGHER else -1.0 for _, row in chosen]
    drafts = [draft for draft, _ in chosen]
    sides = [_mean_of_cases([getattr(one, name) for one in drafts], signs) for name in ("before", "after")]
    if not all(sides):
        return math.nan, 1.0
    groups = zip_longest(*(one.past for one in drafts), fillvalue=())
    past = [[_mean_of_cases(group, signs, is_whole=False)] for group in groups]
    mean = model_differences([sides[0]], [sides[1]], past)
    freedom = min(max(float(mean.freedoms[0]), 1.0), MOST_FREEDOM)
    variance = float(mean.variances[0])
    return (math.nan if math.isnan(variance) else math.sqrt(max(variance, 2 * FLOOR**2))), freedom


def _mean_of_cases(
    cases: Sequence[Sequence[RepeatSamples]], signs: Sequence[float], *, is_whole: bool = True
) -> list[Part]:
    """A part for each run that has all cases; none if one lacks some and that matters."""
    logs: dict[tuple[str, str], list[float]] = {}
    for parts, sign in zip(cases, signs, strict=True):
        for place, same in group_by(parts, lambda part: (part.session, part.run)).items():
            values = [part.measurement.value for part in same]
            log = math.fsum(math.log(value) for value in values) if min(values) > 0 else math.nan
            logs.setdefault(place, []).append(sign * log / len(values))
    complete = {place: each for place, each in logs.items() if len(each) == len(cases)}
    if is_whole and len(complete) < len(logs):
        return []
    return [Part(session, run, math.fsum(each) / len(each)) for (session, run), each in complete.items()]


def _paired_error(chosen: Sequence[tuple[Draft, ComparisonRow]]) -> tuple[float, float]:
    """Rounds of different cases were taken at different times: their errors are independent."""
    errors = [(row.ratio.error, row.ratio.freedom) for _, row in chosen if row.ratio.error is not None]
    if len(errors) < len(chosen):
        return math.nan, 1.0
    variance = math.fsum(error**2 for error, _ in errors)
    freedom = variance**2 / math.fsum(error**4 / freedom for error, freedom in errors)
    return math.sqrt(variance) / len(errors), float(max(1, min(MOST_FREEDOM, math.floor(freedom + 1e-9))))


def side_of(case: Case) -> int | None:
    """0 for A, 1 for B, None for what belongs to neither."""
    return next((index for index, mark in enumerate(MARKS) if case.title.endswith(mark)), None)


def is_interleaved(records: RunRecords) -> bool:
    """Whether every case of the run belongs to a side."""
    cases = records.run.cases
    return bool(cases) and all(side_of(case) is not None for case in cases)


def compare_paired(
    records: RunRecords, *, metrics: Sequence[str] = (), also: Sequence[str] = (), every: bool = False
) -> Comparison:
    """The paired ratio B / A of every case, over the rounds in which both succeeded."""
    rounds: dict[tuple[str, str], list[tuple[Record, Record]]] = {}
    unpaired: list[str] = []
    by_index = {record.case.index: record for record in records.records}
    ordered = sorted(records.run.cases, key=lambda case: case.index)
    # A and B of a round are next to each other in the run, whichever came first.
    for pair_of_cases in zip(ordered[::2], ordered[1::2], strict=False):
        one, other = (by_index.get(case.index) for case in sorted(pair_of_cases, key=lambda case: side_of(case) or 0))
        if one is not None and other is not None and one.outcome is other.outcome is Outcome.OK:
            rounds.setdefault((one.case.key, other.case.key), []).append((one, other))
        else:
            failed = next((r for r in (one, other) if r is not None and r.outcome is not Outcome.OK), None)
            end = f"{failed.case.title}, round {failed.case.repeat}: {failed.outcome.value}" if failed else "not run"
            unpaired.append(end)
    if not rounds:
        message = f"run '{records.run.id}' has no round in which both sides succeeded: see 'paceline report'"
        raise InputError("no-complete-round", message, value=records.run.id)
    pairs = [_paired_match(records_of_case) for records_of_case in rounds.values()]
    selection = MetricSelection(tuple(metrics), tuple(also), every)
    drafts: list[Draft] = []
    for pair, records_of_case in zip(pairs, rounds.values(), strict=True):
        both = [(_figures(one), _figures(other)) for one, other in records_of_case]
        for key in selection.keys(records_of_case[0], *both[0]):
            complete = [(one, other) for one, other in both if key in one and key in other]
            before = [_repeat_samples(one, key) for one, _ in complete]
            after = [_repeat_samples(other, key) for _, other in complete]
            drafts.append(Draft(pair, both[0][0][key], before, after))
    selection.check(drafts, records.records)
    paired_ratios = [
        ratio_of_rounds([(one.measurement.value, other.measurement.value) for one, other in zip(a, b, strict=True)])
        for _, _, a, b, _ in drafts
    ]
    sides = []
    for index, name in enumerate("AB"):
        # What is particular to this side, where all cases agree on it.
        shared = [text for text in _particular(pairs[0], index) if all(text in _particular(p, index) for p in pairs)]
        mine = [record for record in records.records if side_of(record.case) == index]
        title = f"{name} ({', '.join(shared)})" if shared else name
        sides.append(Side(title, (RunRecords(run=records.run, records=mine),)))
    reference, new = sides
    rows = tuple(_judged(drafts, paired_ratios))
    pairing = Pairing(
        reference,
        new,
        Matched(tuple(pairs), (), ()),
        tuple(dict.fromkeys(unpaired)),
        rows=rows,
        means=tuple(_means(list(zip(drafts, rows, strict=True)), is_paired=True)),
    )
    return Comparison((pairing,), is_paired=True)


def _particular(pair: Match, index: int) -> list[str]:
    """What one side sets otherwise than the other; where that is no parameter, the words of its title alone."""
    if pair.differences:
        return sorted(f"{one.name}={(one.reference, one.new)[index]}" for one in pair.differences)
    titles = [pool.case.title.removesuffix(mark) for pool, mark in zip((pair.reference, pair.new), MARKS, strict=True)]
    return [word for word in titles[index].split() if word not in titles[1 - index].split()]


def _paired_match(rounds: Sequence[tuple[Record, Record]]) -> Match:
    reference, new = (Pool(side[0].case, tuple(side)) for side in zip(*rounds, strict=True))
    names = [pool.case.title.removesuffix(mark) for pool, mark in zip((reference, new), MARKS, strict=True)]
    shared = [word for word in names[0].split() if word in names[1].split()]
    label = " ".join(shared) or reference.case.benchmark
    if not label.startswith(reference.case.benchmark):
        label = f"{reference.case.benchmark} {label}"
    return Match(label, reference, new, differences(reference.case, new.case), is_alike=False)
