"""What happens to requests while they are under way, in plain lists: nothing is cheaper to write to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

clock = time.monotonic_ns  # one clock for everything, also between processes
_BLOCK = 4096


class Log:
    """One row per request, times in nanoseconds of the monotonic clock; 0 where nothing happened."""

    __slots__ = (
        "answers", "dispatched", "done", "events", "finished", "first", "intended", "kept", "kinds", "number",
        "sent", "size", "status", "told",
    )  # fmt: skip

    def __init__(self, kinds: Sequence[int], keep: int, finished: Callable[[int], None]) -> None:
        self.number = 0
        self.kinds = kinds
        self.finished = finished  # called with the row of every request that came to its end, whichever it was
        self.intended: list[int] = []
        self.dispatched: list[int] = []
        self.sent: list[int] = []
        self.first: list[int] = []
        self.done: list[int] = []
        self.status: list[int] = []
        self.size: list[int] = []  # bytes of the answer
        self.told: list[bytes | None] = []  # what the server said of its own times
        self.events: list[list[tuple[int, bytes]] | None] = []  # pieces of a stream, and when they came
        self.answers: list[tuple[int, bytes]] = []  # kind and body of the first good ones of each kind
        self.kept = dict.fromkeys(set(kinds), keep) if keep else {}

    def add(self, number: int) -> int:
        """Make room for so many more requests; the row of the first of them."""
        row = self.number
        self.number += number
        missing = self.number - len(self.sent)
        if missing > 0:
            room = max(missing, _BLOCK)
            for column in (self.intended, self.dispatched, self.sent, self.first, self.done, self.status, self.size):
                column.extend([0] * room)
            self.told.extend([None] * room)
            self.events.extend([None] * room)
        return row

    def kind(self, row: int) -> int:
        """Which of the prepared requests this one is; where nobody knows how many there will be, they repeat."""
        return self.kinds[row % len(self.kinds)]

    def wants_body(self, kind: int) -> bool:
        """Whether an answer of this kind is one to keep."""
        return self.kept.get(kind, 0) > 0

    def keep_body(self, kind: int, body: bytes) -> None:
        """Keep a good answer, if there are not enough of its kind yet."""
        if self.wants_body(kind):
            self.kept[kind] -= 1
            self.answers.append((kind, body))
