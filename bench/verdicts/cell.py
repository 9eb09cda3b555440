"""One cell of the table: a sentence of the product, put to the test against data whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

WRONGLY = 0.01  # the chance that a table in which all claims hold is said not to


@dataclass(frozen=True)
class Cell:
    """What was claimed, how often it held, and what else a statistician would ask.

    A share is counted (`hits` of `tries`); any other figure is a `value` with its standard error.
    """

    part: str  # the sentence: throughput interval, compare without a change, ...
    case: str  # the data: AR(1) 0.9, 200 samples
    claim: str  # what is counted: covers, false calls, power, ...
    bound: float
    at_most: bool = False  # the bound is the largest that is allowed, not the least
    hits: int = 0
    tries: int = 0  # those in which something was said
    withheld: int = 0  # beyond those: what could not be said was not
    wrong_of: int | None = None  # where misses are held against more than `tries`: the withheld ones too
    value: float | None = None
    error: float = 0.0  # standard error of `value`
    width: float | None = None  # the median one
    known_width: float = 1.0  # that of an interval that knows the process
    most_width: float | None = None  # of the first over the second
    least_shown: float = 0.0  # the part that must not be withheld for the width to be that of a usual interval
    note: str = ""  # what else to know of it, seconds that it took in virtual time say

    @property
    def measured(self) -> float:
        """The share, or the value; not a number where nothing was said at all."""
        if self.value is not None:
            return self.value
        return self.hits / self.tries if self.tries else math.nan

    @property
    def standard_error(self) -> float:
        """Of what was measured."""
        if self.value is not None or not self.tries:
            return self.error
        return math.sqrt(self.measured * (1.0 - self.measured) / self.tries)

    @property
    def relative_width(self) -> float | None:
        """Over that of an interval that knows the process; None where there is none, or not of usual intervals."""
        if self.width is None or not self.known_width or self.tries < self.least_shown * (self.tries + self.withheld):
            return None
        return self.width / self.known_width

    def is_met(self, cells: int = 1) -> bool:
        """Whether the data leave room for the claim, in a table of so many cells."""
        width = self.relative_width
        if width is not None and self.most_width is not None and width > self.most_width:
            return False
        if self.value is not None:
            return self.value <= self.bound if self.at_most else self.value >= self.bound
        if not self.tries:
            return True
        missed = self.hits if self.at_most else self.tries - self.hits
        allowed = self.bound if self.at_most else 1.0 - self.bound
        return at_least(missed, self.wrong_of or self.tries, allowed) >= WRONGLY / cells


def pooled(shares: Sequence[Sequence[Cell]]) -> Iterator[Cell]:
    """The cells of all shares, each of those that are of it; a share in which nothing was found lacks a cell."""
    alike: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in chain.from_iterable(shares):
        alike.setdefault((cell.part, cell.case, cell.claim), []).append(cell)
    return map(_pooled, alike.values())


def _pooled(shares: Sequence[Cell]) -> Cell:
    """One cell of shares of it that were drawn apart; its width is the mean of their medians.

    That of an interval that knows the process comes from the spread of estimates, so that its squares are averaged.
    """
    first = shares[0]
    widths = [one.width * one.tries for one in shares if one.width is not None]
    shown = sum(one.tries for one in shares if one.width is not None)
    is_alike = all(one.note == first.note for one in shares)
    values = [one.value for one in shares if one.value is not None]
    return replace(
        first,
        hits=sum(one.hits for one in shares),
        tries=sum(one.tries for one in shares),
        withheld=sum(one.withheld for one in shares),
        wrong_of=None if first.wrong_of is None else sum(one.wrong_of or 0 for one in shares),
        value=math.fsum(values) / len(values) if values else None,
        error=math.sqrt(math.fsum(one.error**2 for one in shares)) / len(shares),
        width=math.fsum(widths) / shown if shown else None,
        known_width=math.sqrt(math.fsum(one.known_width**2 for one in shares) / len(shares)),
        note=first.note if is_alike else f"of one share: {first.note}",
    )


def at_least(count: int, tries: int, share: float) -> float:
    """The chance of `count` or more among `tries` that each have this share; the sum runs over the smaller end."""
    if count <= 0:
        return 1.0
    if share <= 0.0:
        return 0.0
    log_odds = [
        math.lgamma(tries + 1)
        - math.lgamma(k + 1)
        - math.lgamma(tries - k + 1)
        + k * math.log(share)
        + (tries - k) * math.log1p(-share)
        for k in range(count, tries + 1)
    ]
    return min(1.0, math.fsum(math.exp(one) for one in log_odds))
