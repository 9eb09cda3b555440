"""A comparison in sentences: what each row comes to, what would decide it, and the one sentence that leads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.analysis.compare.verdicts import (
    RESOLVED,
    ComparisonRow,
    ComparisonVerdict,
    Mean,
    Pairing,
    Undecided,
    Violation,
)
from paceline.core.metric import Better
from paceline.core.uncertainty import SEPARATE
from paceline.report.text import between, heading, humanize, one_line, percent, ratio, show_at, show_value

LEVEL = 0.0005  # parts from a mean of 1 that no words have
MOST_TIMES = 1e6  # beyond this a factor is the error of an interval from very few runs
_WORDS = {ComparisonVerdict.WORSE: "worse", ComparisonVerdict.BETTER: "better", ComparisonVerdict.CHANGED: "changed"}
_TIMES = ("s", "ms", "µs", "us", "ns")


def gain_words(gain: float, better: str = "faster", worse: str = "slower") -> str:
    """A gain as people say it: `3.1 % slower`, `2.4x faster`; above 1 is better."""
    word = better if gain >= 1 else worse
    if gain >= 2 or gain <= 0.5:
        return f"{_times(gain)} {word}"
    return f"{percent(abs(gain - 1))} {word}"


def _factor(gain: float) -> float:
    return max(gain, 1 / gain) if gain else math.inf  # an end of a wide interval may be too small for a number


def _times(gain: float) -> str:
    factor = _factor(gain)
    if factor > MOST_TIMES:
        return f"more than {MOST_TIMES:,.0f}x"
    return f"{factor:,.0f}x" if factor >= 1000 else f"{factor:.3g}x"


def change_words(row: ComparisonRow) -> str:
    """What the ratio says, whether it is significant or not."""
    if row.ratio.value is None:
        return "no ratio: a value is zero, negative or not a number"
    return _worded(row, row.gain if row.gain and _is_speed(row) else row.ratio.value)


def verdict_words(row: ComparisonRow) -> str:
    """What it comes to, in one of few forms; `remedy` says what would decide it."""
    low, high = gains(row) if _is_speed(row) else _ends(row)
    match row.verdict:
        case ComparisonVerdict.SAME:
            return f"any difference larger than {percent(row.ruled_out or 0.0)} is ruled out"
        case ComparisonVerdict.UNDECIDED if row.ratio.interval is None and row.ratio.units[0] > 1:
            return f"cannot be decided from {row.ratio.units[0]} rounds"
        case ComparisonVerdict.UNDECIDED if row.ratio.interval is None:
            return f"cannot be decided from one {_unit_of(row)} each"
        case ComparisonVerdict.UNDECIDED:
            return f"cannot be decided: {_worded(row, low)} to {_worded(row, high)}"
        case ComparisonVerdict.NONE:
            return change_words(row)
    words = _worded(row, low).rsplit(" ", 1)[-1]
    valued = "" if _is_speed(row) or row.gain is None else f", {row.verdict.value}"
    if low >= 2 or high <= 0.5:
        least, most = sorted((low, high), key=_factor)
        return f"{' to '.join(dict.fromkeys((_times(least), _times(most))))} {words}{valued}"
    nearest, farthest = (percent(part).removesuffix(" %") for part in sorted((abs(low - 1), abs(high - 1))))
    return f"{words} by {nearest} to {farthest} %{valued}"


def remedy(row: ComparisonRow, *, is_paired: bool = False) -> str:
    """What would decide it; nothing where it is decided."""
    if row.verdict is not ComparisonVerdict.UNDECIDED:
        return ""
    unit = "round" if is_paired else row.ratio.level.value
    if row.ratio.interval is None and is_paired:
        return "measure more rounds"
    if any(row.published):
        return _remedy_of_published(row)
    if row.ratio.interval is None:
        if _unit_of(row) == "run":
            return f"repeat with at least {SEPARATE} runs of each side within an hour"
        return f"repeat with both sides in one session, or with at least {SEPARATE} sessions of each"
    return f"{_enough(row, unit)} of each side would show a difference of {RESOLVED:.0%}".replace("%", " %")


def _remedy_of_published(row: ComparisonRow) -> str:
    """A published figure cannot be repeated, and comes without its scatter."""
    if all(row.published):
        return "measure both sides, as published figures come without their scatter"
    if row.ratio.interval is None:
        return f"measure the published side too, or yours in at least {SEPARATE} sessions"
    many = _enough(row, row.ratio.level.value)
    return f"measure the published side too: {many} of each would show a difference of {RESOLVED:.0%}".replace(
        "%", " %"
    )


def _enough(row: ComparisonRow, unit: str) -> str:
    return f"about {row.units_needed} {unit}s" if row.units_needed else f"more than 1,000 {unit}s"


def _unit_of(row: ComparisonRow) -> str:
    """What each side has one of, where nothing can be decided: runs, unless those of a session are several."""
    if all(row.published):
        return "published figure"
    return "run" if row.ratio.runs == (1, 1) else row.ratio.level.value


def _ends(row: ComparisonRow) -> tuple[float, float]:
    """Of the interval, or twice the ratio where there is none."""
    interval, value = row.ratio.interval, row.ratio.value or 1.0
    return (interval.low, interval.high) if interval else (value, value)


def gains(row: ComparisonRow) -> tuple[float, float]:
    """The ends turned so that more than 1 is better."""
    low, high = _ends(row)
    return (1 / high, 1 / low) if row.metric.better is Better.LOWER and low > 0 else (low, high)


def _worded(row: ComparisonRow, ratio: float) -> str:
    """In the words of the metric: what takes time is faster or slower, a size is higher or lower."""
    return gain_words(ratio) if _is_speed(row) else gain_words(ratio, "higher", "lower")


def _is_speed(row: ComparisonRow) -> bool:
    unit = row.metric.unit
    return row.metric.better is not Better.NEITHER and (unit in _TIMES or unit.endswith("/s"))


def metric_words(row: ComparisonRow) -> str:
    """The metric's name, and the point of a sweep or the rank that it was measured at."""
    at = f" at {show_at(row.at)}" if row.at else ""
    return one_line(f"{humanize(row.metric.name)}{at} {row.scope}")


