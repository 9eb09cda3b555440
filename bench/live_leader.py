"""Real jobs through a real leader, under round-robin with first come, first served, and under its own scheduler.

The jobs, and when they come, are the same under both; so is the leader. Both run at the same time, so that whatever
else the machine does disturbs them alike. Round-robin is what a user could ask of the leader: each job names its
follower by a label, and jobs that come earlier have the higher priority. Beside what was measured stands what the
simulator says of the same jobs, with the durations that they took and were predicted to take.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
import numpy as np

from paceline.analysis.simulation import BASELINE, OURS, measure
from paceline.core.benchmark import BENCHMARKS
from paceline.service.engines.base import Assignment, AttemptKey, AttemptReport, FollowerGone, FollowerState
from paceline.service.follower.worker import Worker
from paceline.service.job_store import UNFINISHED, list_jobs
from paceline.service.jobs import Job, JobState, MachineNeeds
from paceline.service.leader import Leader
from paceline.service.scheduler.state import Needs
from paceline.service.simulate import KIND, POLICIES, Fleet, SimulatedWorkload, load_of
from paceline.store import open_store
from paceline.store.store import Store

FOLLOWERS = 3
JOBS = 50
BEFORE = 15  # jobs that the predictions know when the others come
MEDIAN, SIGMA, LONGEST = 6.0, 1.0, 60.0  # seconds of a job, log-normal
LOAD = 0.8
START_SECONDS = 4.0  # that a job takes beyond its waiting, about
SEED = 5


class Followers:
    """Several followers on this machine, each a worker with a folder and processes of its own."""

    name = "bench"
    invitation = ""

    def __init__(self, folder: Path) -> None:
        names = [f"follower-{number}" for number in range(FOLLOWERS)]
        self._workers = {name: Worker(folder / name, name, (name,)) for name in names}

    def followers(self) -> Sequence[FollowerState]:
        """All of them."""
        return [worker.describe() for worker in self._workers.values()]

    def begin(self, follower: str, assignment: Assignment) -> None:
        """Start a process that measures."""
        self._of(follower).begin(assignment)

    def poll(self, follower: str, acknowledged: dict[AttemptKey, int]) -> Sequence[AttemptReport]:
        """What there is to tell."""
        return self._of(follower).poll(acknowledged)

    def cancel(self, follower: str, job_id: str, attempt: int) -> None:
        """Ask a process to stop."""
        self._of(follower).cancel(job_id, attempt)

    def close(self) -> None:
        """Nothing measures any more: every job was waited for."""

    def _of(self, follower: str) -> Worker:
        if follower not in self._workers:
            raise FollowerGone(f"there is no '{follower}'")
        return self._workers[follower]


@dataclass(frozen=True)
class Wanted:
    """A job to come: when, and about how long it waits."""

    at: float
    about: float
    draw: int


@dataclass(frozen=True)
class Done:
    """What became of a job; seconds since the first one came."""

    submitted: float
    predicted: float
    started: float
    ended: float


def main() -> None:
    """Print the table."""
    wanted = jobs_to_come()
    policies = (BASELINE, OURS)
    with known_plugin(), ExitStack() as opened, ThreadPoolExecutor(len(policies)) as pool:
        folders = [Path(opened.enter_context(tempfile.TemporaryDirectory())) for _ in policies]
        stores = [opened.enter_context(open_store(folder / "store.db")) for folder in folders]
        BENCHMARKS.registry()  # before the two of them import the same modules
        done = dict(zip(policies, pool.map(partial(led, wanted), policies, folders, stores), strict=True))
    click.echo(f"{FOLLOWERS} followers, {JOBS} jobs; mean completion time in seconds\n")
    click.echo(f"{'':36} {BASELINE:>12} {OURS:>12} {'ratio':>8}")
    _print("live leader", *(_mean(done[policy]) for policy in policies))
    for policy, jobs in done.items():
        trace = trace_of(jobs)
        fleet = Fleet(FOLLOWERS)
        simulated = [measure(POLICIES[name](trace, fleet)).mean for name in policies]
        _print(f"simulated, durations of {policy}", *simulated)
    for policy, jobs in done.items():
        trace = trace_of(jobs)
        click.echo(
            f"\n{policy}: load {load_of(trace, Fleet(FOLLOWERS)):.2f}, durations {np.min(trace.seconds):.1f} to "
            f"{np.max(trace.seconds):.1f} s, mean {np.mean(trace.seconds):.1f} s; predicted with an error of "
            f"{100 * trace.error:.0f} %; longest wait {max(job.started - job.submitted for job in jobs):.1f} s",
            nl=False,
        )
    click.echo()


def jobs_to_come() -> list[Wanted]:
    """A Poisson process of log-normal jobs, always the same."""
    generator = random.Random(SEED)
    abouts = [min(LONGEST, MEDIAN * generator.lognormvariate(0.0, SIGMA)) for _ in range(JOBS)]
    gaps = [0.0, *(generator.expovariate(1.0) for _ in range(JOBS - 1))]
    span = sum(about + START_SECONDS for about in abouts) / (LOAD * FOLLOWERS)
    times = np.cumsum(gaps) * (span / sum(gaps))
    return [Wanted(float(at), about, -1 - place) for place, (at, about) in enumerate(zip(times, abouts, strict=True))]


@contextmanager
def known_plugin() -> Iterator[None]:
    """Let this process, and those of the followers, find the benchmark of these jobs as that of a plug-in."""
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "paceline_bench_plugin-1.0.dist-info"
        described.mkdir()
        described.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: paceline-bench-plugin\nVersion: 1.0\n")
        described.joinpath("entry_points.txt").write_text("[paceline.plugins]\nbench = bench.plugin\n")
        found = [folder, str(Path(__file__).resolve().parent.parent)]
        sys.path[:0] = found
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*found, os.environ.get("PYTHONPATH")]))
        yield


def led(wanted: Sequence[Wanted], policy: str, folder: Path, store: Store) -> list[Done]:
    """All jobs through a leader of their own."""
    leader = Leader(store, Followers(folder / "followers"))
    threading.Thread(target=leader.run, daemon=True).start()
    try:
        while len(store.queue.followers()) < FOLLOWERS:
            time.sleep(0.05)
        generator = random.Random(SEED + 1)
        for place in range(BEFORE):
            about = min(LONGEST, MEDIAN * generator.lognormvariate(0.0, SIGMA))
            _submit(leader, f"before-{place}", Wanted(0.0, about, -1001 - place), "", 0)
        _wait_for_all(store)
        predicted = _come(leader, wanted, policy)
        _wait_for_all(store)
        return _done(store, predicted)
    finally:
        leader.close()


def _come(leader: Leader, wanted: Sequence[Wanted], policy: str) -> dict[str, float]:
    """Submit each job at its time; how long each was predicted to take."""
    predicted = {}
    begun = time.monotonic()
    for place, job in enumerate(wanted):
        time.sleep(max(0.0, begun + job.at - time.monotonic()))
        in_turn = policy == BASELINE
        label = f"follower-{place % FOLLOWERS}" if in_turn else ""
        name = f"job-{place:04}"
        predicted[name] = _submit(leader, name, job, label, 100 - place if in_turn else 0)
    return predicted


def _submit(leader: Leader, name: str, wanted: Wanted, label: str, priority: int) -> float:
    now = datetime.now(UTC)
    case = {"benchmark": "drawn", "about": f"{wanted.about:.6f}s", "draw": wanted.draw}
    job = Job(
        id=name,
        name="drawn",
        suite={"name": "drawn", "cases": [case]},
        needs=MachineNeeds(labels=(label,) if label else ()),
        priority=priority,
        submitted_at=now,
        state_at=now,
    )
    leader.submit(job)
    end = leader.expected_end(name)
    if end is not None:
        return (end - now).total_seconds()
    return next(seconds for job, seconds in leader.waiting(JOBS) if job.id == name)


def _wait_for_all(store: Store) -> None:
    while list_jobs(store, UNFINISHED, limit=1):
        time.sleep(0.1)


def _done(store: Store, predicted: dict[str, float]) -> list[Done]:
    jobs = [job for job in list_jobs(store) if job.id in predicted]
    if failed := [job.id for job in jobs if job.state is not JobState.SUCCEEDED]:
        raise ValueError(f"job {failed[0]} did not succeed")
    found = []
    for job in jobs:
        at = {event.kind: event.at.timestamp() for event in store.queue.events(job.id)}
        found.append(Done(at["submitted"], predicted[job.id], at["placed"], at["ended"]))
    found.sort(key=lambda job: job.submitted)
    first = found[0].submitted
    return [Done(job.submitted - first, job.predicted, job.started - first, job.ended - first) for job in found]


def trace_of(jobs: Sequence[Done]) -> SimulatedWorkload:
    """What the simulator is told: when jobs came, how long they had a follower, and what was predicted."""
    seconds = np.array([job.ended - job.started for job in jobs])
    predicted = np.array([job.predicted for job in jobs])
    error = float(np.std(np.log(seconds / predicted)))
    submitted, needs = np.array([job.submitted for job in jobs]), (Needs(kind=KIND),) * len(jobs)
    return SimulatedWorkload("live", submitted, seconds, predicted, error, needs, (0,) * len(jobs))


def _mean(jobs: Sequence[Done]) -> float:
    return float(np.mean([job.ended - job.submitted for job in jobs]))


def _print(name: str, baseline: float, ours: float) -> None:
    click.echo(f"{name:36} {baseline:12.2f} {ours:12.2f} {baseline / ours:8.2f}")
