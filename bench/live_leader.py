"""Real jobs through a real leader, under round-robin with first come, first served, and under its own scheduler.

The jobs, and when they come, are the same under both; so is the leader. Both run at the same time, so that whatever
else the machine does disturbs them alike. Round-robin is what a user could ask of the leader: each job names its
follower. That each of these serves first come, first served is the leader's own rule for what has waited too long, when
nothing may wait at all. Durations are predicted as those of any jobs, by the model and the steps that their cases name,
from the jobs before; the first job knows of none. Next to what was measured stands what the simulator says of the same
jobs, with the durations that they took and were predicted to take.
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

from bench.plugin.benchmarks.drawn import MODELS, STEPS, STEPS_SPREAD, Model, seconds_of
from paceline.analysis.simulation import BASELINE, CLAIRVOYANT, OURS, SimulatedOutcome, measure
from paceline.core.benchmark import BENCHMARKS
from paceline.core.registry import providers
from paceline.core.stats import CONFIDENCE, student_quantile
from paceline.service.engines.base import Assignment, AttemptKey, AttemptReport, FollowerGone, FollowerState
from paceline.service.follower.worker import Worker
from paceline.service.job_store import UNFINISHED, list_jobs
from paceline.service.jobs import Job, JobState, MachineNeeds
from paceline.service.leader import Leader
from paceline.service.placement import DurationPredictor, cases_of
from paceline.service.scheduler import events
from paceline.service.scheduler.state import ClusterState, Demand, Follower, Needs, SchedulerDevice
from paceline.service.simulate import KIND, POLICIES, Fleet, SimulatedWorkload, event_by_event, load_of, lowest_mean
from paceline.store import open_store
from paceline.store.store import Store

FOLLOWERS = 4
JOBS = 300
LOAD = 0.8
START_SECONDS = 2.5  # that a job takes beyond its waiting, about
SEEDS = (1, 2, 3)
LIVE, EXPECTED = "live leader", "simulated before, learning"


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
    """A job to come: when, and what it is."""

    at: float
    model: Model
    steps: int
    draw: int

    @property
    def seconds(self) -> float:
        """That it waits."""
        return seconds_of(self.model, self.steps, self.draw)

    def job(self, name: str, follower: str = "") -> Job:
        now = datetime.now(UTC)
        case = {"benchmark": "drawn", "model": self.model, "steps": self.steps, "draw": self.draw}
        return Job(
            id=name,
            name="drawn",
            suite={"name": "drawn", "cases": [case]},
            needs=MachineNeeds(follower=follower),
            submitted_at=now,
            state_at=now,
        )


@dataclass(frozen=True)
class Done:
    """What became of a job; seconds since the first one came."""

    submitted: float
    predicted: float
    started: float
    ended: float


def main() -> None:
    """Print a table for each seed, and the ratios of all."""
    run(SEEDS, JOBS)


def run(seeds: Sequence[int], jobs: int) -> None:
    """The same with other numbers."""
    ratios: dict[str, list[float]] = {}
    with known_plugin(), ThreadPoolExecutor(len(seeds)) as pool:
        BENCHMARKS.registry()  # before several threads import the same modules
        for lines, found in pool.map(partial(one_seed, jobs), seeds):
            click.echo("\n".join(lines))
            for name, ratio in found.items():
                ratios.setdefault(name, []).append(ratio)
    click.echo(f"\nratios over {len(seeds)} seeds, each with {jobs} jobs")
    for name, values in ratios.items():
        click.echo(f"{name:36} {_with_interval(values)}")


def one_seed(jobs: int, seed: int) -> tuple[list[str], dict[str, float]]:
    """A table, and how many times sooner than with round-robin jobs were completed, or would be."""
    wanted, policies, fleet = jobs_to_come(seed, jobs), (BASELINE, OURS), Fleet(FOLLOWERS)
    spread = float(np.std([np.log(job.seconds) for job in wanted]))
    lines = [
        f"\nseed {seed}: {FOLLOWERS} followers, {jobs} jobs, deviation of logarithms {spread:.2f}",
        f"{'mean completion time in seconds':36} {BASELINE:>12} {OURS:>12} {CLAIRVOYANT:>12} {'bound':>8} ratio",
    ]
    ratios = {EXPECTED: _add_line(lines, EXPECTED, learning(wanted), fleet)}
    with ExitStack() as opened, ThreadPoolExecutor(len(policies)) as pool:
        folders = [Path(opened.enter_context(tempfile.TemporaryDirectory())) for _ in policies]
        stores = [opened.enter_context(open_store(folder / "store.db")) for folder in folders]
        done = dict(zip(policies, pool.map(partial(led, wanted), policies, folders, stores), strict=True))
    baseline, ours = (_mean(done[policy]) for policy in policies)
    ratios[LIVE] = baseline / ours
    lines.append(f"{LIVE:36} {baseline:12.2f} {ours:12.2f} {'':12} {'':8} {ratios[LIVE]:5.2f}")
    for policy, ended in done.items():
        name = f"simulated, durations of {policy}"
        ratios[name] = _add_line(lines, name, trace_of(ended), fleet)
    ratios["clairvoyant, durations of two-tier"] = _ratio(trace_of(done[OURS]), fleet, CLAIRVOYANT)
    for policy, ended in done.items():
        trace = trace_of(ended)
        beyond = np.median(trace.seconds - np.array([job.seconds for job in wanted]))
        lines.append(
            f"{policy}: load {load_of(trace, fleet):.2f}, durations {np.min(trace.seconds):.1f} to "
            f"{np.max(trace.seconds):.1f} s, mean {np.mean(trace.seconds):.1f} s, of which {beyond:.2f} s (median) "
            f"beyond the waiting; predicted with an error of {trace.error:.2f}; longest wait "
            f"{max(job.started - job.submitted for job in ended):.0f} s"
        )
    return lines, ratios


def jobs_to_come(seed: int, jobs: int) -> list[Wanted]:
    """A Poisson process of log-normal jobs, always the same for a seed."""
    generator = random.Random(seed)
    drawn = [
        Wanted(0.0, generator.choice(MODELS), max(1, round(STEPS * generator.lognormvariate(0.0, STEPS_SPREAD))), -draw)
        for draw in range(seed * 100_000 + 1, seed * 100_000 + 1 + jobs)
    ]
    gaps = [0.0, *(generator.expovariate(1.0) for _ in range(jobs - 1))]
    span = sum(job.seconds + START_SECONDS for job in drawn) / (LOAD * FOLLOWERS)
    times = np.cumsum(gaps) * (span / sum(gaps))
    return [Wanted(float(at), job.model, job.steps, job.draw) for at, job in zip(times, drawn, strict=True)]


def learning(wanted: Sequence[Wanted]) -> SimulatedWorkload:
    """The jobs with the predictions that the leader's own scheduler and predictor would make of them on the way."""
    jobs = [job.job(str(place)) for place, job in enumerate(wanted)]
    submitted, needs = np.array([job.at for job in wanted]), (Needs(kind=KIND),) * len(jobs)
    seconds = np.array([job.seconds + START_SECONDS for job in wanted])
    workload = SimulatedWorkload("learning", submitted, seconds, seconds, 0.0, needs, (0,) * len(jobs))
    cluster, predictor = ClusterState(), DurationPredictor()
    predicted = np.empty(len(jobs))
    for number in range(FOLLOWERS):
        events.joined(cluster, Follower(f"follower-{number}", (SchedulerDevice(KIND),)), 0.0)

    def come(job: int, now: float) -> list[int]:
        expected = predictor.demand(jobs[job], ())
        predicted[job] = expected.seconds
        demand = Demand(str(job), needs[job], expected.seconds, now, 0, expected.error)
        return [int(start.demand.id) for start in events.submitted(cluster, demand, now)]

    def end(job: int, now: float) -> list[int]:
        predictor.learn(cases_of(jobs[job])[0], (), wanted[job].seconds)
        return [int(start.demand.id) for start in events.ended(cluster, str(job), now)]

    event_by_event(workload, Fleet(FOLLOWERS), come, end)
    error = float(np.std(np.log(seconds / predicted)))
    return SimulatedWorkload("learning", submitted, seconds, predicted, error, needs, (0,) * len(jobs))


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
        providers.cache_clear()  # what was imported so far may have looked for plug-ins already
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*found, os.environ.get("PYTHONPATH")]))
        yield


