"""What a comparison of two sides comes to: for every case and metric a ratio and its verdict, and means over cases."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from paceline.analysis.compare.matching import Difference, Matched, Side
from paceline.analysis.compare.significance import Ratio
from paceline.analysis.summary import warning_marks
from paceline.core.errors import InputError, unknown
from paceline.core.metric import Better, Metric
from paceline.core.record import At
from paceline.core.stats import Interval
from paceline.core.uncertainty import units_needed

RESOLVED = 0.05  # a difference that a comparison is to show or to rule out


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
    published: tuple[bool, bool] = (False, False)  # of each side: whether others published it

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


@dataclass(frozen=True)
class Violation:
    """A ratio beyond a limit, or a case that no longer succeeds."""

    limit: Limit
    pairing: Pairing
    label: str
    row: ComparisonRow | None
    reason: str


@dataclass(frozen=True)
class Undecided:
    """A ratio of which it is open on which side of a limit it lies."""

    limit: Limit
    pairing: Pairing
    row: ComparisonRow


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


def undecided(comparison: Comparison, limits: Iterable[Limit]) -> list[Undecided]:
    """What neither crosses a limit nor is shown not to: its interval reaches beyond the limit, or there is none."""
    return [
        Undecided(limit, pairing, row)
        for limit in limits
        for pairing in comparison.pairings
        for row in pairing.rows
        if limit.covers(row.metric.name) and limit.is_open(row)
    ]
