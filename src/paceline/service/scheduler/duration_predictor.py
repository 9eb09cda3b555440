"""How long a case will take: predicted from similar cases in the past, with the error that earlier predictions had.

Every case that ends is first predicted from the cases before it. What these predictions missed corrects the next ones,
for each benchmark on each kind of machine, and is the error that they are given.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from paceline.core.case import Case

KEPT = 64  # cases of a benchmark, and predictions of it, that are remembered: the latest
NEAREST = 3
TIMEOUT_SHARE = 0.1  # of the timeout, that a case takes about which there is nothing else
PRIOR_WEIGHT = 3.0  # past predictions that the error which is assumed at first weighs as much as


class Basis(StrEnum):
    """What a prediction is based on, and so how far it is off as long as there are no past predictions."""

    SAME_CASE = "the same case on such a machine"
    OTHER_MACHINE = "the same case on another machine"
    NEAREST = "the nearest parameters"
    BUDGET = "the budget"
    TIMEOUT = "the timeout"


_ASSUMED = {
    Basis.SAME_CASE: 0.15,
    Basis.OTHER_MACHINE: 0.5,
    Basis.NEAREST: 0.5,
    Basis.BUDGET: 0.5,
    Basis.TIMEOUT: 1.5,
}


@dataclass(frozen=True)
class Prediction:
    """Seconds that are as likely too few as too many."""

    seconds: float
    error: float  # deviation of the logarithm of true over predicted seconds
    basis: Basis


@dataclass(frozen=True, slots=True)
class _Past:
    key: str
    parameters: Mapping[str, Any]
    machine: str
    seconds: float
    expected: float | None

    def of_such(self, expected: float | None) -> float:
        """What it would have taken if it were to take as long by its own account as another case does."""
        return self.seconds * (expected / self.expected if expected and self.expected else 1.0)


class History:
    """What cases took, and what predictions of them missed."""

    def __init__(self) -> None:
        self._pasts: dict[str, deque[_Past]] = {}  # of each benchmark
        self._misses: dict[tuple[str, str, Basis], deque[float]] = {}

    def add(self, case: Case, machine: str, seconds: float) -> None:
        """A case has ended after so many seconds on a machine of this kind."""
        if not 0 < seconds < math.inf:
            return
        guess, basis = self._guess(case, machine)
        misses = self._misses.setdefault((case.benchmark, machine, basis), deque(maxlen=KEPT))
        misses.append(math.log(seconds / guess))
        pasts = self._pasts.setdefault(case.benchmark, deque(maxlen=KEPT))
        pasts.append(_Past(case.key, case.parameters, machine, seconds, case.expected))

    def predict(self, case: Case, machine: str) -> Prediction:
        """How long a case takes on a machine of this kind; never more than its timeout lets it."""
        guess, basis = self._guess(case, machine)
        misses = self._misses.get((case.benchmark, machine, basis), ())
        count, assumed = len(misses), _ASSUMED[basis]
        # The median of the same case is right by itself; and two misses are no rule.
        is_biased = basis is not Basis.SAME_CASE and count >= PRIOR_WEIGHT
        bias = median(misses) * count / (count + 1) if is_biased else 0.0
        squares = sum((miss - bias) ** 2 for miss in misses)
        error = math.sqrt((PRIOR_WEIGHT * assumed**2 + squares) / (PRIOR_WEIGHT + count))
        return Prediction(min(guess * math.exp(bias), case.timeout), error, basis)

    def _guess(self, case: Case, machine: str) -> tuple[float, Basis]:
        pasts = self._pasts.get(case.benchmark, ())
        same = [past for past in pasts if past.key == case.key]
        here = [past.seconds for past in same if past.machine == machine]
        if here:
            return median(here), Basis.SAME_CASE
        if same:
            return median(past.seconds for past in same), Basis.OTHER_MACHINE
        near = [past for past in pasts if past.machine == machine] or list(pasts)
        if near:
            all_near = [(_distance(case.parameters, past.parameters), past.of_such(case.expected)) for past in near]
            nearest = sorted(all_near)[:NEAREST]
            weighted = [(1.0 / (0.05 + distance), math.log(seconds)) for distance, seconds in nearest]
            logs = sum(weight * log for weight, log in weighted)
            return math.exp(logs / sum(weight for weight, _ in weighted)), Basis.NEAREST
        if case.expected is not None:
            return case.expected, Basis.BUDGET
        return TIMEOUT_SHARE * case.timeout, Basis.TIMEOUT


def together(predictions: Iterable[Prediction]) -> tuple[float, float]:
    """Seconds and error of cases that run one after the other, each of which misses on its own."""
    parts = list(predictions)
    seconds = sum(part.seconds for part in parts)
    spread = math.sqrt(sum((part.seconds * part.error) ** 2 for part in parts))
    return seconds, spread / seconds if seconds else 0.0


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """How unlike parameters are: doublings apart for numbers, 1 for any other difference."""
    total = 0.0
    for name in one.keys() | other.keys():
        a: Any = one.get(name)
        b: Any = other.get(name)
        if a == b:
            continue
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) and x > 0 for x in (a, b))
        total += abs(math.log2(a / b)) if numbers else 1.0
    return total
