"""Speaking to followers: all at once, so that one that is slow to answer delays nobody."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from paceline.service.engines.base import Assignment, Attempt, Engine, FollowerGone, Report

_SPEAKERS = 16  # followers that are spoken to at once

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Order:
    """What a follower is to be told of an attempt: to begin it, or to stop."""

    follower: str
    attempt: Attempt
    assignment: Assignment | None  # None to stop


class Asking:
    """Questions and orders to the followers of an engine; who does not answer is left for the next time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._speakers = ThreadPoolExecutor(_SPEAKERS, thread_name_prefix="follower")

    def ask(self, asked: Mapping[str, dict[Attempt, int]]) -> dict[str, list[Report]]:
        """What each has to tell beyond what it was heard of; those who do not answer are missing."""
        answers = self._speakers.map(lambda one: self._heard(*one), asked.items())
        told = dict(zip(asked, answers, strict=True))
        return {follower: reports for follower, reports in told.items() if reports is not None}

    def tell(self, orders: Sequence[Order]) -> dict[tuple[str, Attempt], str]:
        """Give orders; one that is not taken has to be given again. Why each of those was not."""
        reasons = self._speakers.map(self._tell, orders)
        return {(order.follower, order.attempt): why for order, why in zip(orders, reasons, strict=True) if why}

    def close(self) -> None:
        """Speak to nobody any more."""
        self._speakers.shutdown(wait=False, cancel_futures=True)

    def _heard(self, follower: str, acknowledged: dict[Attempt, int]) -> list[Report] | None:
        try:
            return list(self._engine.poll(follower, acknowledged))
        except (FollowerGone, OSError) as error:
            _log.warning("follower %s: %s", follower, error)
            return None

    def _tell(self, order: Order) -> str:
        try:
            if order.assignment is None:
                self._engine.cancel(order.follower, *order.attempt)
            else:
                self._engine.begin(order.follower, order.assignment)
        except (FollowerGone, OSError) as error:
            _log.warning("follower %s: %s", order.follower, error)
            return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        return ""
