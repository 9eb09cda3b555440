"""What became of every request: when it was meant to go, when it went, and when its answer came.

Paceline's own server reports its stages alongside its answers, which are read after the run.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.load.expected import HIDDEN

# The header `x-paceline: d=..,q=..,b=..,i=..,p=..,n=..,r=..`: nanoseconds, and the size of the batch.
HEADER = "x-paceline"
STAGES = {b"d": "decode", b"r": "pre", b"q": "queue", b"b": "batch", b"i": "inference", b"p": "post"}
BATCH = b"n"
_WITHOUT_PRE = "d=%d,q=%d,b=%d,i=%d,p=%d,n=%d"  # tensors need no preparation
_WITH_PRE = _WITHOUT_PRE + ",r=%d"


class Stages(NamedTuple):
    """Nanoseconds, without gaps from the arrival of the whole request until its answer is written.

    The rest of what a client measures is transmission.
    """

    decode: int
    queue: int  # until its batch was taken by an instance
    batch: int  # assembling
    inference: int  # with the copies to the device and back
    post: int  # what is made of the outputs, splitting, encoding, and waiting for those of the same batch
    size: int  # samples in the batch, without padding
    pre: int = 0  # between decode and queue: making tensors of images and texts, and the wait for a thread to do it

    def __str__(self) -> str:
        # Three times as fast as a format string.
        return (_WITH_PRE % self) if self.pre else (_WITHOUT_PRE % self[:-1])


def read_stages(headers: Sequence[bytes | None]) -> tuple[dict[str, Times], NDArray[np.int32] | None]:
    """Seconds per stage and the batch of each request; NaN and 0 where a server did not report them."""
    stages: dict[str, Times] = {}
    batch: NDArray[np.int32] | None = None
    for row, header in enumerate(headers):
        for pair in (header or b"").split(b","):
            key, _, value = pair.strip().partition(b"=")
            if not value.isdigit() or len(value) >= 19:
                continue
            if key == BATCH and int(value) < 2**31:
                if batch is None:
                    batch = np.zeros(len(headers), np.int32)
                batch[row] = int(value)
            elif key in STAGES:
                column = stages.get(STAGES[key])
                if column is None:
                    column = stages[STAGES[key]] = np.full(len(headers), np.nan)
                column[row] = int(value) * 1e-9
    return stages, batch


Times = NDArray[np.float64]

# Status of a request: the server's (HTTP's numbers; gRPC's codes are mapped to them), or what happened to it here.
OK = 200
UNSENT = 0  # the run ended before it was sent
REFUSED = 1  # no connection
BROKEN = 2  # the connection ended before the whole answer had come
TIMED_OUT = 3
UNREADABLE = 4  # an answer that is not in the protocol
OUT_OF_SOCKETS = 5
WRONG = 6  # a whole answer, which is not what the user calls a good one
CANCELLED = 7  # closed before its answer was whole, as its user was to do
FAILED = 500  # the server said so, if only within a stream that had begun well
SHED = 503  # the server is overloaded (429 counts as shed too)

# Stages that are not the server's: what the user's machine does for a request before it leaves, and with its answer.
CLIENT_PRE, CLIENT_POST = "client pre", "client post"

clock = time.monotonic_ns  # one clock for everything, also between processes
_BLOCK = 4096
MOST_HELD = 256 * 2**20  # bytes of answers that are kept to be judged when the load is over
LONGEST_CAUSE = 240  # characters
MOST_CAUSES = 8  # of answers that were not good, with their texts; further ones are counted together
OTHER_CAUSES = "other causes"

# The columns of a trace, and those that it may lack.
COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("intended", "sent", "first", "done"), np.float64),
    **dict.fromkeys(("status", "kind", "worker", "samples"), np.int32),
}
TOKEN_COLUMNS = ("prompt_tokens", "output_tokens", "cached_tokens")  # -1 where nobody has counted them
OPTIONAL_COLUMNS = ("batch", "dispatched", "host", *TOKEN_COLUMNS)
_STAGE = "stage_"


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
    stages: Mapping[str, Times] = field(default_factory=dict)  # seconds: queue, inference, ... as the server reports
    batch: NDArray[np.int32] | None = None  # size of the batch that it was computed in, if reported
    chunks: list[Times] | None = None  # language models: when each piece of the stream came, of a token or of several
    prompt_tokens: NDArray[np.int32] | None = None
    output_tokens: NDArray[np.int32] | None = None
    cached_tokens: NDArray[np.int32] | None = None  # of the prompt, which the server had computed before
    cpu_seconds: float = 0.0  # of the load generator's processes
    dispatched: Times | None = None  # when its turn came; `sent` is later by what opening a connection took
    host: NDArray[np.int32] | None = None  # which of the client hosts sent it, where there are several
    causes: Mapping[str, int] = field(default_factory=dict)  # why answers were not good, and how many each
    retried: int = 0  # requests sent again because the server closed the reused connection before it answered
    client: str = "python"  # which one sent: python, c, or both
    begun: float = 0.0  # where its times count from, on this machine's monotonic clock
    losses: tuple[str, ...] = ()  # workers of the load generator that ended too early, and why

    def __len__(self) -> int:
        return len(self.intended)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Which requests succeeded."""
        return np.equal(self.status, OK)

    @property
    def kept(self) -> Trace:
        """Without the requests that were closed on purpose: what they would have come to is not known."""
        cancelled = self.status == CANCELLED
        return self.taken(np.flatnonzero(~cancelled)) if cancelled.any() else self

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

    @property
    def first_token(self) -> Times:
        """From the intended time to the first chunk of the text; NaN where there was none."""
        return np.array([times[0] if len(times) else np.nan for times in self.chunks or ()]) - self.intended

    @property
    def tokens_per_chunk(self) -> Times:
        """Of each request, on average; 1 where nobody has counted the tokens."""
        chunks = np.array([len(times) for times in self.chunks or ()], np.float64)
        if self.output_tokens is None:
            return np.ones(len(chunks))
        # A server may count one more than it shows, such as the end of the text: fewer than one is not possible.
        return np.where((self.output_tokens > 0) & (chunks > 0), np.maximum(1.0, self.output_tokens / chunks), 1.0)

    @property
    def between_tokens(self) -> Times:
        """Mean time between two tokens of each request; NaN where there are not two chunks."""
        spans = [times[-1] - times[0] if len(times) > 1 else np.nan for times in self.chunks or ()]
        gaps = np.array([max(1, len(times) - 1) for times in self.chunks or ()])
        return np.array(spans) / (gaps * self.tokens_per_chunk)

    def after(self, count: int) -> Trace:
        """Without the first requests, which met empty queues."""
        return self.taken(np.arange(count, len(self)))

    def of_host(self, number: int) -> Trace:
        """What one of the client hosts sent."""
        assert self.host is not None
        return self.taken(np.flatnonzero(self.host == number))

    def taken(self, rows: NDArray[np.intp]) -> Trace:
        """These requests alone."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in (*COLUMNS, *OPTIONAL_COLUMNS)}
        columns = {name: None if values is None else values[rows] for name, values in columns.items()}
        return replace(
            self,
            stages={name: values[rows] for name, values in self.stages.items()},
            chunks=None if self.chunks is None else [self.chunks[row] for row in rows],
            **columns,
        )

    @classmethod
    def merged(cls, parts: Iterable[Trace]) -> Trace:
        """The traces of several workers or hosts that sent shares of one schedule, as one."""
        parts = list(parts)
        if not parts:
            raise ValueError("no traces to merge")
        order = np.argsort(np.concatenate([part.intended for part in parts]), kind="stable")

        def joined(columns: Iterable[NDArray[Any]]) -> NDArray[Any]:
            return np.concatenate(list(columns))[order]

        merged: dict[str, Any] = {
            name: joined(getattr(part, name) for part in parts).astype(dtype) for name, dtype in COLUMNS.items()
        }
        if any(part.batch is not None for part in parts):
            merged["batch"] = joined(np.zeros(len(p), np.int32) if p.batch is None else p.batch for p in parts)
        if any(part.dispatched is not None for part in parts):
            merged["dispatched"] = joined(p.sent if p.dispatched is None else p.dispatched for p in parts)
        for name in TOKEN_COLUMNS:
            if any(getattr(part, name) is not None for part in parts):
                values = (getattr(part, name) for part in parts)
                merged[name] = joined(
                    np.full(len(p), -1, np.int32) if v is None else v for p, v in zip(parts, values, strict=True)
                )
        if all(part.host is not None for part in parts):
            merged["host"] = joined(part.host for part in parts if part.host is not None)
        if any(part.chunks is not None for part in parts):
            chunks = [times for part in parts for times in (part.chunks or [np.empty(0)] * len(part))]
            merged["chunks"] = [chunks[row] for row in order]
        stages = dict.fromkeys(name for part in parts for name in part.stages)
        return cls(
            **merged,
            stages={
                name: joined(part.stages.get(name, np.full(len(part), np.nan)) for part in parts) for name in stages
            },
            cpu_seconds=sum(part.cpu_seconds for part in parts),
            causes=added_causes(part.causes for part in parts),
            retried=sum(part.retried for part in parts),
            client=" and ".join(sorted({name for part in parts for name in part.client.split(" and ")})),
            losses=tuple(loss for part in parts for loss in part.losses),
        )


def added_causes(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The causes of several, the most frequent first; what is beyond a few is counted together."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    other = total.pop(OTHER_CAUSES, 0)
    causes = dict(total.most_common(MOST_CAUSES))
    other += sum(total.values()) - sum(causes.values())
    return causes | ({OTHER_CAUSES: other} if other else {})


@dataclass(frozen=True)
class WorkerResults:
    """The results of one worker, or of several together."""

    trace: Trace
    answers: list[tuple[int, bytes]]  # kind and body

    def packed(self) -> bytes:
        """As the bytes of an .npz file."""
        trace = self.trace
        columns: dict[str, NDArray[Any]] = {name: getattr(trace, name) for name in (*COLUMNS, *OPTIONAL_COLUMNS)}
        columns = {name: values for name, values in columns.items() if values is not None}
        columns |= {f"{_STAGE}{name}": values for name, values in trace.stages.items()}
        if trace.chunks is not None:
            columns["chunk_times"] = np.concatenate([np.empty(0), *trace.chunks])
            columns["chunk_counts"] = np.array([len(times) for times in trace.chunks], np.int64)
        columns["answer_kinds"] = np.array([kind for kind, _ in self.answers], np.int32)
        columns["answer_lengths"] = np.array([len(body) for _, body in self.answers], np.int64)
        columns["answer_bytes"] = np.frombuffer(b"".join(body for _, body in self.answers), np.uint8)
        columns |= {"cpu_seconds": np.array(trace.cpu_seconds), "losses": np.array(trace.losses, np.str_)}
        columns |= {"retried": np.array(trace.retried), "client": np.array(trace.client)}
        columns["causes"] = np.array(list(trace.causes), np.str_)
        columns["cause_counts"] = np.array(list(trace.causes.values()), np.int64)
        file = io.BytesIO()
        np.savez(file, **columns)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def unpacked(cls, data: bytes) -> WorkerResults:
        """The results that `packed` made these bytes of."""
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            columns: dict[str, NDArray[Any]] = dict(file)
        rows: dict[str, Any] = {name: columns.get(name) for name in (*COLUMNS, *OPTIONAL_COLUMNS)}
        trace = Trace(
            **rows,
            stages={name.removeprefix(_STAGE): column for name, column in columns.items() if name.startswith(_STAGE)},
            chunks=_split(columns["chunk_times"], columns["chunk_counts"]) if "chunk_counts" in columns else None,
            cpu_seconds=float(columns["cpu_seconds"]),
            retried=int(columns["retried"]),
            client=str(columns["client"]),
            causes=dict(zip(columns["causes"].tolist(), columns["cause_counts"].tolist(), strict=True)),
            losses=tuple(columns["losses"].tolist()),
        )
        bodies = _split(columns["answer_bytes"], columns["answer_lengths"])
        answers = [(kind, body.tobytes()) for kind, body in zip(columns["answer_kinds"].tolist(), bodies, strict=True)]
        return cls(trace, answers)


def _split(values: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Rows of different lengths that were written one behind the other."""
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []


