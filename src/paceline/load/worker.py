"""One process of the load generator: takes its share of the requests, sends them, and hands back what happened.

python -m paceline.load.worker FOLDER imports neither pydantic nor torch, so that it starts quickly and leaves the
caches to the requests.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import os
import pickle
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.load.grpc_client import GrpcClient
from paceline.load.http_client import HttpClient
from paceline.load.server_timing import is_error, piece_times, read_stages
from paceline.load.trace import BROKEN, FAILED, OK, TIMED_OUT, UNSENT, Log, Times, clock

_CLOCK_MONOTONIC = 1
_NONBLOCK_AND_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1
_TIMER = struct.Struct("@llll")  # no interval, then seconds and nanoseconds
_LIBC = ctypes.CDLL(None, use_errno=True)
_SPIN = 1_500_000  # ns; event loops round their timers to a millisecond
_SHORTEST = 0.001  # s; for less some event loops do not wait at all


async def pace(due: Sequence[int], act: Callable[[int], None]) -> None:
    """Call `act(0)`, `act(1)`, ... when the clock has passed each instant (ns, in order); all that are due at once."""
    if not due:
        return
    timer = _open_timer()
    if timer is None:
        await _pace_by_spinning(due, act)
        return
    try:
        await _pace_by_timer(due, act, timer)
    finally:
        os.close(timer)


def call_after(seconds: float, call: Callable[..., object], *arguments: object) -> None:
    """Call once so much time has passed, never before: event loops may be early by the millisecond they count in."""
    instant = clock() + int(seconds * 1e9)
    asyncio.get_running_loop().call_later(seconds, _call_at, instant, call, *arguments)


def _call_at(instant: int, call: Callable[..., object], *arguments: object) -> None:
    left = instant - clock()
    if left > 0:
        asyncio.get_running_loop().call_later(max(left / 1e9, _SHORTEST), _call_at, instant, call, *arguments)
    else:
        call(*arguments)


async def _pace_by_timer(due: Sequence[int], act: Callable[[int], None], timer: int) -> None:
    """The kernel wakes the event loop through a descriptor, some ten microseconds after the instant."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    position, number = 0, len(due)

    def on_time() -> None:
        nonlocal position
        try:
            os.read(timer, 8)
            now = clock()
            while position < number and due[position] <= now:
                act(position)
                position += 1
            if position < number:
                _set_timer(timer, due[position])
            else:
                ended.set_result(None)
        except BlockingIOError:
            return
        except Exception as error:
            if not ended.done():
                ended.set_exception(error)

    loop.add_reader(timer, on_time)
    try:
        _set_timer(timer, due[0])
        await ended
    finally:
        loop.remove_reader(timer)


async def _pace_by_spinning(due: Sequence[int], act: Callable[[int], None]) -> None:
    """Where there are no such timers: sleep until shortly before, then look at the clock until it is time."""
    for position, instant in enumerate(due):
        left = instant - clock()
        if left > _SPIN:
            await asyncio.sleep((left - _SPIN) / 1e9)
        elif position % 16 == 0:
            await asyncio.sleep(0)  # answers must be read even if everything is due already
        while clock() < instant:
            await asyncio.sleep(0)
        act(position)


def _open_timer() -> int | None:
    """A timer of Linux that can be waited for like a file; Python has functions for it from 3.13 on only."""
    try:
        timer = int(_LIBC.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_AND_CLOEXEC))
    except (AttributeError, OSError):
        return None
    return timer if timer >= 0 else None


def _set_timer(timer: int, instant: int) -> None:
    seconds, nanoseconds = divmod(max(1, instant), 1_000_000_000)
    if _LIBC.timerfd_settime(timer, _ABSOLUTE, _TIMER.pack(0, 0, seconds, nanoseconds), None):
        number = ctypes.get_errno()
        raise OSError(number, f"timerfd_settime: {os.strerror(number)}")


TASK, RESULT, READY = "task.pickle", "result.npz", "ready"
_PR_SET_PDEATHSIG = 1
_AFTER_FAILURE = 0.01  # s; a user who found nobody would else ask again at once, thousands of times


