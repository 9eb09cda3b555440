"""What is said of a load while it goes: every second, without waiting for whoever listens."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from paceline.load import live
from paceline.load.live import RECENT, Tally, Watcher, together
from paceline.load.trace import CANCELLED, OK, TIMED_OUT, Log, clock


class Timer:
    """Stands in for an event loop: what it is to call later is called by the test."""

    def __init__(self) -> None:
        self.call: Any = None

    def call_later(self, _seconds: float, call: Any) -> Any:
        self.call = call
        return self

    def cancel(self) -> None:
        self.call = None


def tally_of(descriptor: int, latencies: list[int | None], ended: list[int]) -> Timer:
    """A tally that has counted requests with these latencies (µs); None for one that failed, 0 for a closed one."""
    timer = Timer()
    tally = Tally(timer, descriptor)  # type: ignore[arg-type]
    log = Log([0], 0, ended.append)
    tally.counted(log)
    log.add(len(latencies))
    tally.begin(clock() - 1_000_000_000)
    for row, latency in enumerate(latencies):
        log.intended[row], log.done[row] = 5, 5 + (latency or 0) * 1000
        log.status[row] = TIMED_OUT if latency is None else OK if latency else CANCELLED
        log.finished(row)
    return timer


@pytest.fixture
def pipe() -> Any:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_a_line_has_counts_and_latencies_of_the_last_second(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    ended: list[int] = []
    timer = tally_of(writing, [100, None, 0, 300], ended)
    assert ended == [0, 1, 2, 3]  # whoever counted before still does
    timer.call()
    seconds, *counts = json.loads(os.read(reading, 65536))
    assert seconds >= 1.0
    assert counts == [4, 1, [100, 300]]
    timer.call()
    assert json.loads(os.read(reading, 65536))[1:] == [0, 0, []]


def test_a_line_is_written_at_once_or_not_at_all(pipe: tuple[int, int]) -> None:
    """A reader that is stopped must not stop the load, and no part of a line is written."""
    reading, writing = pipe
    timer = tally_of(writing, [2_000_000_000] * (10 * RECENT), [])
    timer.call()
    line = os.read(reading, 65536)
    assert len(line) <= 4096 and line.endswith(b"\n")  # PIPE_BUF
    assert json.loads(line)[1] == 10 * RECENT and len(json.loads(line)[3]) == RECENT
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    timer.call()  # returns at once


def test_workers_are_reported_together(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    other_reading, other_writing = os.pipe()
    heard: list[Any] = []
    watcher = Watcher(heard.append)
    os.write(writing, b"[1.0,60,10,[1000,2000]]\n[1.0,")
    watcher.look([reading, other_reading], 100.0)
    assert not heard  # the other worker may be about to say something
    os.write(other_writing, b"[1.0,50,0,[3000]]\n")
    watcher.look([reading, other_reading], 100.1)
    assert heard == [[[1.0, 60, 10, [1000, 2000]], [1.0, 50, 0, [3000]]]]
    assert together(heard[0]) == {"rate": 100.0, "failures": 10.0, "p50": 0.002, "p99": pytest.approx(0.00298)}
    os.write(writing, b"4,4,[]]\n")
    watcher.look([reading, other_reading], 101.0)
    assert len(heard) == 1
    watcher.look([reading, other_reading], 101.0 + live.LATE)
    assert [together(lines) for lines in heard[1:]] == [{"rate": 0.0, "failures": 4.0}]
    for descriptor in (other_reading, other_writing):
        os.close(descriptor)


def test_a_worker_that_has_ended_says_nothing(pipe: tuple[int, int]) -> None:
    reading, _ = pipe
    heard: list[Any] = []
    ended_reading, ended_writing = os.pipe()
    os.close(ended_writing)
    Watcher(heard.append).look([reading, ended_reading], 1.0)
    assert not heard
    os.close(ended_reading)


def test_the_tally_of_a_load_that_is_over_is_silent(pipe: tuple[int, int]) -> None:
    _, writing = pipe

    async def run() -> None:
        tally = Tally(asyncio.get_running_loop(), writing)
        tally.counted(Log([0], 0, lambda _row: None))
        tally.begin(clock())
        tally.end()

    asyncio.run(run())