@dataclass(slots=True)
class Log:
    """One row per request, times in nanoseconds of the monotonic clock; 0 where nothing happened."""

    kinds: Sequence[int]
    keep: InitVar[int]  # how many good answers of each kind
    finished: Callable[[int], None]  # called with the row of every request that came to its end, whichever it was
    number: int = 0
    intended: list[int] = field(default_factory=list)
    dispatched: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)  # bytes of the answer
    timing: list[bytes | None] = field(default_factory=list)  # the header in which the server reports its stages
    events: list[list[tuple[int, bytes]] | None] = field(default_factory=list)  # pieces of a stream, and their times
    bodies: dict[int, bytes] = field(default_factory=dict)  # of answers that are judged when the load is over
    retried: int = 0  # requests that were sent again on a new connection
    answers: list[tuple[int, bytes]] = field(default_factory=list)  # kind and body of the first good ones of each kind
    causes: dict[str, int] = field(default_factory=dict)  # why answers were not good, and how many each
    hidden: tuple[str, ...] = ()  # secrets of the requests, which no cause may show
    latest: dict[int, bytes] = field(default_factory=dict)  # the last of them, by kind: most are the same
    held: int = 0  # bytes of them
    judge: Callable[[int, bytes], str] | None = None  # why an answer of a kind is not good
    problems: dict[int, str] = field(default_factory=dict)  # of rows that were judged
    # Of conversations: the kind of a row, the first row of its conversation, and what was answered there to each kind.
    kind_of: dict[int, int] = field(default_factory=dict)
    first_of: dict[int, int] = field(default_factory=dict)
    said: dict[int, dict[int, str]] = field(default_factory=dict)
    to_keep: dict[int, int] = field(init=False)  # answers of each kind that are still to be kept

    def __post_init__(self, keep: int) -> None:
        self.to_keep = dict.fromkeys(set(self.kinds), keep) if keep else {}

    def add(self, number: int) -> int:
        """Make room for so many more requests; the row of the first of them."""
        row = self.number
        self.number += number
        missing = self.number - len(self.sent)
        if missing > 0:
            room = max(missing, _BLOCK)
            for column in (self.intended, self.dispatched, self.sent, self.first, self.done, self.status, self.size):
                column.extend([0] * room)
            self.timing.extend([None] * room)
            self.events.extend([None] * room)
        return row

    def kind(self, row: int) -> int:
        """Which of the prepared requests this one is; where their number is not known, they repeat."""
        return self.kind_of[row] if row in self.kind_of else self.kinds[row % len(self.kinds)]

    def add_cause(self, cause: str) -> None:
        """Count one more answer that was not good; secrets go first, so that none is cut and its rest shown."""
        for secret in self.hidden:
            cause = cause.replace(secret, HIDDEN)
        cause = f"{cause[:LONGEST_CAUSE]}..." if len(cause) > LONGEST_CAUSE else cause
        known = cause if cause in self.causes or len(self.causes) < MOST_CAUSES else OTHER_CAUSES
        self.causes[known] = self.causes.get(known, 0) + 1

    def judge_later(self, row: int, body: bytes) -> None:
        """Keep an answer until the load is over; those that are the same take the room of one."""
        kind = self.kind(row)
        if self.latest.get(kind) != body:
            self.latest[kind] = body
            self.held += len(body)
        self.bodies[row] = self.latest[kind]
        if self.held > MOST_HELD:
            self.settle()

    def settle(self) -> None:
        """Judge what is held."""
        if self.judge is None:
            return
        verdicts: dict[tuple[int, int], str] = {}
        for row, body in self.bodies.items():
            kind = self.kind(row)
            if (kind, id(body)) not in verdicts:
                verdicts[kind, id(body)] = self.judge(kind, body)
            if problem := verdicts[kind, id(body)]:
                self.problems[row] = problem
        self.bodies, self.latest, self.held = {}, {}, 0

    def wants_body(self, kind: int) -> bool:
        """Whether an answer of this kind is one to keep."""
        return self.to_keep.get(kind, 0) > 0

    def keep_body(self, kind: int, body: bytes) -> None:
        """Keep a good answer, if there are not enough of its kind yet."""
        if self.wants_body(kind):
            self.to_keep[kind] -= 1
            self.answers.append((kind, body))
