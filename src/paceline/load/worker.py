"""One process of the load generator: sends its share of the requests, and hands back what happened.

python -m paceline.load.worker FOLDER imports neither pydantic nor torch, so that it starts quickly and leaves the
caches to the requests.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.die_with_parent import die_with_parent
from paceline.load.http_client import HttpClient
from paceline.load.kserve_grpc import GrpcClient
from paceline.load.live import Tally
from paceline.load.native_client import NativeRun, missing, stop_descriptor
from paceline.load.request import followers
from paceline.load.results import answer_of, log_of, results
from paceline.load.task import WorkerTask, read_task
from paceline.load.timerfd import Alarm
from paceline.load.trace import OK, TIMED_OUT, WRONG, WorkerResults, clock

TASK, RESULT, READY = "task.json", "result.npz", "ready"
_SHORTEST = 0.001  # s; for less some event loops do not wait at all
_AFTER_FAILURE = 0.01  # s; a user without a connection would otherwise try again at once, thousands of times


def call_after(seconds: float, call: Callable[..., object], *arguments: object) -> None:
    """Call after this time, never before: event loops may be early by the millisecond that they count in."""
    loop = asyncio.get_running_loop()
    instant = clock() + int(seconds * 1e9)

    def on_time() -> None:
        left = instant - clock()
        if left > 0:
            loop.call_later(max(left / 1e9, _SHORTEST), on_time)
        else:
            call(*arguments)

    loop.call_later(seconds, on_time)


async def pace(due: Sequence[int], act: Callable[[int], None]) -> None:
    """Call `act(0)`, `act(1)`, ... when the clock has passed each instant (ns, in order); all that are due at once.

    The kernel wakes the event loop through a descriptor, some ten microseconds after the instant.
    """
    ended = asyncio.get_running_loop().create_future()
    position, number = 0, len(due)

    def on_time() -> None:
        nonlocal position
        try:
            now = clock()
            while position < number and due[position] <= now:
                act(position)
                position += 1
            if position < number:
                alarm.set(due[position])
            else:
                ended.set_result(None)
        except Exception as error:
            if not ended.done():
                ended.set_exception(error)

    alarm = Alarm(on_time)
    try:
        on_time()
        await ended
    finally:
        alarm.close()


def main(folder: Path) -> None:
    """Read the task, report that all is ready, wait for the time to start, and write the result into the folder."""
    task = read_task(json.loads((folder / TASK).read_bytes()))
    die_with_parent(task.parent)
    if task.cpu is not None:
        os.sched_setaffinity(0, {task.cpu})
    allow_connections()
    if task.client == "c" and not missing():
        (folder / RESULT).write_bytes(_work_natively(task).packed())
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Python's own handler ends before the process does
        return
    loop = new_event_loop()
    try:
        (folder / RESULT).write_bytes(loop.run_until_complete(_work(task)).packed())
    finally:
        loop.close()


def allow_connections() -> None:
    """As many as the system grants this process: each takes a descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _work(task: WorkerTask) -> WorkerResults:
    run = _Run(task)
    start = _told_to_start()
    used = time.process_time()
    await run.complete(start)
    return run.results(start, time.process_time() - used)


def _work_natively(task: WorkerTask) -> WorkerResults:
    log = log_of(task, lambda _row: None)
    run, stop = NativeRun(task, log), stop_descriptor()
    start = _told_to_start()
    used = time.process_time()
    run.complete(start, stop)
    used = time.process_time() - used
    run.write_log()
    return results(task, log, start, used, "c")


def _told_to_start() -> int:
    """When the load starts; the parent says so once every worker is ready."""
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    line = sys.stdin.readline()  # nothing else can happen before, so this may block
    if not line:
        raise SystemExit("the parent is gone")
    start = int(line)
    gc.collect()
    gc.freeze()
    gc.disable()
    return start


