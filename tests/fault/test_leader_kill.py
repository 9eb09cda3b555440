"""kill -9 of a leader under load, at any moment: no job that it took and no result is lost, and none is there twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from paceline.core.run import RunRecords
from paceline.service.jobs import Job, JobState
from paceline.store import open_store
from paceline.store.store import Store
from support.cli import PLUGIN, Sandbox

KILLS = int(os.environ.get("PACELINE_TEST_LEADER_KILLS", "10"))  # of the long test
FEW = 3
LONGEST = 2.5  # seconds that a leader lives
PATIENCE = 120.0  # seconds without any progress; only what hangs takes so long


class Client:
    """Submits jobs to one leader after the other, and knows which of them were taken."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._wanted: list[str] = []
        self.taken: set[str] = set()
        self.is_leading = threading.Event()

    def start(self) -> subprocess.Popen[str]:
        tests = Path(__file__).parent.parent
        paths = os.pathsep.join(map(str, (PLUGIN, tests)))
        leader = subprocess.Popen(
            [sys.executable, "-m", "support.leader_process", str(self._sandbox.folder)],
            env=self._sandbox.environment({"PYTHONPATH": paths}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.is_leading.clear()
        threading.Thread(target=self._listen, args=(leader,), daemon=True).start()
        for job in self._wanted:  # who was not answered asks again, as any client would
            if job not in self.taken:
                self._send(leader, job)
        return leader

    def submit(self, leader: subprocess.Popen[str]) -> None:
        self._wanted.append(f"job-{len(self._wanted)}")
        self._send(leader, self._wanted[-1])

    def has_all(self) -> bool:
        return self.taken.issuperset(self._wanted)

    def _send(self, leader: subprocess.Popen[str], job: str) -> None:
        assert leader.stdin is not None
        try:
            leader.stdin.write(f"{job}\n")
            leader.stdin.flush()
        except BrokenPipeError:
            pass

    def _listen(self, leader: subprocess.Popen[str]) -> None:
        assert leader.stdout is not None
        for line in leader.stdout:
            if line == "leading\n":
                self.is_leading.set()
            elif line.endswith("\n"):
                self.taken.add(line.strip())


@pytest.mark.parametrize("kills", [FEW, pytest.param(KILLS, marks=pytest.mark.long)])
def test_a_leader_that_is_killed_loses_and_doubles_nothing(sandbox: Sandbox, kills: int) -> None:
    rng = random.Random(5)
    client = Client(sandbox)
    killed_leading = 0
    for _ in range(kills):
        leader = client.start()
        client.submit(leader)
        if rng.random() < 0.7:
            client.is_leading.wait(PATIENCE)
        time.sleep(rng.uniform(0.0, LONGEST))
        killed_leading += client.is_leading.is_set()
        leader.kill()
        leader.wait()
    leader = client.start()
    with open_store(sandbox.folder / "store.db") as store:
        _wait(store, client)
        leader.kill()
        leader.wait()
        jobs = [Job.model_validate(row) for row in store.queue.jobs(limit=None)]
        runs = [store.load(row.id) for row in store.runs(limit=None)]
        submitted = {job.id: [event.kind for event in store.queue.events(job.id)].count("submitted") for job in jobs}
    attempts = sum(job.attempt for job in jobs)
    records = sum(len(run.records) for run in runs)
    finished = sum(run.run.status == "finished" for run in runs)
    print(
        f"{kills} kills ({killed_leading} of them while it led), {len(client.taken)} jobs taken, {len(jobs)} kept, "
        f"{attempts} attempts, {finished} whole runs, {records} records"
    )
    assert {job.id for job in jobs} == client.taken
    assert set(submitted.values()) == {1}
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    whole = [run.run.id for run in runs if run.run.status == "finished"]
    assert sorted(whole) == sorted(job.run_ids[-1] for job in jobs)
    assert all(len(run.records) == 1 for run in runs if run.run.status == "finished")
    _never_two_at_once(runs)
    assert sandbox.left_behind() == []


def _wait(store: Store, client: Client) -> None:
    """Until every job has ended; it may take as long as it goes on at all."""
    standing, deadline = -1, time.monotonic() + PATIENCE
    while not client.has_all() or (unfinished := store.queue.jobs(["queued", "placed", "running"], limit=None)):
        left = len(unfinished) if client.has_all() else -1
        if left != standing:
            standing, deadline = left, time.monotonic() + PATIENCE
        assert time.monotonic() < deadline, f"{left} jobs do not end"
        time.sleep(0.2)


def _never_two_at_once(runs: list[RunRecords]) -> None:
    """The jobs measure the processor: no two of them may overlap."""
    records = sorted((record for run in runs for record in run.records), key=lambda record: record.started_at)
    for one, other in pairwise(records):
        assert one.started_at + timedelta(seconds=one.seconds) <= other.started_at + timedelta(milliseconds=50)