@dataclass(frozen=True)
class WorkerTask:
    """What a worker has to do; made by a parent that it trusts."""

    parent: int  # process id; this worker ends with it
    transport: Literal["http", "grpc"]
    host: str
    port: int
    path: str
    tls: bool
    payloads: list[bytes]
    metadata: list[tuple[tuple[str, str], ...]]  # gRPC's headers; those of HTTP are in the payloads
    kinds: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, np.int32))  # they repeat in a closed loop
    loop: Literal["open", "closed", "burst"] = "open"
    intended: Times = field(default_factory=lambda: np.empty(0))  # seconds from the start; empty in a closed loop
    users: int = 1
    requests: int | None = None  # in a closed loop or a burst
    duration: float | None = None  # of a closed loop
    think_time: float = 0.0
    up: Times | None = None  # seconds that an emulated network holds each request back
    down: Times | None = None  # and its answer
    down_bandwidth: float | None = None  # bytes per second
    limit: int = 1000  # of connections
    timeout: float = 30.0
    streaming: bool = False
    keep: int = 0  # how many good answers of each kind to hand back
    cpu: int | None = None  # the core to stay on


class Client(Protocol):
    """How requests reach a server."""

    def send(self, row: int) -> None: ...

    async def close(self) -> None: ...


def main(folder: Path) -> None:
    """Read the task, say that all is ready, wait for the word when to start, and leave the result in the folder."""
    with (folder / TASK).open("rb") as file:
        task: WorkerTask = pickle.load(file)
    _end_with(task.parent)
    if task.cpu is not None:
        os.sched_setaffinity(0, {task.cpu})
    _allow_sockets()
    loop = _new_event_loop()
    try:
        np.savez(folder / RESULT, **loop.run_until_complete(_work(task)))  # type: ignore[arg-type]
    finally:
        loop.close()


async def _work(task: WorkerTask) -> dict[str, NDArray[np.generic]]:
    run = _Run(task)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    word = sys.stdin.readline()  # nothing else can happen before, so this may block
    if not word:
        raise SystemExit("the parent is gone")
    start = int(word)
    gc.collect()
    gc.freeze()
    gc.disable()
    used = time.process_time()
    await run.to_the_end(start)
    used = time.process_time() - used
    return run.result(start) | {"cpu_seconds": np.array(used)}


