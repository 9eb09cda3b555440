"""A job on two followers at once, with real processes: both measure together, and what ends one ends both."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.service.jobs import FailureKind, Job, JobState, MachineNeeds
from paceline.service.leader import Leader
from paceline.store import open_store
from paceline.store.store import Store
from support.cli import MARK, PLUGIN
from support.kept_jobs import history, kept, statuses
from support.scripted_followers import a_job
from support.workers import Workers

PATIENCE = 600.0  # seconds; only what hangs takes so long
TINY = {"model": "resnet18", "scale": "tiny", "batch_size": 2, "steps": 2, "warm_up": "100ms"}
TRAIN = {"name": "train", "cases": [{"benchmark": "train", **TINY}]}
EXCHANGE = {"name": "exchange", "cases": [{"benchmark": "collective", "sizes": "4KiB", "budget": "500ms"}]}
pytestmark = pytest.mark.slow


class Cluster:
    """A leader over two workers, which takes a step whenever somebody waits for something."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.store = store
        self.workers = Workers(folder, ["one", "two"])
        self.leader = Leader(store, self.workers, lease=timedelta(seconds=60))

    def submit(self, suite: dict[str, Any]) -> None:
        job: Job = a_job(at=datetime.now(UTC), suite=suite, needs=MachineNeeds(nodes=2))
        self.leader.submit(job)

    def until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < deadline, [row.text for row in self.store.queue.logs("job")]
            self.leader.step()
            time.sleep(0.05)

    def until_running(self) -> None:
        self.until(lambda: kept(self.store).state is JobState.RUNNING)

    def until_over(self) -> None:
        self.until(lambda: kept(self.store).state.is_final)
        self.until(lambda: not self.workers.spools("one") and not self.workers.spools("two"))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("PYTHONPATH", str(PLUGIN))
    monkeypatch.setenv(MARK, tmp_path.name)
    with open_store(tmp_path / "store.db") as store:
        made = Cluster(tmp_path / "followers", store)
        try:
            yield made
        finally:
            made.workers.end_all()
            made.leader.close()
    deadline = time.monotonic() + 60  # what imports torch notices only afterwards that nobody wants it
    while left := _marked(tmp_path.name):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.pid != psutil.Process().pid:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.long
def test_both_followers_are_ranks_of_one_case(cluster: Cluster) -> None:
    cluster.submit(TRAIN)
    cluster.until_over()
    job = kept(cluster.store)
    assert job.state is JobState.SUCCEEDED, job.failure
    (record,) = cluster.store.load(job.run_ids[0]).records
    assert record.case.ranks == record.facts["ranks"] == 2
    assert record.facts["global_batch_size"] == 4
    assert record.facts["last_loss"] > 0
    assert record.facts["nodes"] == 2
    assert sorted(record.facts["hosts"]) == ["one", "two"]
    assert history(cluster.store) == ["submitted", "placed", "began", "ended"]
    assert statuses(cluster.store) == ["finished"]
    assert [attempt for _, attempt in cluster.workers.begun] == [("job", 1), ("job", 1)]
    lines = cluster.store.queue.logs("job")
    assert {row.follower for row in lines if row.text.startswith("  ok after")} == {"one", "two"}
    assert [row.number for row in lines] == list(range(1, len(lines) + 1))


@pytest.mark.long
@pytest.mark.parametrize("place", [0, 1])
def test_one_that_is_killed_ends_the_attempt_on_both_and_the_next_one_is_whole(cluster: Cluster, place: int) -> None:
    cluster.submit(EXCHANGE)
    cluster.until(lambda: any(": rank 1 of 2" in row.text for row in cluster.store.queue.logs("job")))
    victim = kept(cluster.store).followers[place]
    cluster.workers.signal(victim, signal.SIGKILL)
    cluster.until_over()
    job = kept(cluster.store)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2), job.failure
    assert history(cluster.store) == ["submitted", "placed", "began", "lost", "placed", "began", "ended"]
    lost = next(event for event in cluster.store.queue.events("job") if event.kind == "lost")
    assert lost.document["reason"].startswith(f"follower {victim}: the process that measured ended by signal 9")
    assert statuses(cluster.store) == ["interrupted", "finished"]
    assert len(cluster.store.load(job.run_ids[1]).records) == 1
    assert sorted(cluster.workers.begun) == [(one, ("job", n)) for one in ("one", "two") for n in (1, 2)]


def test_a_rank_that_fails_is_the_cause_and_nothing_is_tried_again(cluster: Cluster) -> None:
    cluster.submit({"name": "fails", "cases": [{"benchmark": "rankfail"}]})
    cluster.until_over()
    job = kept(cluster.store)
    assert (job.state, job.attempt) == (JobState.FAILED, 1)
    assert job.failure is not None
    assert job.failure.kind is FailureKind.CASES
    assert "rank one has a fault of its own" in job.failure.message
    (record,) = cluster.store.load(job.run_ids[0]).records
    assert record.cause is not None
    assert record.cause.rank == 1
    placed = next(event for event in cluster.store.queue.events("job") if event.kind == "placed")
    second = placed.document["followers"][1]
    told = [row.text for row in cluster.store.queue.logs("job") if row.follower == second]
    assert any("rank one has a fault of its own" in line for line in told), "who failed tells it as well"


@pytest.mark.long
def test_cancelling_stops_both(cluster: Cluster) -> None:
    cluster.submit({"name": "long", "cases": [{"benchmark": "nap", "duration": "300s", "steps": 3000}]})
    cluster.until_running()
    cluster.leader.cancel("job")
    cluster.until_over()
    assert kept(cluster.store).state is JobState.CANCELLED
    assert statuses(cluster.store) == ["interrupted"]
