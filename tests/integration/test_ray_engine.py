"""A leader of a Ray cluster with three nodes: one dies, one is cut off and returns, and the leader itself is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.service.jobs import FailureKind, Job, JobState
from paceline.store import open_store
from paceline.store.store import Store
from support.cli import PLUGIN, Sandbox
from support.scripted_followers import naps

pytest.importorskip("ray", reason="Ray is not installed: pip install 'paceline[cluster]'")
pytestmark = [pytest.mark.alone, pytest.mark.slow]

PATIENCE = 150.0  # seconds for any one thing to happen; only what hangs takes so long
NODE = "PACELINE_TEST_NODE"
HOST = "127.0.0.2"  # of the head; the others count on from there


@dataclass
class RayCluster:
    """A leader with the head of a cluster, and followers that join it, all of them processes on loopback."""

    sandbox: Sandbox
    port: int
    temporary: Path
    leader: subprocess.Popen[str] | None = None
    followers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self, node: str) -> dict[str, str]:
        tests = Path(__file__).parent.parent
        paths = os.pathsep.join(map(str, (PLUGIN, tests)))
        return self.sandbox.environment({"PYTHONPATH": paths, "RAY_TMPDIR": str(self.temporary), NODE: node})

    def lead(self) -> None:
        self.leader = subprocess.Popen(
            [sys.executable, "-m", "support.leader_process", str(self.sandbox.folder), str(self.port)],
            env=self.environment("home"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.answer() == "leading"

    def answer(self) -> str:
        assert self.leader is not None
        assert self.leader.stdout is not None
        return self.leader.stdout.readline().strip()

    def submit(self, name: str, suite: dict[str, Any], **more: Any) -> None:
        assert self.leader is not None
        assert self.leader.stdin is not None
        self.leader.stdin.write(f"{json.dumps({'name': name, 'suite': suite, **more})}\n")
        self.leader.stdin.flush()
        assert self.answer() == name

    def follow(self, name: str, number: int) -> None:
        options = ["--leader", f"{HOST}:{self.port}", "--token-file", str(self.sandbox.folder / "ray-token")]
        own = f"127.0.0.{number}"
        with (self.sandbox.folder / f"{name}.log").open("wb") as output:
            self.followers.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "paceline", "follower", *options),
                        *("--name", name, "--label", name, "--own-address", own),
                    ],
                    env=self.environment(name),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def processes(self, node: str, what: str = "") -> list[psutil.Process]:
        """What runs on a node, or those of its processes whose command names something."""
        found = []
        for process in self.sandbox.processes():
            with suppress(psutil.Error):
                if process.environ().get(NODE) == node and what in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def signal(self, node: str, number: signal.Signals, what: str = "") -> None:
        hit = self.processes(node, what)
        assert hit
        for process in hit:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


@pytest.fixture
def ray_cluster(sandbox: Sandbox) -> Iterator[RayCluster]:
    temporary = Path(tempfile.mkdtemp(prefix="paceline-ray-", dir="/tmp"))  # a socket's path may not be long
    made = RayCluster(sandbox, _free_port(), temporary)
    try:
        yield made
    finally:
        sandbox.clean()
        for child in [made.leader, *made.followers]:
            if child is not None:
                child.wait(30)
        shutil.rmtree(temporary, ignore_errors=True)


def _free_port() -> int:
    """One that Ray does not use for anything else."""
    for port in range(21000, 32000):
        with socket.socket() as tried, suppress(OSError):
            tried.bind((HOST, port))
            return port
    raise AssertionError("no free port")


def wait_for(what: str, is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def all_jobs(store: Store, *states: JobState) -> list[Job]:
    return [Job.model_validate(row.document) for row in store.queue.jobs(states, limit=None)]


def on(store: Store, follower: str) -> list[Job]:
    return [job for job in all_jobs(store, JobState.RUNNING) if job.followers == (follower,)]


def losses(store: Store, follower: str) -> int:
    """How often a job was lost with this follower."""
    events = [event for job in all_jobs(store) for event in store.queue.events(job.id) if event.kind == "lost"]
    return sum(f"follower {follower}" in event.document["reason"] for event in events)


def test_every_job_ends_once_whatever_happens_to_the_nodes(ray_cluster: RayCluster) -> None:
    cluster = ray_cluster
    cluster.lead()
    with open_store(cluster.sandbox.folder / "store.db") as store:
        for number, name in enumerate(["bravo", "charlie"], start=3):  # one by one, as Ray is slow to start
            cluster.follow(name, number)
            wait_for(name, lambda name=name: name in {row.id for row in store.queue.followers()})
        _submit_twelve(cluster)

        wait_for("a job on bravo", lambda: on(store, "bravo"))
        cluster.signal("bravo", signal.SIGKILL)
        wait_for("the loss of bravo", lambda: losses(store, "bravo"))

        wait_for("a job on charlie", lambda: on(store, "charlie"))
        cluster.signal("charlie", signal.SIGSTOP, "RayFollower")
        wait_for("the loss of charlie", lambda: losses(store, "charlie"))
        cluster.signal("charlie", signal.SIGCONT, "RayFollower")

        assert cluster.leader is not None
        cluster.leader.kill()
        cluster.leader.wait()
        cluster.lead()
        cluster.submit("after", naps("100ms"), needs={"labels": ["charlie"]})

        unfinished = (JobState.QUEUED, JobState.PLACED, JobState.RUNNING)
        wait_for("the end of all jobs", lambda: not all_jobs(store, *unfinished))
        _count(store)
    assert cluster.leader.stdin is not None
    cluster.leader.stdin.close()
    assert cluster.leader.wait(PATIENCE) == 0


def _submit_twelve(cluster: RayCluster) -> None:
    for number in range(3):
        cluster.submit(f"short-{number}", naps("100ms"))
        cluster.submit(f"several-{number}", naps("100ms", "200ms", "300ms"))
        cluster.submit(f"long-{number}", naps("6s", "1s", steps=60))
    cluster.submit("fails", {"name": "fails", "cases": [{"benchmark": "raises"}, {"benchmark": "nap"}]})
    cluster.submit("refused", {"name": "refused", "cases": [{"benchmark": "no-such-thing"}]})
    cluster.submit("at-home", naps("100ms"), needs={"labels": ["home"]})


def _count(store: Store) -> None:
    """Every job ended once, every result is there once, and the history tells what happened."""
    jobs = {job.id: job for job in all_jobs(store)}
    runs = {row.id: store.load(row.id) for row in store.runs(limit=None)}
    events = {name: store.queue.events(name) for name in jobs}
    print(
        f"{len(jobs)} jobs, {sum(job.attempt for job in jobs.values())} attempts, {len(runs)} runs, "
        f"{sum(len(run.records) for run in runs.values())} records"
    )
    assert len(jobs) == 13
    for name, job in jobs.items():
        kinds = [event.kind for event in events[name]]
        assert (kinds[0], kinds[-1], kinds.count("ended")) == ("submitted", "ended", 1)
        assert kinds.count("placed") == job.attempt == kinds.count("lost") + 1
        results = [runs[run_id] for run_id in job.run_ids if run_id in runs and runs[run_id].run.status == "finished"]
        if name == "refused":
            assert (job.state, results) == (JobState.FAILED, [])
            assert job.failure is not None
            assert job.failure.kind is FailureKind.REFUSED
            continue
        assert job.state is (JobState.FAILED if name == "fails" else JobState.SUCCEEDED)
        assert [result.run.id for result in results] == [job.run_ids[-1]]
        assert sorted(record.case.index for record in results[0].records) == list(range(len(results[0].run.cases)))
    placed = [event.document["followers"] for event in events["after"] if event.kind == "placed"]
    assert placed[-1] == ["charlie"], "it takes jobs again"