class _Run:
    """The requests of one task on their way."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        finished = self._count if task.loop == "open" else self._next_of_user
        self._log = Log(task.kinds.tolist(), task.keep, finished)
        self._client = _client(task, self._log)
        self._loop = asyncio.get_running_loop()
        self._all_ended = self._loop.create_future()
        self._left = 0  # requests of an open loop, users of a closed one
        self._start = 0
        self._last_start = 0

    async def to_the_end(self, start: int) -> None:
        """From the agreed instant until every request was answered or given up."""
        self._start = start
        self._loop.set_exception_handler(self._fault)
        self._loop.add_signal_handler(signal.SIGTERM, self._end)
        if self._task.loop == "open":
            await self._open_loop()
        else:
            await self._closed_loop()
        await self._client.close()

    def _fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What nobody caught ends the worker: a run that goes on without some of its requests would tell lies."""
        error = context.get("exception") or RuntimeError(context["message"])
        if not self._all_ended.done() and not isinstance(error, OSError):
            self._all_ended.set_exception(error)

    async def _open_loop(self) -> None:
        task, log = self._task, self._log
        number = self._left = len(task.intended)
        if not number:
            return
        log.add(number)
        leaving = task.intended if task.up is None else task.intended + task.up
        order = np.argsort(leaving, kind="stable")
        due = (self._start + np.rint(leaving[order] * 1e9).astype(np.int64)).tolist()
        log.intended[:number] = (self._start + np.rint(task.intended * 1e9).astype(np.int64)).tolist()
        rows, send = order.tolist(), self._client.send
        await self._paced(due, lambda position: send(rows[position]))

    async def _paced(self, due: Sequence[int], act: Callable[[int], None]) -> None:
        """Until all have come to their end, or the word came to leave it at that."""
        pacing = asyncio.ensure_future(pace(due, act))
        await asyncio.wait({pacing, self._all_ended}, return_when=asyncio.FIRST_COMPLETED)
        if not pacing.done():
            pacing.cancel()
        with suppress(asyncio.CancelledError):
            await pacing
        await self._all_ended

    def _end(self) -> None:
        if not self._all_ended.done():
            self._all_ended.set_result(None)

    def _count(self, _row: int) -> None:
        self._left -= 1
        if not self._left:
            self._end()

    async def _closed_loop(self) -> None:
        task = self._task
        self._left = task.users
        self._last_start = self._start + int((task.duration or 0.0) * 1e9)
        await self._paced([self._start] * task.users, lambda _user: self._ask(is_first=True))

    def _ask(self, *, is_first: bool = False) -> None:
        """A user is ready for the next request, or for going home; in a given time each asks once, however short."""
        task, log = self._task, self._log
        now = clock()
        if self._is_over(now) and not (is_first and task.requests is None):
            self._count(log.number)
            return
        row = log.add(1)
        log.intended[row] = now if task.loop == "closed" else self._start
        if task.up is None:
            self._client.send(row)
        else:
            call_after(float(task.up[row % len(task.up)]), self._client.send, row)

    def _is_over(self, instant: int) -> bool:
        """Whether a user who is ready by then has nothing left to ask."""
        requests = self._task.requests
        return instant >= self._last_start if requests is None else self._log.number >= requests

    def _next_of_user(self, row: int) -> None:
        task, status = self._task, self._log.status[row]
        pause = task.think_time + self._way_down(row)
        if status < OK and status != TIMED_OUT:
            pause = max(pause, _AFTER_FAILURE)
        if self._is_over(clock() + int(pause * 1e9)):
            self._count(row)  # nobody is waited for who thinks about a question that will not be asked
        elif pause:
            call_after(pause, self._ask)
        else:
            self._ask()

    def _way_down(self, row: int) -> float:
        task = self._task
        if task.down is None:
            return 0.0
        return float(task.down[row % len(task.down)]) + self._log.size[row] / (task.down_bandwidth or np.inf)

    def result(self, start: int) -> dict[str, NDArray[np.generic]]:
        """Everything that was seen, in seconds since the start, with the emulated network's share added."""
        task, log, number = self._task, self._log, self._log.number
        rows = np.arange(number)
        up = 0.0 if task.up is None else task.up[rows % len(task.up)]
        down = 0.0 if task.down is None else task.down[rows % len(task.down)]
        size = np.array(log.size[:number], np.float64)
        kind = task.kinds[rows % len(task.kinds)] if number else np.zeros(0, np.int32)

        def seconds(column: list[int]) -> Times:
            times = np.array(column[:number], np.int64)
            return np.where(times == 0, np.nan, (times - start) / 1e9)

        status = np.array(log.status[:number], np.int32)
        status[(status == UNSENT) & (np.array(log.sent[:number]) > 0)] = BROKEN  # under way when it was all ended
        for row, events in enumerate(log.events[:number]):
            if status[row] == OK and any(is_error(event) for _, event in events or ()):
                status[row] = FAILED
        stages, batch = read_stages(log.told[:number])
        pieces = [piece_times(events or ()) for events in log.events[:number]] if task.streaming else []
        counts = np.array([len(one) for one in pieces], np.int64)
        flat = (np.array([time for one in pieces for time in one], np.int64) - start) / 1e9
        return {
            "intended": seconds(log.intended),
            "dispatched": seconds(log.dispatched) - up,
            "sent": seconds(log.sent) - up,
            "first": seconds(log.first) + down,
            "done": seconds(log.done) + down + size / (task.down_bandwidth or np.inf),
            "status": status,
            "kind": kind,
            "token_counts": counts,
            "token_times": flat + np.repeat(np.broadcast_to(down, number), counts) if task.streaming else flat,
            "batch": batch if batch is not None else np.zeros(0, np.int32),
            "answer_kinds": np.array([kind for kind, _ in log.answers], np.int32),
            "answer_lengths": np.array([len(body) for _, body in log.answers], np.int64),
            "answer_bytes": np.frombuffer(b"".join(body for _, body in log.answers), np.uint8),
            **{f"stage_{name}": column for name, column in stages.items()},
        }


def _client(task: WorkerTask, log: Log) -> Client:
    if task.transport == "grpc":
        return GrpcClient(
            log,
            task.payloads,
            task.metadata,
            host=task.host,
            port=task.port,
            path=task.path,
            tls=task.tls,
            timeout=task.timeout,
        )
    return HttpClient(
        log,
        task.payloads,
        host=task.host,
        port=task.port,
        tls=task.tls,
        limit=task.limit,
        timeout=task.timeout,
        streaming=task.streaming,
    )


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: it needs about half the time per request."""
    try:
        make: Callable[[], Any] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        make = asyncio.new_event_loop
    loop: asyncio.AbstractEventLoop = make()
    return loop


def _allow_sockets() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _end_with(parent: int) -> None:
    """When the parent is killed, so is this process."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux: the end of the input before the start is all that tells
    if os.getppid() != parent:
        raise SystemExit("the parent is gone")


if __name__ == "__main__":
    from paceline.load.worker import main as run  # tasks are pickled as this module's, not as __main__'s

    run(Path(sys.argv[1]))
