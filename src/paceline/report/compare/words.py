"""The words of a comparison: what a ratio means, and the sentence that answers."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.analysis.compare.verdicts import Comparison, ComparisonRow, ComparisonVerdict, Mean, Pairing, Violation
from paceline.core.metric import Better
from paceline.report.numbers import between, percent, ratio, show_at, show_value
from paceline.report.text import humanize, one_line

_TIMES = frozenset({"s", "ms", "µs", "us", "ns"})
_ORDER = {ComparisonVerdict.WORSE: 0, ComparisonVerdict.BETTER: 1, ComparisonVerdict.CHANGED: 2}


def is_speed(row: ComparisonRow) -> bool:
    """Whether the metric is a time or a rate, so that faster and slower say it."""
    unit = row.metric.unit
    return row.metric.better is not Better.NEITHER and (unit in _TIMES or unit.endswith("/s"))


def gain_words(gain: float, better: str = "faster", worse: str = "slower") -> str:
    """A gain as people say it: `3.1 % slower`, `2.4x faster`; above 1 is better."""
    word = better if gain >= 1 else worse
    if gain >= 2 or gain <= 0.5:
        return f"{max(gain, 1 / gain):.3g}x {word}"
    return f"{percent(abs(gain - 1))} {word}"


def change_words(row: ComparisonRow) -> str:
    """What the ratio says, whether it is significant or not."""
    gain, value = row.gain, row.ratio.value
    if value is None:
        return "no ratio: a value is zero, negative or no number"
    if gain is not None and is_speed(row):
        return gain_words(gain)
    words = gain_words(value, "higher", "lower")
    return words if gain is None or gain == 1 else f"{words}, {'better' if gain > 1 else 'worse'}"


def verdict_words(row: ComparisonRow) -> str:
    """What it comes to."""
    if row.verdict is ComparisonVerdict.SAME:
        return "no significant change"
    if row.verdict is ComparisonVerdict.SINGLE:
        return f"{change_words(row)}; one value, no interval"
    return change_words(row)


def metric_words(row: ComparisonRow) -> str:
    """The metric's name, and the point of a sweep or the rank that it was measured at."""
    at = f" at {show_at(row.at)}" if row.at else ""
    return one_line(f"{humanize(row.metric.name)}{at} {row.scope}")


def ordered(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """What got worse first, the most first; then what got better; then the rest as it was measured."""
    return sorted(rows, key=lambda row: (_ORDER.get(row.verdict, 3), _weight(row)))


def _weight(row: ComparisonRow) -> float:
    gain = row.gain
    if gain is None or row.verdict not in (ComparisonVerdict.WORSE, ComparisonVerdict.BETTER):
        return 0.0
    return gain if row.verdict is ComparisonVerdict.WORSE else -gain


def mean_words(mean: Mean) -> str:
    """The geometric mean with its interval, and whether it is a change."""
    gained = gain_words(mean.value, "better", "worse")
    if mean.interval is None:
        return f"{gained} on the geometric mean, without an interval"
    if not mean.is_change:
        return f"no significant change on the geometric mean ({between(mean.interval)})"
    return f"{gained} on the geometric mean ({between(mean.interval)})"


def answer(pairing: Pairing, *, is_paired: bool = False) -> str:
    """The one sentence that leads."""
    rows = pairing.rows
    if len(rows) == 1 and not pairing.broken:
        return _answer_of_one(rows[0], pairing, is_paired=is_paired)
    parts = []
    of = f" of {len(rows)}"
    first = ordered(rows)
    for verdict, word in (
        (ComparisonVerdict.WORSE, "worse"),
        (ComparisonVerdict.BETTER, "better"),
        (ComparisonVerdict.CHANGED, "changed"),
    ):
        found = [row for row in first if row.verdict is verdict]
        if found:
            most = f"{one_line(found[0].label)}, {change_words(found[0])}"
            parts.append(f"{len(found)}{of} {word} ({'most of all ' if len(found) > 1 else ''}{most})")
            of = ""
    if same := pairing.count(ComparisonVerdict.SAME):
        every = same == len(rows)
        parts.append(
            f"no significant change in any of {same} cases" if every else f"{same}{of} not significantly changed"
        )
        of = ""
    if single := pairing.count(ComparisonVerdict.SINGLE):
        counted = f"all {single}" if single == len(rows) else f"{single}{of}"
        parts.append(f"{counted} with one value on a side, so that no change of it can be called significant")
    if pairing.broken:
        parts.append(f"{len(pairing.broken)} succeeded on one side only")
    if pairing.means:
        parts.append(mean_words(pairing.means[0]))
    if warned := sum(any(row.warnings) for row in rows):
        parts.append(f"{warned} with warnings")
    sentence = "; ".join(parts) or "nothing could be compared"
    return one_line(sentence[:1].upper() + sentence[1:] + ".")


def _answer_of_one(row: ComparisonRow, pairing: Pairing, *, is_paired: bool) -> str:
    who = f"{pairing.new.name} against {pairing.reference.name}: " if is_paired else ""
    sure = f", ratio {ratio(row.ratio.value)} ({between(row.ratio.interval)})" if row.ratio.interval else ""
    values = f"{show_value(row.ratio.reference, row.metric.unit)} to {show_value(row.ratio.new, row.metric.unit)}"
    warned = "; with warnings" if any(row.warnings) else ""
    return one_line(f"{who}{row.label}: {verdict_words(row)} in {metric_words(row)}, {values}{sure}{warned}.")


def about(pairing: Pairing, comparison: Comparison) -> str:
    """What is compared with what."""
    counts = [len(side.runs) for side in (pairing.reference, pairing.new)]
    names = [
        side.name + (f" ({count} runs)" if count > 1 else "")
        for side, count in zip((pairing.reference, pairing.new), counts, strict=True)
    ]
    if comparison.is_paired:
        return f"{names[1]} against {names[0]}, in turns within run {pairing.new.runs[0].run.id}"
    return f"{names[1]} against {names[0]}"


def violation_words(violation: Violation) -> str:
    """One line for what a gate does not let through."""
    against = f"{violation.pairing.new.name} against {violation.pairing.reference.name}"
    if violation.row is None:
        return one_line(f"{violation.label}: did not succeed any more ({violation.reason}) [{against}]")
    row = violation.row
    sure = f", {between(row.ratio.interval)}" if row.ratio.interval else ", no interval"
    return one_line(
        f"{violation.limit}: {violation.label}: {metric_words(row)} ratio {ratio(row.ratio.value)}{sure}: "
        f"{change_words(row)} [{against}]"
    )
