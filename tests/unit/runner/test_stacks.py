"""A rank that is asked where it is tells it, whatever it does; one that cannot is told apart by its state."""

from __future__ import annotations

import faulthandler
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.runner import stacks
from paceline.runner.stacks import ANSWER_SECONDS, ASK, WAITING, Where, answer, ask

IN_A_COLLECTIVE = """Stack (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 5022 in barrier
  File "/src/benchmark.py", line 45 in measure"""
IN_A_STAGE = """Current thread 0x00007f (most recent call first):
  File "/src/model.py", line 7 in forward
  File "/venv/lib/python3.12/site-packages/torch/distributed/pipelining/stage.py", line 700 in forward_one_chunk"""

RANK = """
import sys, time
from pathlib import Path
from paceline.runner.stacks import answer
answer(Path(sys.argv[1]))
def nap():
    print("ready", flush=True)
    while True:
        time.sleep(100)
nap()
"""


def test_whoever_is_inside_a_collective_waits_for_others() -> None:
    where = Where(IN_A_COLLECTIVE, "")
    assert where.is_waiting
    assert str(where) == f"{WAITING} in barrier (distributed_c10d.py:5022)"


def test_whoever_computes_below_a_schedule_does_not() -> None:
    where = Where(IN_A_STAGE, "")
    assert not where.is_waiting
    assert str(where) == "it was in forward (model.py:7)"


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_process_says_where_it_is_unless_it_is_stopped(tmp_path: Path, is_stopped: bool) -> None:
    log = tmp_path / "rank0.log"
    with subprocess.Popen([sys.executable, "-c", RANK, str(log)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            if is_stopped:
                process.send_signal(signal.SIGSTOP)
            where = ask({process.pid: log})[process.pid]
        finally:
            process.kill()
    if is_stopped:
        assert str(where) == "the process does not react (stopped)"
    else:
        assert str(where).startswith("it was in nap (<string>:")


def test_a_process_that_is_gone_is_no_fault_of_the_asking(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert str(ask({process.pid: tmp_path / "rank0.log"})[process.pid]).startswith("the process does not react")


def waits_in_another_thread(is_over: threading.Event) -> None:
    is_over.wait()


def test_the_answer_is_the_stack_of_the_thread_that_runs_the_case_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    is_over = threading.Event()
    other = threading.Thread(target=waits_in_another_thread, args=(is_over,))
    other.start()
    mask = os.umask(0)
    try:
        answer(tmp_path / "rank0.log")
        os.kill(os.getpid(), ASK)
    finally:
        faulthandler.unregister(ASK)
        os.umask(mask)
        is_over.set()
        other.join()
    path = tmp_path / "rank0.stack"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "in test_the_answer_is_the_stack" in path.read_text()
    assert "waits_in_another_thread" not in path.read_text()


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.now = 64.0
        self.naps: list[float] = []
        self._then = then

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += ANSWER_SECONDS / 2
        self._then()


@pytest.fixture
def two_logs(tmp_path: Path) -> Iterator[dict[int, Path]]:
    """Of two processes that can be asked, and do not answer by themselves."""
    processes = [subprocess.Popen(["sleep", "600"], preexec_fn=ignore_the_question) for _ in range(2)]
    yield {process.pid: tmp_path / f"rank{number}.log" for number, process in enumerate(processes)}
    for process in processes:
        process.kill()
        process.wait()


def ignore_the_question() -> None:
    signal.signal(ASK, signal.SIG_IGN)


def test_all_are_waited_for_but_not_for_long(monkeypatch: pytest.MonkeyPatch, two_logs: dict[int, Path]) -> None:
    clock = Clock()
    monkeypatch.setattr(stacks, "time", clock)
    first = next(iter(two_logs.values()))
    first.with_suffix(".stack").write_text(IN_A_STAGE)
    positions = list(ask(two_logs).values())
    assert clock.naps == [0.01, 0.01]
    assert positions == [Where(IN_A_STAGE, ""), Where("", "")]
    assert str(positions[1]) == "the process does not react"


def test_when_all_have_answered_nobody_waits(monkeypatch: pytest.MonkeyPatch, two_logs: dict[int, Path]) -> None:
    first, second = (log.with_suffix(".stack") for log in two_logs.values())
    clock = Clock(then=lambda: second.write_text(IN_A_COLLECTIVE))
    monkeypatch.setattr(stacks, "time", clock)
    first.write_text(IN_A_STAGE)
    assert [where.is_waiting for where in ask(two_logs).values()] == [False, True]
    assert clock.naps == [0.01]
    assert not Where("", "").is_waiting