def led(wanted: Sequence[Wanted], policy: str, folder: Path, store: Store) -> list[Done]:
    """All jobs through a leader of their own."""
    leader = Leader(store, Followers(folder / "followers"))
    if policy == BASELINE:
        leader._cluster.stretch = 0.0  # whatever waits is due: nothing overtakes it
    threading.Thread(target=leader.run, daemon=True).start()
    try:
        while len(store.queue.followers()) < FOLLOWERS:
            time.sleep(0.05)
        predicted = _come(leader, wanted, policy)
        _wait_for_all(store)
        if policy == BASELINE and leader._cluster.stretch:
            raise ValueError("the leader started over, and served other than first come, first served")
        return _done(store, predicted)
    finally:
        leader.close()


def _come(leader: Leader, wanted: Sequence[Wanted], policy: str) -> dict[str, float]:
    """Submit each job at its time; how long each was predicted to take."""
    predicted = {}
    begun = time.monotonic()
    for place, job in enumerate(wanted):
        time.sleep(max(0.0, begun + job.at - time.monotonic()))
        follower = f"follower-{place % FOLLOWERS}" if policy == BASELINE else ""
        name = f"job-{place:04}"
        leader.submit(job.job(name, follower))
        with leader._lock:
            predicted[name] = leader._cluster.demands[name].seconds
    return predicted


