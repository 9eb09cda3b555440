"""A rank that is asked where it is tells it, whatever it does; one that cannot is told apart by its state."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.runner.stacks import WAITING, Where, ask

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
