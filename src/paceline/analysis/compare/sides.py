"""What a comparison is made of: the metrics chosen, their samples on each side, and the rows and means of these.

Two sides that were measured in alternation within one run, A B B A ..., are compared round by round: drift cancels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice, zip_longest
from typing import NamedTuple

from paceline.analysis.compare.significance import (
    FALSE_ALARMS,
    FLOOR,
    MOST_FREEDOM,
    Ratio,
    RepeatSamples,
    around,
    ratio_of_pairs,
    ratios,
    significant,
)
from paceline.analysis.compare.verdicts import (
    Broken,
    Comparison,
    ComparisonRow,
    Match,
    Matched,
    Mean,
    Pairing,
    Pool,
    Side,
    environment_differences,
    match,
    parameters_apart,
)
from paceline.analysis.published import is_published
from paceline.analysis.summary import headline_of, shortened
from paceline.core.case import Case
from paceline.core.device import is_accelerator
from paceline.core.errors import InputError, unknown
from paceline.core.grouping import group_by
from paceline.core.metric import Better
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords, machine_key, sessions_of
from paceline.core.stats import CONFIDENCE, student_quantile
from paceline.core.uncertainty import ENOUGH, Part, differences

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
    return Mean(category, len(gains), math.exp(centre), around(centre, reach, CONFIDENCE))


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


# Earlier runs of the machines of these runs, but not these themselves, with the metrics named.
Earlier = Callable[[Sequence[Run], Sequence[str]], Sequence[RunRecords]]


def require_different(sides: Sequence[Side]) -> None:
    """Refuse a side with the reference's own records, as of two tags of the same runs."""
    first, *others = ([*side.records] for side in sides)
    if first in others:
        name = sides[1 + others.index(first)].name
        message = f"'{sides[0].name}' and '{name}' are the same records: name other runs to compare them with"
        raise InputError("same-runs", message, value=name)


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
    rows = judged_rows(drafts, ratios([one.before for one in drafts], [one.after for one in drafts], histories))
    made = iter(zip(drafts, rows, strict=True))
    compared = []
    for pairing, ours in pairings:
        mine = list(islice(made, len(ours)))
        compared.append(replace(pairing, rows=tuple(row for _, row in mine), means=tuple(means_of(mine))))
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
            for key, measured in figures_of(record).items():
                part = RepeatSamples(measured, (), one.run.id, sessions[one.run.id])
                of_case = stored.setdefault((machine, record.case.key, key), {})
                of_case.setdefault(software, []).append(part)

    def completed(draft: Draft) -> Draft:
        sides = ((draft.pair.reference, draft.before), (draft.pair.new, draft.after))
        known: dict[tuple[str, str, Key], dict[tuple[str | None, ...], list[RepeatSamples]]] = {}
        for pool, parts in sides if stored else ():
            case, metric = pool.case.key, key_of(draft.measured)
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
    before = [(record.run_id, figures_of(record)) for record in pair.reference.good]
    after = [(record.run_id, figures_of(record)) for record in pair.new.good]
    first = (pair.reference.good[0], pair.new.good[0])
    made: list[Draft] = []
    for key in selection.keys(first, before[0][1], after[0][1]):
        measured, other = before[0][1][key], after[0][1][key]
        if measured.metric.unit != other.metric.unit:
            return made, f"'{key[0]}' is in {measured.metric.unit} and in {other.metric.unit}"
        parts = [[repeat_samples(one, key, run) for run, one in side if key in one] for side in (before, after)]
        made.append(Draft(pair, measured, parts[0], parts[1]))
    return made, "" if made or selection.names else "no metric that both sides have"


MARKS = (" [A]", " [B]")  # of the sides of an alternation, at the end of a title


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
        both = [(figures_of(one), figures_of(other)) for one, other in records_of_case]
        for key in selection.keys(records_of_case[0], *both[0]):
            complete = [(one, other) for one, other in both if key in one and key in other]
            before = [repeat_samples(one, key) for one, _ in complete]
            after = [repeat_samples(other, key) for _, other in complete]
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
    rows = tuple(judged_rows(drafts, paired_ratios))
    pairing = Pairing(
        reference,
        new,
        Matched(tuple(pairs), (), ()),
        tuple(dict.fromkeys(unpaired)),
        rows=rows,
        means=tuple(means_of(list(zip(drafts, rows, strict=True)), is_paired=True)),
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
    return Match(label, reference, new, parameters_apart(reference.case, new.case), is_alike=False)


PRIOR = 1.0  # variance of the difference that is expected, in units of the variance of one round's logarithm
MOST_ROUNDS = 10_000  # beyond which nobody would wait


class Decision(StrEnum):
    """What the rounds so far have decided."""

    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"  # of a metric without a direction
    EQUAL = "equal"  # any difference larger than the bound is ruled out
    OPEN = "undecided"


def ratio_of_rounds(pairs: Sequence[tuple[float, float]], confidence: float = CONFIDENCE) -> Ratio:
    """The ratio over rounds, with an interval and a p-value that hold whenever one stops."""
    ratio = ratio_of_pairs(pairs, confidence)
    if ratio.value is None or ratio.error is None:
        return ratio
    centre, reach = math.log(ratio.value), critical(len(pairs), 1.0 - confidence) * ratio.error
    chance = _chance(abs(centre) / ratio.error, len(pairs))
    if not math.isfinite(reach):
        return ratio._replace(interval=None, chance=chance)
    return ratio._replace(interval=around(centre, reach, confidence), chance=chance)


def critical(rounds: int, false_calls: float) -> float:
    """How many standard errors the mean must be off before it is a difference; infinite with too few rounds."""
    spread = 1.0 + rounds * PRIOR
    threshold = (math.sqrt(spread) / false_calls) ** (2.0 / rounds)
    if rounds < 2 or threshold >= spread:
        return math.inf
    return math.sqrt((rounds - 1) * (threshold - 1.0) / (1.0 - threshold / spread))


def decision(ratio: Ratio, better: Better, within: float, *, is_change: bool) -> Decision:
    """What a ratio comes to; a difference that is surely smaller than `within` counts as none."""
    interval = ratio.interval
    if interval is None or ratio.value is None:
        return Decision.OPEN
    if 1.0 / (1.0 + within) < interval.low and interval.high < 1.0 + within:
        return Decision.EQUAL
    if not is_change:
        return Decision.OPEN
    if better is Better.NEITHER:
        return Decision.CHANGED
    return Decision.BETTER if (ratio.value > 1.0) == (better is Better.HIGHER) else Decision.WORSE


def rounds_to_decide(ratio: Ratio, rounds: int, within: float, confidence: float = CONFIDENCE) -> int | None:
    """How many rounds in all would decide, if ratio and noise stay as they are; None if more than anyone would wait."""
    if ratio.value is None or ratio.error is None:
        return None
    centre, noise = abs(math.log(ratio.value)), ratio.error * math.sqrt(rounds)
    distance = max(centre, math.log1p(within) - centre)
    count = rounds
    while critical(count, 1.0 - confidence) * noise >= distance * math.sqrt(count):
        count += max(1, count // 50)
        if count > MOST_ROUNDS:
            return None
    return count


def _chance(distance: float, rounds: int) -> float:
    """The inverse of the mixture's likelihood ratio: as a p-value it holds at every look."""
    spread, square = 1.0 + rounds * PRIOR, distance**2 / (rounds - 1)
    log_ratio = -0.5 * math.log(spread) + 0.5 * rounds * (math.log1p(square) - math.log1p(square / spread))
    return min(1.0, math.exp(-log_ratio))