def _wait_for_all(store: Store) -> None:
    while list_jobs(store, UNFINISHED, limit=1):
        time.sleep(0.1)


def _done(store: Store, predicted: dict[str, float]) -> list[Done]:
    jobs = [job for job in list_jobs(store) if job.id in predicted]
    if failed := [job for job in jobs if job.state is not JobState.SUCCEEDED]:
        why = failed[0].failure.message if failed[0].failure else failed[0].state.value
        raise ValueError(f"{len(failed)} jobs did not succeed; {failed[0].id}: {why}")
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


def _ratio(trace: SimulatedWorkload, fleet: Fleet, policy: str) -> float:
    return _simulate(trace, fleet, BASELINE).mean / _simulate(trace, fleet, policy).mean


def _simulate(trace: SimulatedWorkload, fleet: Fleet, policy: str) -> SimulatedOutcome:
    return measure(POLICIES[policy](trace, fleet))


def _add_line(lines: list[str], name: str, trace: SimulatedWorkload, fleet: Fleet) -> float:
    means = [_simulate(trace, fleet, policy).mean for policy in (BASELINE, OURS, CLAIRVOYANT)]
    columns = " ".join(f"{mean:12.2f}" for mean in means)
    lines.append(f"{name:36} {columns} {lowest_mean(trace, fleet):8.2f} {means[0] / means[1]:5.2f}")
    return means[0] / means[1]


def _with_interval(ratios: Sequence[float]) -> str:
    """The geometric mean, and where that of such seeds lies."""
    logs = np.log(ratios)
    middle, count = float(np.mean(logs)), len(logs)
    if count < 2:
        return f"{np.exp(middle):.2f}"
    margin = student_quantile(0.5 + CONFIDENCE / 2, count - 1) * float(np.std(logs, ddof=1)) / count**0.5
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"{np.exp(middle):.2f} ({np.exp(middle - margin):.2f} to {np.exp(middle + margin):.2f}): {each}"