class _Run:
    """The requests of one task on their way."""

    _left: int  # requests of an open loop, users of a closed one
    _start: int
    _last_start: int

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._finished = self._count if task.loop == "open" else self._next_of_user
        self._followers = followers(task.turns)
        self._under_way: dict[int, int] = {}  # requests of each conversation, by its first row
        self._begun = 0  # conversations of users who wait
        self._log = log_of(task, self._go_on if self._followers else self._finished)
        self._client = (GrpcClient if task.endpoint.is_grpc else HttpClient)(self._log, task)
        self._loop = asyncio.get_running_loop()
        self._tally = Tally(self._loop, sys.stdout.fileno()) if task.live else None
        if self._tally is not None:
            self._tally.counted(self._log)
        self._all_ended = self._loop.create_future()

    async def complete(self, start: int) -> None:
        """From the agreed instant until every request was answered or given up."""
        self._start = start
        self._loop.set_exception_handler(self._fault)
        self._loop.add_signal_handler(signal.SIGTERM, self._end)
        task = self._task
        if self._tally is not None:
            self._tally.begin(start)
        if task.loop == "open":
            await self._open_loop()
        else:
            self._left = task.users
            self._last_start = start + int(task.duration * 1e9)
            await self._paced([start] * task.users, lambda _user: self._ask(is_first=True))
        if self._tally is not None:
            self._tally.end()
        await self._client.close()

    def _fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error that was not caught ends the worker: a run without some of its requests would report wrong times."""
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
        """Until all requests have ended, or the parent has ended the load."""
        pacing = asyncio.ensure_future(pace(due, act))
        await asyncio.wait({pacing, self._all_ended}, return_when=asyncio.FIRST_COMPLETED)
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

    def _ask(self, *, is_first: bool = False) -> None:
        """A user is ready for the next request, or is done; with a duration each sends once, however short it is."""
        task, log = self._task, self._log
        now = clock()
        if self._is_over(now) and not (is_first and task.requests is None):
            self._count(log.number)
            return
        row = log.add(1)
        if self._followers:
            log.kind_of[row] = log.kinds[self._begun % len(log.kinds)]
        self._begun += 1
        log.intended[row] = now if task.loop == "closed" else self._start
        if task.up is None:
            self._client.send(row)
        else:
            call_after(float(task.up[row % len(task.up)]), self._client.send, row)

    def _is_over(self, instant: int) -> bool:
        """Whether a user who is ready by then has nothing left to send."""
        requests, most = self._task.requests, self._task.most
        if most is not None and self._log.number >= most:
            return True
        return instant >= self._last_start if requests is None else self._begun >= requests

    def _go_on(self, row: int) -> None:
        """Send what follows a good answer in its conversation, or end it."""
        task, log = self._task, self._log
        kind, first = log.kind(row), log.first_of.get(row, row)
        left = self._under_way.pop(first, 1) - 1
        said = log.said.setdefault(first, {})
        answer = (
            answer_of(task, log, row, log.status[row]) if kind in self._followers and log.status[row] == OK else None
        )
        if answer is not None and not answer.problem:
            said[kind] = answer.said
            for following in self._followers[kind]:
                turn = task.turns[following]
                due = log.done[row] + int(turn.wait * 1e9)
                is_over = log.number >= task.most if task.most is not None else False
                is_over |= task.loop == "closed" and task.requests is None and due >= self._last_start
                if is_over or not all(one in said for one in turn.follows):
                    continue
                left += 1
                follower = log.add(1)
                log.kind_of[follower], log.first_of[follower], log.intended[follower] = following, first, due
                call_after(max(0.0, (due - clock()) / 1e9), self._client.send, follower)
        if left:
            self._under_way[first] = left
            return
        log.said.pop(first)
        self._finished(row)

    def _next_of_user(self, row: int) -> None:
        task, status = self._task, self._log.status[row]
        pause = task.think_time
        if task.down is not None:
            pause += float(task.down[row % len(task.down)]) + self._log.size[row] / task.down_bandwidth
        if status < OK and status not in (TIMED_OUT, WRONG):
            pause = max(pause, _AFTER_FAILURE)
        if self._is_over(clock() + int(pause * 1e9)):
            self._count(row)  # a user who thinks about a request that will not be sent is not waited for
        elif pause:
            call_after(pause, self._ask)
        else:
            self._ask()

    def results(self, start: int, cpu_seconds: float) -> WorkerResults:
        """Everything that happened."""
        return results(self._task, self._log, start, cpu_seconds)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: it needs about half the time per request."""
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ImportError:
        loop = asyncio.new_event_loop()
    return loop


if __name__ == "__main__":
    main(Path(sys.argv[1]))
