"""What became of every request: when it was meant to go, when it went, and when its answer came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]

# Status of a request: what the server said (HTTP's numbers; gRPC's codes are mapped to them), or what befell it here.
OK = 200
UNSENT = 0  # the run ended before it was sent
REFUSED = 1  # no connection
BROKEN = 2  # the connection ended before the whole answer was there
TIMED_OUT = 3
UNREADABLE = 4  # an answer that is not in the protocol
OUT_OF_SOCKETS = 5
FAILED = 500  # the server said so, if only within a stream that it had begun
SHED = 503  # the server said that it has too much to do (429 counts as shed too)

# Stages that are not the server's: what the user's machine does for a request before it leaves, and with its answer.
CLIENT_PRE, CLIENT_POST = "client pre", "client post"

clock = time.monotonic_ns  # one clock for everything, also between processes
_BLOCK = 4096


@dataclass(frozen=True)
class Trace:
    """One row per request, in the order of intended times; seconds since the begin, NaN where nothing happened."""

    intended: Times
    sent: Times  # when its first byte was handed to the socket
    first: Times  # first byte of the answer
    done: Times  # last byte of the answer
    status: NDArray[np.int32]
    kind: NDArray[np.int32]  # which of the prepared requests it was
    worker: NDArray[np.int32]
    samples: NDArray[np.int32]  # how many samples it carried: the batch of a request
    stages: Mapping[str, Times] = field(default_factory=dict)  # seconds: queue, inference, ... as the server tells
    batch: NDArray[np.int32] | None = None  # size of the batch that it was computed in, if the server tells
    tokens: list[Times] | None = None  # language models: when each piece of the stream came
    cpu_seconds: float = 0.0  # of the load generator's processes
    dispatched: Times | None = None  # when its turn came; `sent` is later by what opening a connection took
    host: NDArray[np.int32] | None = None  # which of the client hosts sent it, where there are several

    def __len__(self) -> int:
        return len(self.intended)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Which requests were answered well."""
        return np.equal(self.status, OK)

    @property
    def shed(self) -> NDArray[np.bool_]:
        """Which requests the server declined because of load."""
        return np.isin(self.status, (SHED, 429))

    @property
    def lateness(self) -> Times:
        """How long after its intended time each request went."""
        return self.sent - self.intended

    @property
    def latency(self) -> Times:
        """From the intended time to the whole answer: what a user feels; NaN where there was no answer."""
        return self.done - self.intended

    def after(self, count: int) -> Trace:
        """Without the first requests, which met empty queues."""
        return self.taken(np.arange(count, len(self)))

    def of_host(self, number: int) -> Trace:
        """What one of the client hosts sent."""
        assert self.host is not None
        return self.taken(np.flatnonzero(self.host == number))

    def taken(self, rows: NDArray[np.intp]) -> Trace:
        """These requests alone."""

        def part(name: str) -> Any:
            values = getattr(self, name)
            return None if values is None else values[rows]

        names = ("intended", "sent", "first", "done", "status", "kind", "worker", "samples")
        more = ("batch", "dispatched", "host")
        return replace(
            self,
            stages={name: values[rows] for name, values in self.stages.items()},
            tokens=None if self.tokens is None else [self.tokens[row] for row in rows],
            **{name: part(name) for name in (*names, *more)},
        )

    @classmethod
    def merged(cls, parts: Iterable[Trace]) -> Trace:
        """The traces of several workers or hosts that sent shares of one schedule, as one."""
        parts = list(parts)
        if not parts:
            raise ValueError("no traces to merge")
        intended = np.concatenate([part.intended for part in parts])
        order = np.argsort(intended, kind="stable")

        def joined(name: str) -> NDArray[np.generic]:
            return np.concatenate([getattr(part, name) for part in parts])[order]

        names = dict.fromkeys(name for part in parts for name in part.stages)
        nothing = {name: [part.stages.get(name, np.full(len(part), np.nan)) for part in parts] for name in names}
        batches = [part.batch if part.batch is not None else np.zeros(len(part), np.int32) for part in parts]
        tokens = [one for part in parts for one in (part.tokens or [np.empty(0)] * len(part))]
        dispatched = [part.dispatched if part.dispatched is not None else part.sent for part in parts]
        return cls(
            intended=intended[order],
            sent=joined("sent").astype(np.float64),
            first=joined("first").astype(np.float64),
            done=joined("done").astype(np.float64),
            status=joined("status").astype(np.int32),
            kind=joined("kind").astype(np.int32),
            worker=joined("worker").astype(np.int32),
            samples=joined("samples").astype(np.int32),
            stages={name: np.concatenate(values)[order] for name, values in nothing.items()},
            batch=np.concatenate(batches)[order] if any(part.batch is not None for part in parts) else None,
            tokens=[tokens[i] for i in order] if any(part.tokens is not None for part in parts) else None,
            cpu_seconds=sum(part.cpu_seconds for part in parts),
            dispatched=np.concatenate(dispatched)[order] if any(p.dispatched is not None for p in parts) else None,
            host=joined("host").astype(np.int32) if all(part.host is not None for part in parts) else None,
        )


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
