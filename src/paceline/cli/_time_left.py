"""How long cases will take: said before a run begins, and counted down while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from paceline.core.case import Case
from paceline.core.device import split_target
from paceline.core.quantity import show_duration
from paceline.core.record import Record
from paceline.service.scheduler.duration_predictor import Basis, History


def foreseen(cases: Sequence[Case], past: Iterable[tuple[Case, float]]) -> str:
    """What these cases will take together, judged by what others took, and how good that guess is."""
    history = History()
    for case, seconds in past:
        history.add(case, _device(case), seconds)
    predictions = [history.predict(case, _device(case)) for case in cases]
    measured = sum(one.basis is Basis.SAME_CASE for one in predictions)
    noun = "1 case" if len(cases) == 1 else f"{len(cases):,} cases"
    if measured == len(cases):
        how = "as in earlier runs"
    elif all(one.basis in (Basis.BUDGET, Basis.TIMEOUT) for one in predictions):
        how = "a guess from their budgets"
    else:
        how = f"{measured} of them measured before, the others judged by similar cases or their budgets"
    return f"{noun}, about {_shown(sum(one.seconds for one in predictions))} ({how})"


class TimeLeft:
    """Counts down what is left of a run: each case that ends corrects what the others are expected to take."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._history = History()
        self._cases: dict[int, Case] = {}  # not ended yet
        self._others = self._this = self._begun = 0.0

    def started(self, cases: Sequence[Case]) -> None:
        """These are to be measured."""
        self._cases = {case.index: case for case in cases}
        self._foresee(None)

    def case_started(self, case: Case) -> None:
        """From now on this one takes its time."""
        self._foresee(case)

    def case_ended(self, record: Record) -> None:
        """One is done, which says something of the others."""
        self._cases.pop(record.case.index, None)
        self._history.add(record.case, _device(record.case), record.seconds)
        self._foresee(None)

    def _foresee(self, this: Case | None) -> None:
        self._begun = self._now()
        expected = {case.index: self._history.predict(case, _device(case)).seconds for case in self._cases.values()}
        self._this = expected.pop(this.index, 0.0) if this is not None else 0.0
        self._others = sum(expected.values())

    def __str__(self) -> str:
        """For a display that asks again and again."""
        this = self._this - (self._now() - self._begun)
        if self._this and this < 0:
            after = f"about {_shown(self._others)} after it" if self._others else "the last one"
            return f"longer than expected, {after}"
        return f"about {_shown(max(0.0, this) + self._others)} left"


def _device(case: Case) -> str:
    return split_target(case.target)[0]


def _shown(seconds: float) -> str:
    return show_duration(max(1, round(seconds)))  # parts of a second are noise
