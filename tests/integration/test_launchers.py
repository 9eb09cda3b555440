"""Processes that torchrun or mpirun started measure one suite together: one run, one record per case."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest

from paceline.core.record import CauseKind, Outcome
from support.cli import Sandbox

TRAIN = ["run", "train", "--model", "lstm", "--scale", "tiny", "--batch-size", "2", "--steps", "4"]
QUICK = ["--warm-up", "100ms", "--no-report"]
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


def mpirun() -> list[str]:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not here: apt-get install openmpi-bin")
    return ["mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", sys.executable, "-m", "paceline"]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def assert_one_record_of_two_ranks(sandbox: Sandbox) -> None:
    with_store = sandbox.load()
    assert with_store.run.status == "finished"
    (record,) = with_store.records
    assert record.outcome is Outcome.OK
    assert record.case.ranks == 2
    assert record.facts["ranks"] == 2
    throughput, step_time = record.measurement("throughput"), record.measurement("step_time")
    assert throughput is not None
    assert step_time is not None
    assert throughput.work == 4  # of both ranks
    assert throughput.value == pytest.approx(4 * len(step_time.samples) / sum(step_time.samples))
    assert record.measurement("throughput", "rank 1") is not None
    rows = sandbox.run("results")
    assert rows.stdout.count(with_store.run.id) == 1
    assert rows.stdout.count("finished") == 1


@pytest.mark.long
def test_torchrun_joins_its_processes_into_one_run(sandbox: Sandbox) -> None:
    command = [TORCHRUN, "--nproc-per-node", "2", "--master-port", free_port(), "-m", "paceline", *TRAIN, *QUICK]
    done = sandbox.call(command)
    assert done.returncode == 0, done.stderr  # torchrun fails when any of its processes does
    assert_one_record_of_two_ranks(sandbox)
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_mpirun_joins_its_processes_into_one_run(sandbox: Sandbox) -> None:
    done = sandbox.call([*mpirun(), *TRAIN, *QUICK], env={"MASTER_PORT": free_port()})
    assert done.returncode == 0, done.stderr
    assert_one_record_of_two_ranks(sandbox)
    assert sandbox.left_behind() == []


@pytest.mark.long
def test_a_rank_that_fails_under_a_launcher_is_the_cause_and_every_process_says_so(sandbox: Sandbox) -> None:
    command = [TORCHRUN, "--nproc-per-node", "2", "--master-port", free_port(), "-m", "paceline"]
    done = sandbox.call([*command, "run", "rankfail", "--timeout", "90s", "--no-report"])
    assert done.returncode == 1, done.stderr
    (record,) = sandbox.load().records
    assert record.outcome is Outcome.FAILED
    assert record.cause is not None
    assert (record.cause.rank, record.cause.kind) == (1, CauseKind.ERROR)
    assert record.cause.message == "ValueError: rank one has a fault of its own"
    assert record.seconds < 60
    assert sandbox.left_behind() == []
