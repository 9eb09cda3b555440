"""`srun paceline run` on a real Slurm of two nodes: one run, one record, and a script of sbatch that stays alone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core.record import Outcome
from paceline.runner.launcher_ranks import first_host
from support.cli import GENEROUS, Sandbox
from support.namespaces import two_hosts
from support.slurm import Slurm, slurm_on

pytestmark = pytest.mark.alone

PACELINE = [sys.executable, "-m", "paceline"]
TRAIN = ["run", "train", "--model", "lstm", "--scale", "tiny", "--batch-size", "2", "--steps", "2"]
SHORT = ["--warm-up", "100ms", "--no-report"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with two_hosts() as hosts, slurm_on(hosts, tmp_path_factory.mktemp("cluster") / "slurm") as cluster:
        yield cluster


@pytest.mark.slow
def test_tasks_of_a_step_over_two_nodes_are_one_run(slurm: Slurm, sandbox: Sandbox) -> None:
    words = ["srun", "--nodes", "2", "--ntasks", "3", *PACELINE, *TRAIN, *SHORT]
    done = slurm.call(*words, folder=sandbox.work, environment=sandbox.environment(), timeout=GENEROUS)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = sandbox.load().records
    assert record.outcome is Outcome.OK, record.cause
    assert record.facts["ranks"] == 3
    assert record.measurement("throughput", "rank 2") is not None
    assert sandbox.run("results").stdout.count("finished") == 1


@pytest.mark.long
def test_a_script_and_a_step_of_one_task_measure_alone(slurm: Slurm, sandbox: Sandbox) -> None:
    nap = f"{' '.join(PACELINE)} run nap --no-report"
    lines = ["#!/bin/sh", "env > script.env", nap, f"srun --nodes 1 --ntasks 1 {nap}", "mv script.env done.env"]
    script = sandbox.write("job.sh", "\n".join(lines) + "\n")
    words = ["sbatch", "--nodes", "2", "--ntasks", "3", "--output", "job.log", script]
    done = slurm.call(*words, folder=sandbox.work, environment=sandbox.environment(), timeout=GENEROUS)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + GENEROUS
    while not (sandbox.work / "done.env").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    said = (sandbox.work / "job.log").read_text()
    assert "SLURM_NTASKS=3" in (sandbox.work / "done.env").read_text().splitlines(), said
    assert sandbox.run("results").stdout.count("finished") == 2, said


@pytest.mark.parametrize("hosts", ["node[01-03,7],gpu5", "a", "n[8-11],b[1-2,009]", "r[1-2]n[01-02]"])
def test_lists_of_nodes_are_read_as_slurm_reads_them(slurm: Slurm, tmp_path: Path, hosts: str) -> None:
    done = slurm.call("scontrol", "show", "hostnames", hosts, folder=tmp_path, environment=os.environ, timeout=GENEROUS)
    assert first_host(hosts) == done.stdout.split()[0]
