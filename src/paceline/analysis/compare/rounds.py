"""Compares two sides that were measured in alternation within one run, A B B A ..., round by round: drift cancels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from paceline.analysis.compare.matching import Match, Matched, Pool, Side, differences
from paceline.analysis.compare.sides import (
    Draft,
    MetricSelection,
    figures_of,
    judged_rows,
    means_of,
    repeat_samples,
)
from paceline.analysis.compare.significance import Ratio, ratio_of_pairs
from paceline.analysis.compare.verdicts import Comparison, Pairing
from paceline.core.case import Case
from paceline.core.errors import InputError
from paceline.core.metric import Better
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.stats import CONFIDENCE, Interval

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
    return Match(label, reference, new, differences(reference.case, new.case), is_alike=False)


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
    interval = Interval(low=math.exp(centre - reach), high=math.exp(centre + reach), confidence=confidence)
    return ratio._replace(interval=interval, chance=chance)


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
