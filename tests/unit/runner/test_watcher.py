"""The process that watches the machine: forked once, asked after each case, replaced when it is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paceline.core.watch import Watched
from paceline.runner import watcher
from paceline.runner.fork_client import WarmServer

PATIENCE_SECONDS = 60.0


@pytest.fixture
def server() -> Iterator[WarmServer]:
    with WarmServer() as warm:
        warm.warm(("json",), time.monotonic() + PATIENCE_SECONDS)
        yield warm


def process_of(server: WarmServer) -> psutil.Process:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for child in psutil.Process(server.pid).children():
            if child.name() == watcher.NAME:
                return child
        time.sleep(0.01)
    raise AssertionError("nobody watches")


def after_some_looks(server: WarmServer) -> Watched:
    time.sleep(3 * watcher.INTERVAL_SECONDS)
    seen = server.watched()
    assert seen is not None
    return seen


def test_the_cores_are_seen_from_the_order_to_the_question(server: WarmServer) -> None:
    server.watch(["cpu"])
    seen = after_some_looks(server)
    assert seen.times[0] < seen.times[-1]
    assert ("cpu", "busy") in {(one.of, one.name) for one in seen.series}
    assert seen.cpu_seconds > 0


def test_one_process_watches_all_cases(server: WarmServer) -> None:
    server.watch(["cpu"])
    first, seen = process_of(server).pid, after_some_looks(server)
    server.watch(["cpu"])
    server.watch(["cpu"])  # the case before was interrupted, and nobody asked what was seen
    again = after_some_looks(server)
    assert process_of(server).pid == first
    assert again.times[0] < seen.times[-1], "each case has a clock of its own"


def test_one_that_is_gone_is_replaced_and_is_no_process_of_a_case(server: WarmServer) -> None:
    server.watch(["cpu"])
    first = process_of(server)
    os.kill(first.pid, signal.SIGKILL)
    assert server.watched() is None
    server.watch(["cpu"])
    assert after_some_looks(server).series
    assert server.escaped == {}


def test_it_ends_with_the_server(server: WarmServer) -> None:
    server.watch(["cpu"])
    process = process_of(server)
    server.close()
    process.wait(PATIENCE_SECONDS)
    assert server.escaped == {}


def test_nobody_watches_where_nothing_was_ordered(server: WarmServer) -> None:
    assert server.watched() is None


def test_it_yields_to_what_is_measured(server: WarmServer) -> None:
    server.watch(["cpu"])
    process = process_of(server)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.nice() != watcher.LOWEST_PRIORITY:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert Path(f"/proc/{process.pid}/comm").read_text().strip() == watcher.NAME
