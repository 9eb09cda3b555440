"""The gate of a comparison: limits on ratios, what crosses them, and what can be neither passed nor failed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.analysis.compare.verdicts import Comparison, ComparisonRow, Pairing
from paceline.core.errors import InputError, unknown

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