def ordered(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """What got worse first, the most first; then what got better; then the rest as it was measured."""
    order, signs = list(_WORDS), {ComparisonVerdict.WORSE: 1.0, ComparisonVerdict.BETTER: -1.0}

    def key(row: ComparisonRow) -> tuple[int, float]:
        rank = order.index(row.verdict) if row.verdict in order else len(order)
        return rank, signs.get(row.verdict, 0.0) * (row.gain or 0.0)

    return sorted(rows, key=key)


def answer(pairing: Pairing, *, is_paired: bool = False) -> str:
    """The one sentence that leads."""
    rows = ordered(pairing.rows)
    if len(rows) == 1 and not pairing.broken:
        (row,) = rows
        sides = f"{pairing.new.name} against {pairing.reference.name}: " if is_paired else ""
        sure = f", ratio {ratio(row.ratio.value)} ({between(row.ratio.interval)})" if row.ratio.interval else ""
        decide = f"; {advice}" if (advice := remedy(row, is_paired=is_paired)) else ""
        values = f"{show_value(row.ratio.reference, row.metric.unit)} to {show_value(row.ratio.new, row.metric.unit)}"
        warnings = "; with warnings" if any(row.warnings) else ""
        about = f"{sides}{row.label}: {metric_words(row)} {verdict_words(row)}, {values}{sure}"
        return one_line(f"{about}{decide}{warnings}.")
    parts = []
    of = f" of {len(rows)}"
    for verdict, word in _WORDS.items():
        matches = [row for row in rows if row.verdict is verdict]
        if matches:
            most = f"{one_line(matches[0].label)}, {verdict_words(matches[0])}"
            parts.append(f"{len(matches)}{of} {word} ({'most of all ' if len(matches) > 1 else ''}{most})")
            of = ""
    if same := [row.ruled_out or 0.0 for row in rows if row.verdict is ComparisonVerdict.SAME]:
        counted = f"all {len(same)}" if len(same) == len(rows) else f"{len(same)}{of}"
        parts.append(f"in {counted} any difference larger than {percent(max(same))} is ruled out")
        of = ""
    if open_rows := [row for row in rows if row.verdict is ComparisonVerdict.UNDECIDED]:
        counted = f"all {len(open_rows)}" if len(open_rows) == len(rows) else f"{len(open_rows)}{of}"
        alone = {_unit_of(row) for row in open_rows if row.ratio.interval is None}
        why = (
            f" from one {alone.pop()} each" if len(alone) == 1 and not any(r.ratio.interval for r in open_rows) else ""
        )
        parts.append(f"{counted} cannot be decided{why}: {_most_asked(open_rows, is_paired=is_paired)}")
    if pairing.broken:
        parts.append(f"{len(pairing.broken)} succeeded on one side only")
    if pairing.means:
        mean = pairing.means[0]
        interval = f" ({between(mean.interval)})" if mean.interval else ", which is not decided"
        parts.append(f"{mean_words(mean)} on the geometric mean{interval}")
    if warned := sum(any(row.warnings) for row in rows):
        parts.append(f"{warned} with warnings")
    return one_line(heading("; ".join(parts) or "nothing could be compared") + ".")


def _most_asked(rows: Sequence[ComparisonRow], *, is_paired: bool) -> str:
    """What would decide all of these: that of the one that needs the most."""
    return remedy(max(rows, key=lambda row: (row.ratio.interval is None, row.ratio.scatter)), is_paired=is_paired)


def mean_words(mean: Mean) -> str:
    if mean.interval is not None and not mean.is_change:
        largest = max(mean.interval.high, 1 / mean.interval.low) - 1
        return f"any difference larger than {percent(largest)} ruled out" if largest <= RESOLVED else "not decided"
    return "equal" if abs(mean.value - 1) < LEVEL else gain_words(mean.value, "better", "worse")


def violation_words(violation: Violation) -> str:
    """One line for what a gate does not let through."""
    against = f"{violation.pairing.new.name} against {violation.pairing.reference.name}"
    if violation.row is None:
        return one_line(f"{violation.label}: did not succeed any more ({violation.reason}) [{against}]")
    row = violation.row
    sure = f", {between(row.ratio.interval)}" if row.ratio.interval else ", no interval"
    return one_line(
        f"{violation.limit}: {violation.label}: {metric_words(row)} {verdict_words(row)} "
        f"(ratio {ratio(row.ratio.value)}{sure}) [{against}]"
    )


def undecided_words(one: Undecided) -> str:
    """One line for what a gate can neither pass nor fail."""
    row, against = one.row, f"{one.pairing.new.name} against {one.pairing.reference.name}"
    decide = (
        remedy(row) or f"its interval {between(row.ratio.interval)} reaches beyond the bound: repeat with more runs"
    )
    return one_line(f"{one.limit}: {row.label}: {metric_words(row)} {verdict_words(row)}: {decide} [{against}]")
