"""A log that does not grow with trouble that lasts: the same message is written once in a while, with its count."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

_EVERY = 600.0  # seconds between two times that the same message is written
_MOST_MESSAGES = 100  # that are remembered: those that came last


class QuietLog:
    """Warnings of one logger."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._written: OrderedDict[str, tuple[float, int]] = OrderedDict()  # when, and how often it came since

    def warning(self, message: str, error: Exception | None = None) -> None:
        """Write a message, with where an error is from, unless that was done lately."""
        with self._lock:
            now = self._clock()
            at, since = self._written.pop(message, (None, 0))
            is_due = at is None or now - at >= _EVERY
            self._written[message] = (now, 0) if at is None or is_due else (at, since + 1)
            if len(self._written) > _MOST_MESSAGES:
                self._written.popitem(last=False)
        if is_due:
            again = f" ({since} times more since the last such message)" if since else ""
            self._log.warning("%s%s", message, again, exc_info=error if at is None else None)
