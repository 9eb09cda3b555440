"""Answers that many ask for, computed once for all of them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

MOST_ANSWERS = 16  # that are cached: those that were asked for last
_REST = 10.0  # times as long as it took to compute an answer it is given again, whatever is new

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Computed(Generic[Answer]):
    answer: Answer
    edition: Hashable
    at: float
    seconds: float


class AnswerCache(Generic[Answer]):
    """The latest answers to the latest questions.

    However many ask, at most one is computed at any time; and whoever asks the same again and again, while results
    come in, makes the leader work a tenth of the time at most, unless an answer is always the latest.
    """

    def __init__(
        self,
        edition: Callable[[], Hashable],
        clock: Callable[[], float] = time.monotonic,
        longest: float = 60.0,  # seconds that an answer is given without being computed again
        *,
        is_latest: bool = False,
    ) -> None:
        self._edition = edition
        self._clock = clock
        self._longest = longest
        self._is_latest = is_latest
        self._lock = threading.Lock()
        self._computed: OrderedDict[Hashable, _Computed[Answer]] = OrderedDict()

    def get(self, question: Hashable, compute: Callable[[], Answer]) -> Answer:
        """The answer to a question; what `compute` raises is not cached."""
        with self._lock:
            cached = self._computed.get(question)
            edition, begun = self._edition(), self._clock()
            age = begun - cached.at if cached else 0.0
            is_current = cached is not None and cached.edition == edition and age < self._longest
            is_resting = cached is not None and not self._is_latest and age < cached.seconds * _REST
            if cached is None or not (is_current or is_resting):
                answer = compute()
                ended = self._clock()
                cached = self._computed[question] = _Computed(answer, edition, ended, ended - begun)
            self._computed.move_to_end(question)
            while len(self._computed) > MOST_ANSWERS:
                self._computed.popitem(last=False)
            return cached.answer
