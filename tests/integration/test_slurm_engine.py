"""A leader of a real Slurm of two nodes: jobs that wait, run, are cancelled or killed, and a leader that comes back."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.core.record import Outcome
from paceline.service.engines import EngineOptions
from paceline.service.engines.slurm import SlurmEngine
from paceline.service.engines.slurm_commands import PROGRAMS, list_jobs, list_nodes
from paceline.service.jobs import Job, JobState
from paceline.service.leader import Leader
from paceline.store import open_store
from paceline.store.store import Store
from support.cli import MARK, PLUGIN, Sandbox
from support.namespaces import two_hosts
from support.scripted_followers import a_job, naps
from support.slurm import Slurm, slurm_on

pytestmark = [pytest.mark.alone, pytest.mark.long]

PATIENCE = 150.0  # seconds for any one thing to happen; only what hangs takes so long
SHORT_LEASE = timedelta(seconds=3)
LONG = naps("300s", steps=3000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    folder = tmp_path_factory.mktemp("cluster") / "slurm"
    with two_hosts() as hosts, slurm_on(hosts, folder, has_gpus=True) as made:
        yield made


@pytest.fixture(autouse=True)
def _as_on_the_first_node(cluster: Slurm, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slurm's programs reach the cluster from here, and what they start knows the plug-in of the tests."""
    folder = sandbox.folder / "bin"
    folder.mkdir()
    for program in (*PROGRAMS, "scontrol"):
        shim = folder / program
        there = f"SLURM_CONF={cluster.configuration} exec ip netns exec {cluster.hosts.first}"
        shim.write_text(f'#!/bin/sh\n{there} {shutil.which(program)} "$@"\n', encoding="utf-8")
        shim.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    for name, value in sandbox.environment().items():
        if name in ("PYTHONPATH", MARK) or name.startswith("XDG_"):
            monkeypatch.setenv(name, value)
    assert str(PLUGIN) in os.environ["PYTHONPATH"]
    yield
    # Whatever a test left behind, so that the next finds the nodes free.
    for job in list_jobs():
        if not job.is_over:
            cluster.call("scancel", job.id, folder=sandbox.work, environment=os.environ, timeout=PATIENCE)
    wait_for("free nodes", lambda: all(job.is_over for job in list_jobs()))


