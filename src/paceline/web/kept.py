"""Answers that take long to work out: one at a time, and again only once the store has something new."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_MOST = 16  # answers, of those that were asked for last
_REST = 10.0  # times as long as it took to work out an answer it is given again, whatever is new
_LONGEST = 60.0  # seconds that an answer is given without being worked out again

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Made(Generic[Answer]):
    answer: Answer
    edition: Hashable
    at: float
    seconds: float


class Kept(Generic[Answer]):
    """The latest answers to the latest questions.

    However many ask, at most one is worked out at any time; and whoever asks the same again and again, while results
    come in, makes the leader work a tenth of the time at most.
    """

    def __init__(self, edition: Callable[[], Hashable], clock: Callable[[], float] = time.monotonic) -> None:
        self._edition = edition
        self._clock = clock
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, _Made[Answer]] = OrderedDict()

    def get(self, question: Hashable, work_out: Callable[[], Answer]) -> Answer:
        """The answer to a question; what `work_out` raises is not kept."""
        with self._lock:
            known = self._made.get(question)
            edition = self._edition()
            begun = self._clock()
            if known is None or not self._holds(known, edition, begun):
                answer = work_out()
                ended = self._clock()
                known = self._made[question] = _Made(answer, edition, ended, ended - begun)
            self._made.move_to_end(question)
            while len(self._made) > _MOST:
                self._made.popitem(last=False)
            return known.answer

    def _holds(self, made: _Made[Answer], edition: Hashable, now: float) -> bool:
        age = now - made.at
        return age < made.seconds * _REST or (made.edition == edition and age < _LONGEST)
