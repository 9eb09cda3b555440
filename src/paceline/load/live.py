"""What a load does right now: a few numbers a second from each worker, for whoever watches.

A worker counts as requests end, which costs it about a microsecond each, and writes one short line a second
without ever waiting for its reader.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from paceline.load.trace import OK, clock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from paceline.load.trace import Log

EVERY = 1.0  # seconds
RECENT = 256  # answers whose latencies are told, the last ones; a line of them is written at once or not at all
LATE = 0.5  # seconds for which the lines of other workers are waited for

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
            if status[row] != OK:
                self._failed += 1
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
        line = json.dumps([(now - self._since) / 1e9, self._ended, self._failed, latencies], separators=(",", ":"))
        with suppress(OSError):  # nobody reads, or not fast enough
            os.write(self._descriptor, f"{line}\n".encode())
        self._since, self._ended, self._failed, self._rows = now, 0, 0, []
        self._timer = self._loop.call_later(EVERY, self._write)


class Watcher:
    """Reads the lines of all workers, and reports what they say together."""

    def __init__(self, report: Callable[[Figures], None]) -> None:
        self._report = report
        self._rests: dict[int, bytes] = {}  # of lines that are not whole, by descriptor
        self._lines: list[list[object]] = []
        self._since = 0.0

    def look(self, descriptors: list[int], now: float) -> None:
        """Take what has come, and report once every worker has said something or is late."""
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
            try:
                data = os.read(descriptor, 65536)
            except OSError:
                continue
            *whole, self._rests[descriptor] = (self._rests.get(descriptor, b"") + data).split(b"\n")
            self._since = self._since if self._lines else now
            self._lines += [json.loads(line) for line in whole]
        if self._lines and (len(self._lines) >= len(descriptors) or now - self._since >= LATE):
            self._report(_together(self._lines))
            self._lines = []


def _together(lines: list[list[object]]) -> Figures:
    seconds = max(float(str(line[0])) for line in lines)
    ended, failed = (sum(int(str(line[at])) for line in lines) for at in (1, 2))
    figures = {"rate": (ended - failed) / seconds, "failures": failed / seconds}
    latencies = [value for line in lines if isinstance(line[3], list) for value in line[3]]
    if latencies:
        p50, p99 = np.percentile(np.array(latencies, np.float64) / 1e6, [50, 99])
        figures |= {"p50": float(p50), "p99": float(p99)}
    return figures
