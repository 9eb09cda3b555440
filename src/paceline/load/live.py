"""What a load does right now: a few numbers a second from each worker, for whoever watches.

A worker counts as requests end, which costs it about a microsecond each, and writes one short line a second
without ever waiting for its reader.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.load.trace import CANCELLED, OK, clock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from paceline.load.trace import Log

EVERY = 1.0  # seconds
RECENT = 256  # answers whose latencies are told, the last ones; a line of them is written at once or not at all
LATE = 0.5  # seconds for which the lines of other workers are waited for

Line = list[Any]  # of a worker: seconds, requests that ended, that failed, latencies in microseconds
Figures = Mapping[str, float]  # rate and failures per second; p50 and p99 in seconds, if something was answered


class Tally:
    """Counts in a worker."""

    def __init__(self, loop: AbstractEventLoop, descriptor: int) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._ended = self._failed = 0
        self._rows: list[int] = []
        os.set_blocking(descriptor, False)

    def counted(self, log: Log) -> None:
        """From now on count every request of the log that ends."""
        self._log, finished, status = log, log.finished, log.status

        def finish(row: int) -> None:
            self._ended += 1
            if status[row] != OK:  # one that its user closed has neither failed nor a latency
                self._failed += status[row] != CANCELLED
            elif len(self._rows) < RECENT:
                self._rows.append(row)
            else:
                self._rows[self._ended % RECENT] = row
            finished(row)

        log.finished = finish

    def begin(self, start: int) -> None:
        """Write for the first time so long after the start (ns)."""
        self._since = start
        self._timer = self._loop.call_later(EVERY + max(0.0, (start - clock()) / 1e9), self._write)

    def end(self) -> None:
        """Write no more."""
        self._timer.cancel()

    def _write(self) -> None:
        now, log = clock(), self._log
        latencies = [(log.done[row] - log.intended[row]) // 1000 for row in self._rows]
        write_line(self._descriptor, [(now - self._since) / 1e9, self._ended, self._failed, latencies])
        self._since, self._ended, self._failed, self._rows = now, 0, 0, []
        self._timer = self._loop.call_later(EVERY, self._write)


def write_line(descriptor: int, line: Line) -> None:
    """Say it to whoever listens, who is never waited for."""
    with suppress(OSError):  # nobody reads, or not fast enough
        os.write(descriptor, f"{json.dumps(line, separators=(',', ':'))}\n".encode())


class Watcher:
    """Gathers the lines of all workers, and reports those of one second together."""

    def __init__(self, report: Callable[[list[Line]], None]) -> None:
        self._report = report
        self._rests: dict[int, bytes] = {}  # of lines that are not whole, by descriptor
        self._lines: list[Line] = []
        self._since = 0.0

    def look(self, descriptors: list[int], now: float) -> None:
        """Take what workers of this machine have written."""
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
            try:
                data = os.read(descriptor, 65536)
            except OSError:
                continue
            *whole, self._rests[descriptor] = (self._rests.get(descriptor, b"") + data).split(b"\n")
            self.add([json.loads(line) for line in whole], now)
        self.settle(len(descriptors), now)

    def add(self, lines: Sequence[Line], now: float) -> None:
        """Take lines, from wherever they come."""
        self._since = self._since if self._lines else now
        self._lines += lines

    def settle(self, workers: int, now: float) -> None:
        """Report, once every worker has said something or is late."""
        if self._lines and (len(self._lines) >= workers or now - self._since >= LATE):
            self._report(self._lines)
            self._lines = []


def together(lines: Sequence[Line]) -> Figures:
    """What the lines of all workers come to."""
    seconds = max(float(line[0]) for line in lines)
    ended, failed = (sum(int(line[at]) for line in lines) for at in (1, 2))
    figures = {"rate": (ended - failed) / seconds, "failures": failed / seconds}
    latencies = [value for line in lines for value in line[3]]
    if latencies:
        p50, p99 = np.percentile(np.array(latencies, np.float64) / 1e6, [50, 99])
        figures |= {"p50": float(p50), "p99": float(p99)}
    return figures
