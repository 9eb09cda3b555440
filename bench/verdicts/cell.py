"""One cell of the table: a sentence of the product, put to the test against data whose truth is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    width: float | None = None  # median width, over that of an interval that knows the process
    most_width: float | None = None
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

    def is_met(self, cells: int = 1) -> bool:
        """Whether the data leave room for the claim, in a table of so many cells."""
        if self.width is not None and self.most_width is not None and self.width > self.most_width:
            return False
        if self.value is not None:
            return self.value <= self.bound if self.at_most else self.value >= self.bound
        if not self.tries:
            return True
        missed = self.hits if self.at_most else self.tries - self.hits
        allowed = self.bound if self.at_most else 1.0 - self.bound
        return at_least(missed, self.wrong_of or self.tries, allowed) >= WRONGLY / cells


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
