"""What a comparison is made of: the metrics chosen, their samples on each side, and the rows and means of these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from paceline.analysis.compare.matching import Match, Pool
from paceline.analysis.compare.significance import (
    FALSE_ALARMS,
    FLOOR,
    MOST_FREEDOM,
    Ratio,
    RepeatSamples,
    significant,
)
from paceline.analysis.compare.verdicts import ComparisonRow, Mean
from paceline.analysis.published.records import is_published
from paceline.analysis.summary import headline_of
from paceline.core.errors import InputError, unknown
from paceline.core.grouping import group_by
from paceline.core.metric import Better
from paceline.core.record import Measurement, Record
from paceline.core.stats import CONFIDENCE, Interval, student_quantile
from paceline.core.uncertainty import Part, differences

Key = tuple[str, str, tuple[tuple[str, int | float | str], ...]]  # a metric of a scope at a point of a sweep
Figures = Mapping[Key, Measurement]


class Draft(NamedTuple):
    """What a row is made of."""

    pair: Match
    measured: Measurement
    before: list[RepeatSamples]
    after: list[RepeatSamples]
    past: Sequence[Sequence[RepeatSamples]] = ()  # of the same case and machine; each machine and case by itself


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
            if headline is not None and (key := key_of(headline)) in before and key in after:
                return key
        directed = (key for key, measured in before.items() if measured.metric.better is not Better.NEITHER)
        return next((key for key in directed if key in after), None)


def figures_of(record: Record) -> dict[Key, Measurement]:
    """The measurements of the case as a whole and at its points; those of single ranks where it has no other."""
    whole = {measured.metric.name for measured in record.measurements if not measured.scope}
    return {
        key_of(measured): measured
        for measured in record.measurements
        if not measured.scope or measured.metric.name not in whole
    }


def key_of(measured: Measurement) -> Key:
    return measured.metric.name, measured.scope, tuple(measured.at.items()) if measured.at else ()


def repeat_samples(index: Figures, key: Key, run: str = "") -> RepeatSamples:
    """The metric with the samples behind it."""
    measured = index[key]
    source = index.get((measured.derived_from, *key[1:])) if measured.derived_from else measured
    return RepeatSamples(measured, source.sample_array() if source is not None else (), run)


def judged_rows(drafts: Sequence[Draft], ratios_of_drafts: Sequence[Ratio]) -> list[ComparisonRow]:
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
            published=(is_published(pair.reference.records[0]), is_published(pair.new.records[0])),
        )
        for (pair, measured, before, after, _), ratio, is_significant in zip(
            drafts, ratios_of_drafts, called, strict=True
        )
    ]


def _warnings(pool: Pool) -> tuple[str, ...]:
    return tuple(dict.fromkeys([warning.kind for record in pool.good for warning in record.warnings]))


def means_of(judged: Sequence[tuple[Draft, ComparisonRow]], *, is_paired: bool = False) -> Iterator[Mean]:
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
    mean = differences([sides[0]], [sides[1]], past)
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
