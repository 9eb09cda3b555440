"""What the rounds of an A/B comparison have decided, in one sentence for each case, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from paceline.analysis.compare.sides import Decision, critical, rounds_to_decide
from paceline.analysis.compare.verdicts import Comparison, ComparisonRow
from paceline.core.quantity import show_duration
from paceline.core.stats import CONFIDENCE
from paceline.report.compare import document as compare
from paceline.report.compare.words import change_words, gain_words, metric_words
from paceline.report.document import Document, Lines, Section
from paceline.report.text import between, one_line, percent, ratio

Decided = Sequence[tuple[ComparisonRow, Decision]]


def document(comparison: Comparison, decided: Decided, within: float, round_seconds: float) -> Document:
    """The page of the comparison, led by what was decided."""
    page = compare.document(comparison)
    (block,) = page.blocks
    sentences = [sentence(row, one, within, round_seconds) for row, one in decided]
    if len(sentences) == 1:
        return replace(page, blocks=(replace(block, answer=sentences[0]),))
    sections = (Section("Decided", (Lines(tuple(sentences)),)), *block.sections)
    return replace(page, blocks=(replace(block, sections=sections),))


def sentence(row: ComparisonRow, decided: Decision, within: float, round_seconds: float) -> str:
    """What was decided of one case, and how sure that is; if nothing was, what would decide it."""
    rounds = row.parts[0]
    head = f"{row.label}: "
    after = f"after {counted(rounds)}"
    if decided is Decision.OPEN:
        return one_line(f"{head}cannot be decided {after}{_left_open(row, within, round_seconds)}.")
    if decided is Decision.EQUAL:
        return one_line(
            f"{head}any difference larger than {percent(within)} in {metric_words(row)} is ruled out: B / A is "
            f"{between(row.ratio.interval)}, {after}."
        )
    return one_line(f"{head}B is {_range(row)} in {metric_words(row)}, {after}.")


def counted(rounds: int) -> str:
    """`1 round`, `7 rounds`."""
    return f"{rounds} {'round' if rounds == 1 else 'rounds'}"


def _range(row: ComparisonRow) -> str:
    """By how much, from the end of the interval that is nearer to no change to the other: `slower by 2 % to 4 %`."""
    interval, value = row.ratio.interval, row.ratio.value
    assert interval is not None
    assert value is not None
    word = change_words(row).split(",")[0].split()[-1]
    gains = [interval.low, interval.high]
    if row.gain is not None and word in ("faster", "slower") and row.gain != value:
        gains = [1.0 / interval.high, 1.0 / interval.low]
    gains.sort(key=lambda gain: abs(gain - 1.0))
    amounts = [gain_words(gain, "", "").strip() for gain in gains]
    if any(amount.endswith("x") for amount in amounts):
        return f"{amounts[0]} to {amounts[1]} {word}"
    return f"{word} by {amounts[0]} to {amounts[1]}"


def _left_open(row: ComparisonRow, within: float, round_seconds: float) -> str:
    if row.ratio.interval is None:
        least = next(count for count in range(2, 100) if critical(count, 1.0 - CONFIDENCE) < math.inf)
        return f": it takes at least {least} rounds"
    needed = rounds_to_decide(row.ratio, row.parts[0], within)
    would = "no number of rounds that anyone would wait for is enough with this noise: make it quieter"
    if needed is not None:
        time = "" if math.isnan(round_seconds) else f" ({show_duration(needed * round_seconds)})"
        would = f"about {needed} rounds{time} in all would decide if it stays so"
    return f": B / A is {between(row.ratio.interval)} in {metric_words(row)}; {would}"


def progress(row: ComparisonRow, decided: Decision) -> str:
    """Where a case stands, in a few words."""
    sure = f" ({between(row.ratio.interval)})" if row.ratio.interval else ""
    return f"B / A {ratio(row.ratio.value)}{sure}" + (f", {decided}" if decided is not Decision.OPEN else "")


def data(decided: Decided, within: float) -> Iterator[dict[str, Any]]:
    """The same for programs."""
    for row, one in decided:
        interval = row.ratio.interval
        yield {
            "case": row.label,
            "metric": row.metric.name,
            "decision": one.value,
            "rounds": row.parts[0],
            "ratio": row.ratio.value,
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
            "within": within,
            "chance": row.ratio.chance,
        }