@dataclass
class Led:
    """A leader in this process, which can be ended and begun again on the same store."""

    sandbox: Sandbox
    store: Store
    lease: timedelta = timedelta(seconds=30)
    leader: Leader | None = None
    thread: threading.Thread | None = None

    @property
    def folder(self) -> Path:
        return self.sandbox.folder / "shared"

    def lead(self) -> None:
        engine = SlurmEngine(EngineOptions(self.sandbox.folder, shared=self.folder))
        self.leader = Leader(self.store, engine, lease=self.lease)
        self.thread = threading.Thread(target=self.leader.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        assert self.leader is not None
        assert self.thread is not None
        self.leader.close()
        self.thread.join(PATIENCE)
        self.leader = None

    def submit(self, name: str, suite: dict[str, Any], **more: Any) -> None:
        assert self.leader is not None
        self.leader.submit(a_job(name, datetime.now(UTC), suite=suite, **more))

    def cancel(self, name: str) -> None:
        assert self.leader is not None
        self.leader.cancel(name)

    def doing(self, name: str) -> str:
        assert self.leader is not None
        return self.leader.progress(name).title

    def job(self, name: str) -> Job:
        row = self.store.queue.job(name)
        assert row is not None
        return Job.model_validate(row)

    def until(self, name: str, *states: JobState) -> Job:
        wait_for(f"{name} to be {states}", lambda: self.job(name).state in states)
        return self.job(name)

    def losses(self, name: str) -> list[str]:
        return [event.document["reason"] for event in self.store.queue.events(name) if event.kind == "lost"]

    def slurm_jobs(self, name: str) -> list[str]:
        """The numbers of all Slurm jobs there ever were for the first attempt at a job."""
        return [job.id for job in list_jobs() if job.folder == str(self.folder / f"{name}.1")]


@pytest.fixture
def led(sandbox: Sandbox) -> Iterator[Led]:
    with open_store(sandbox.folder / "store.db") as store:
        made = Led(sandbox, store)
        try:
            yield made
        finally:
            if made.leader is not None:
                made.stop()


def wait_for(what: str, is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def test_nodes_are_followers_and_every_result_is_there_once(led: Led, cluster: Slurm) -> None:
    led.lead()
    assert led.leader is not None
    wait_for("followers", lambda: led.leader and len(led.leader.followers()) == 2)
    first, second = sorted(led.leader.followers(), key=lambda state: state.id)
    assert (first.id, first.gpus, first.labels) == (cluster.hosts.first, ("h200", "h200"), ("all", "nvlink"))
    assert (second.gpus, second.labels, second.cpus) == ((), ("all",), 2.0)
    led.submit("one", naps("100ms", "200ms"))
    led.submit("two", naps("100ms", "200ms"))
    led.submit("bad", {"name": "bad", "cases": [{"benchmark": "no-such-thing"}]})
    for name in ("one", "two"):
        job = led.until(name, JobState.SUCCEEDED, JobState.FAILED)
        assert job.state is JobState.SUCCEEDED, job.failure
        assert job.attempt == 1
        run = led.store.load(job.run_ids[0])
        assert run.run.status == "finished"
        assert sorted(record.case.index for record in run.records) == [0, 1]
        assert len(led.slurm_jobs(name)) == 1
    failed = led.until("bad", JobState.FAILED)
    assert failed.failure is not None
    assert "no-such-thing" in failed.failure.message
    assert len(led.store.runs(limit=None)) == 2
    wait_for("empty folders", lambda: [path.name for path in led.folder.iterdir()] == ["leader"])


def test_the_command_leads_a_cluster(sandbox: Sandbox) -> None:
    options = ["leader", "--port", "0", "--engine", "slurm", "--slurm-partition", "all"]
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", *options, "--slurm-folder", str(sandbox.folder / "shared")],
        cwd=sandbox.work,
        env=sandbox.environment({"PATH": os.environ["PATH"]}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        done = sandbox.run("submit", "nap", "--wait", env={"PACELINE_LEADER": url})
        assert done.returncode == 0, done.stdout + done.stderr
        assert "succeeded - run " in done.stdout
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert len(sandbox.load().records) == 1


def test_a_job_that_waits_in_slurm_is_not_lost_nor_run_twice(led: Led, cluster: Slurm) -> None:
    for _ in range(2):
        words = ["sbatch", "--exclusive", "--wrap=exec sleep 300", "--output=/dev/null"]
        cluster.call(*words, folder=led.sandbox.work, environment=os.environ, timeout=PATIENCE)
    others = [job.id for job in list_jobs() if not job.is_over]
    led.lease = SHORT_LEASE
    led.lead()
    led.submit("patient", naps("100ms"))
    wait_for("its place in the queue", lambda: led.doing("patient").startswith("waiting in Slurm's queue as job"))
    placed = led.job("patient")
    assert placed.lease_until is not None
    led.stop()
    _forget_number(led.folder / "patient.1")  # as if it had been killed before it had Slurm's answer
    led.lead()
    wait_for("the other leader's word", lambda: led.doing("patient").startswith("waiting in Slurm's queue as job"))
    end = placed.lease_until + 2 * SHORT_LEASE
    wait_for("leases to pass", lambda: datetime.now(UTC) > end)
    assert led.job("patient").state is JobState.PLACED
    cluster.call("scancel", *others, folder=led.sandbox.work, environment=os.environ, timeout=PATIENCE)
    job = led.until("patient", JobState.SUCCEEDED, JobState.FAILED)
    assert (job.state, job.attempt, led.losses("patient")) == (JobState.SUCCEEDED, 1, [])
    assert len(led.slurm_jobs("patient")) == 1


def _forget_number(folder: Path) -> None:
    note = json.loads((folder / "slurm.json").read_text())
    assert note["number"]
    (folder / "slurm.json").write_text(json.dumps({**note, "number": ""}))


def test_a_leader_that_comes_back_takes_over_what_runs(led: Led) -> None:
    led.lead()
    led.submit("long", naps("4s", "100ms", steps=40))
    led.until("long", JobState.RUNNING)
    led.stop()
    led.lead()
    job = led.until("long", JobState.SUCCEEDED, JobState.FAILED)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    assert len(led.store.load(job.run_ids[0]).records) == 2
    assert len(led.slurm_jobs("long")) == 1


def test_a_job_that_is_killed_is_tried_again_and_says_why_until_it_is_cancelled(led: Led, cluster: Slurm) -> None:
    led.lead()
    led.submit("killed", naps("10ms", "300s", steps=3000))
    led.until("killed", JobState.RUNNING)
    (number,) = led.slurm_jobs("killed")
    cluster.call("scancel", number, folder=led.sandbox.work, environment=os.environ, timeout=PATIENCE)
    wait_for("the first loss", lambda: led.losses("killed"))
    assert f"Slurm's job {number} on" in led.losses("killed")[0]
    assert "CANCELLED" in led.losses("killed")[0]

    wait_for("the second attempt", lambda: _is_running(led, "killed", attempt=2))
    for process in led.sandbox.processes():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_for("the second loss", lambda: len(led.losses("killed")) == 2)
    assert "FAILED" in led.losses("killed")[1]

    wait_for("the third attempt", lambda: _is_running(led, "killed", attempt=3))
    run_id = led.job("killed").run_ids[2]
    wait_for("its first record", lambda: led.store.load(run_id).records)
    led.cancel("killed")
    led.until("killed", JobState.CANCELLED)
    assert led.store.load(run_id).records[0].outcome is Outcome.OK
    assert led.sandbox.left_behind() == []
    assert all(job.is_over for job in list_jobs())


def _is_running(led: Led, name: str, attempt: int) -> bool:
    job = led.job(name)
    return job.state is JobState.RUNNING and job.attempt == attempt


def test_a_node_that_is_drained_gets_nothing_and_finishes_what_it_has(led: Led, cluster: Slurm) -> None:
    led.lead()
    led.submit("running", naps("3s", steps=30), needs={"labels": ["nvlink"]})
    led.until("running", JobState.RUNNING)
    drain = ["scontrol", "update", f"nodename={cluster.hosts.first}"]
    _scontrol(cluster, led, *drain, "state=drain", "reason=test")
    try:
        assert led.until("running", JobState.SUCCEEDED, JobState.FAILED).attempt == 1
        assert [node.is_usable for node in list_nodes([]) if node.name == cluster.hosts.first] == [False]
    finally:
        _scontrol(cluster, led, *drain, "state=resume")


def _scontrol(cluster: Slurm, led: Led, *words: str) -> None:
    done = cluster.call(*words, folder=led.sandbox.work, environment=os.environ, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def test_jobs_for_a_gpu_each_share_the_node_but_not_the_gpu(led: Led) -> None:
    led.lead()
    for name in ("left", "right"):
        led.submit(name, LONG, needs={"gpu": "h200", "gpus": 1})
    for name in ("left", "right"):
        led.until(name, JobState.RUNNING)
    seen = {_visible(process, led.folder) for process in led.sandbox.processes()} - {None}
    assert seen in ({("left.1", "0"), ("right.1", "1")}, {("left.1", "1"), ("right.1", "0")})
    for name in ("left", "right"):
        led.cancel(name)
        led.until(name, JobState.CANCELLED)


def _visible(process: psutil.Process, folder: Path) -> tuple[str, str] | None:
    """Whose process this is, and which GPUs it sees."""
    with suppress(psutil.Error):
        words, environment = process.cmdline(), process.environ()
        if words and words[-1].startswith(str(folder)):
            return Path(words[-1]).name, environment["CUDA_VISIBLE_DEVICES"]
    return None
