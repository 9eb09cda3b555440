"""What is said of ranks that a launcher started when one fails first, or is gone for good."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil
import pytest

from paceline.core.record import CauseKind
from support.cli import GENEROUS, Sandbox, case_processes

TRAINING_SECONDS = 2.0
# The command, except that it gives up sooner on a rank that is silent: a test would only wait.
IMPATIENT = """
from paceline.cli.main import main
from paceline.runner import launcher_ranks

launcher_ranks.GATHER_SECONDS = 8.0
main()
"""


def start(
    sandbox: Sandbox, rank: int, port: int, *words: str, command: Sequence[str] = ("-m", "paceline")
) -> subprocess.Popen[str]:
    """What a launcher would start, but one that does not end the others when one is gone."""
    told = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return subprocess.Popen(
        [sys.executable, *command, *words],
        cwd=sandbox.work,
        env=sandbox.environment({name: str(value) for name, value in told.items()}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_training(runner: int) -> bool:
    """Whether its case computes; one that still waits for its peer takes no time of a processor."""
    try:
        return any(case.cpu_times().user > TRAINING_SECONDS for case in case_processes(runner))
    except psutil.NoSuchProcess:
        return False


@pytest.mark.long
def test_the_rank_that_failed_first_is_the_cause_although_it_is_not_the_first_rank(sandbox: Sandbox) -> None:
    words = ["run", "rankfail", "--how", "both", "--timeout", "90s", "--no-report"]
    port = free_port()
    processes = [start(sandbox, rank, port, *words) for rank in (0, 1)]
    errors = [process.communicate(timeout=GENEROUS)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], errors
    (record,) = sandbox.load().records
    assert record.cause is not None
    assert (record.cause.rank, record.cause.kind) == (1, CauseKind.ERROR)
    assert record.cause.message == "ValueError: rank one has a fault of its own"
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_a_process_that_is_gone_is_the_cause_and_no_later_case_waits_for_it(sandbox: Sandbox) -> None:
    long = {"benchmark": "parallel", "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 256, "layers": 2}
    long |= {"precision": "fp32", "data": 2, "steps": 1_000_000, "budget": "10min", "timeout": "200s"}
    suite = sandbox.suite(long, {"benchmark": "rankfail", "timeout": "200s"}, {"benchmark": "nap"})
    port = free_port()
    words = ["run", suite, "--no-report"]
    first, second = (start(sandbox, rank, port, *words, command=("-c", IMPATIENT)) for rank in (0, 1))
    deadline = time.monotonic() + GENEROUS
    while not (is_training(first.pid) and is_training(second.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    everything = [psutil.Process(second.pid), *psutil.Process(second.pid).children(recursive=True)]
    for process in everything:  # as when its host loses power
        process.send_signal(signal.SIGSTOP)
    for process in everything:
        process.kill()
    _, errors = first.communicate(timeout=GENEROUS)
    second.communicate()
    assert first.returncode == 1, errors
    gone, never, nap = sandbox.load().records
    for record in (gone, never):
        assert record.cause is not None
        assert (record.cause.rank, record.cause.kind) == (1, CauseKind.INTERRUPTED)
        assert "not heard of again" in record.cause.message
    assert never.seconds < 5
    assert nap.is_success  # what the first measures alone
    assert sandbox.left_behind() == []
