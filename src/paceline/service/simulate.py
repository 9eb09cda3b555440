"""Scheduling policies against each other on the same simulated jobs: every workload at every load, with several seeds.

Workloads are generated, with Poisson arrivals, or read out of a file. The policies of the leader run through the
scheduler itself, event by event; the others are there to compare with.
"""

from __future__ import annotations

import csv
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.simulation import (
    BASELINE,
    CLAIRVOYANT,
    OURS,
    Line,
    Schedule,
    SimulatedOutcome,
    Study,
    StudyCell,
    measure,
)
from paceline.core.errors import InputError
from paceline.service.scheduler import events
from paceline.service.scheduler.state import STRETCH, ClusterState, Demand, Follower, Needs, SchedulerDevice

Numbers = NDArray[np.float64]

MEAN = 288.0  # seconds, of every generated workload
SHORT, LONG, LONG_SHARE = 60.0, 1200.0, 0.2
KIND = "device"
COLUMNS = ("submitted", "seconds", "predicted", "priority", "devices", "nodes", "whole_node", "cpu_heavy")
_MOST = 1e12  # seconds


@dataclass(frozen=True)
class SimulatedWorkload:
    """Jobs in the order in which they come: when, how long each really takes, and how long it was predicted to."""

    name: str
    submitted: Numbers
    seconds: Numbers
    predicted: Numbers
    error: float  # of the predictions: the deviation of the logarithm of true over predicted
    needs: tuple[Needs, ...]  # of each job
    priorities: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.submitted)

    def device_counts(self, devices: int) -> Numbers:
        """How many devices each job occupies on followers of so many."""
        counts = [need.nodes * (devices if need.whole_node else need.count) for need in self.needs]
        return np.array(counts, dtype=np.float64)

    def work(self, devices: int) -> float:
        """Device-seconds of all jobs together."""
        return float((self.seconds * self.device_counts(devices)).sum())


@dataclass(frozen=True)
class Fleet:
    """Followers that are all alike."""

    followers: int
    devices: int = 1

    @property
    def capacity(self) -> int:
        return self.followers * self.devices


WORKLOADS: dict[str, Callable[[np.random.Generator, int], Numbers]] = {
    "exponential": lambda generator, jobs: generator.exponential(MEAN, jobs),
    "lognormal": lambda generator, jobs: generator.lognormal(math.log(MEAN) - 0.5, 1.0, jobs),
    "bimodal": lambda generator, jobs: np.where(generator.random(jobs) < LONG_SHARE, LONG, SHORT),
}


def generate(name: str, *, load: float, fleet: Fleet, jobs: int, error: float, seed: int) -> SimulatedWorkload:
    """Jobs of one device each; `load` is all their work over what the fleet can do until the last one comes."""
    generator = np.random.default_rng([seed, list(WORKLOADS).index(name)])
    gaps = generator.exponential(1.0, jobs)
    seconds = WORKLOADS[name](generator, jobs)
    predicted = seconds * np.exp(generator.normal(0.0, error, jobs))
    # Gaps in proportion to exponential ones are those of a Poisson process with so many arrivals in so long a time.
    span = float(seconds.sum()) / (load * fleet.capacity)
    submitted = np.cumsum(gaps) * (span / float(gaps.sum()))
    return SimulatedWorkload(name, submitted, seconds, predicted, error, (Needs(kind=KIND),) * jobs, (0,) * jobs)


def read_trace(path: Path, *, fleet: Fleet, error: float, seed: int) -> SimulatedWorkload:
    """A workload out of a CSV file: `submitted` and `seconds` of each job, and what else is known of it."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            unexpected = set(reader.fieldnames or ()) - set(COLUMNS)
            missing = {"submitted", "seconds"} - set(reader.fieldnames or ())
            if unexpected or missing:
                code, key = ("missing-column" if missing else "unknown-column"), min(missing or unexpected)
                wrong = f"no column '{key}'" if missing else f"the unknown column '{key}'"
                raise InputError(code, f"trace '{path}' has {wrong}; known are {', '.join(COLUMNS)}", key=key)
            rows = [_row(path, line, row, fleet) for line, row in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as failure:
        raise InputError("unreadable-file", f"cannot read the trace '{path}': {failure}", value=str(path)) from None
    if not rows:
        message = f"trace '{path}' has no jobs; write one on each line below the names of the columns"
        raise InputError("empty-trace", message, value=str(path))
    rows.sort(key=lambda row: row[0])  # stable: what comes at the same time keeps its order
    submitted, seconds, predicted, priorities, needs = zip(*rows, strict=True)
    guessed = np.array(seconds) * np.exp(np.random.default_rng(seed).normal(0.0, error, len(rows)))
    given = np.array([math.nan if value is None else value for value in predicted])
    return SimulatedWorkload(
        name=path.stem,
        submitted=np.array(submitted) - submitted[0],
        seconds=np.array(seconds),
        predicted=np.where(np.isnan(given), guessed, given),
        error=error,
        needs=needs,
        priorities=priorities,
    )


def load_of(workload: SimulatedWorkload, fleet: Fleet) -> float:
    """The work that comes over what the fleet can do while it comes."""
    span = float(workload.submitted[-1] - workload.submitted[0])
    return workload.work(fleet.devices) / (fleet.capacity * span) if span else math.inf


def _row(
    path: Path, line: int, row: dict[str, str | None], fleet: Fleet
) -> tuple[float, float, float | None, int, Needs]:
    where = f"trace '{path}', line {line}"

    def number(column: str, otherwise: float, least: float) -> float:
        text = row.get(column)
        try:
            value = float(text) if text not in (None, "") else otherwise
        except ValueError:
            value = math.nan
        if not least <= value <= _MOST:
            message = f"{column} = '{text}' must be a number of at least {least:g}"
            raise InputError("invalid-value", message, where=where, key=column, value=text)
        return value

    count, nodes = int(number("devices", 1, 1)), int(number("nodes", 1, 1))
    if count > fleet.devices or nodes > fleet.followers:
        raise InputError(
            "does-not-fit",
            f"{nodes} nodes with {count} devices each do not fit into {fleet.followers} "
            f"followers with {fleet.devices}; give more with --followers and --devices",
            where=where,
        )
    whole_node, cpu_heavy = bool(number("whole_node", 0, 0)), bool(number("cpu_heavy", 0, 0))
    predicted = number("predicted", 0, 0) or None
    submitted, seconds = number("submitted", math.nan, 0), number("seconds", math.nan, 1e-6)
    needs = Needs(kind=KIND, count=count, nodes=nodes, whole_node=whole_node, cpu_heavy=cpu_heavy)
    return submitted, seconds, predicted, int(number("priority", 0, -_MOST)), needs


# Policies: those of the scheduler


def _scheduled(workload: SimulatedWorkload, fleet: Fleet, *, stretch: float, exact: bool) -> Schedule:
    cluster = ClusterState(stretch=stretch)
    for number in range(fleet.followers):
        events.joined(cluster, Follower(f"follower-{number}", (SchedulerDevice(KIND),) * fleet.devices), 0.0)
    expected = workload.seconds if exact else workload.predicted
    error = 0.0 if exact else workload.error

    def come(job: int, now: float) -> list[int]:
        needs, priority = workload.needs[job], workload.priorities[job]
        demand = Demand(str(job), needs, float(expected[job]), now, priority, error)
        return [int(start.demand.id) for start in events.submitted(cluster, demand, now)]

    def end(job: int, now: float) -> list[int]:
        return [int(start.demand.id) for start in events.ended(cluster, str(job), now)]

    return event_by_event(workload, fleet, come, end)


def event_by_event(
    workload: SimulatedWorkload,
    fleet: Fleet,
    come: Callable[[int, float], Iterable[int]],
    end: Callable[[int, float], Iterable[int]],
) -> Schedule:
    """Event by event: `come` and `end` give the jobs that start because one has come, or has ended."""
    started, ended = np.empty(len(workload)), np.empty(len(workload))
    running: list[tuple[float, int]] = []
    coming = 0
    while coming < len(workload) or running:
        # At the same moment what ends goes first: its devices are free for what comes.
        if not running or (coming < len(workload) and workload.submitted[coming] < running[0][0]):
            now = float(workload.submitted[coming])
            starts = come(coming, now)
            coming += 1
        else:
            now, job = heappop(running)
            ended[job] = now
            starts = end(job, now)
        for start in starts:
            started[start] = now
            heappush(running, (now + float(workload.seconds[start]), start))
    return Schedule(workload.submitted, started, ended, workload.work(fleet.devices), fleet.capacity)


# Policies to compare with: a job is bound when it comes, and each follower serves in the order of coming


def round_robin(workload: SimulatedWorkload, fleet: Fleet) -> Schedule:
    """One follower after the other, whatever it has to do already."""
    next_one = 0

    def choose(nodes: int, work: float, now: float) -> list[int]:
        nonlocal next_one
        chosen = [(next_one + step) % fleet.followers for step in range(nodes)]
        next_one = (next_one + nodes) % fleet.followers
        return chosen

    return _served(workload, fleet, choose, lambda follower, work, now: None)


def least_loaded(workload: SimulatedWorkload, fleet: Fleet) -> Schedule:
    """The follower that is predicted to have done first what it has."""
    free_at = [0.0] * fleet.followers
    waiting = [0.0] * fleet.followers  # predicted device-seconds that have not ended
    heap = [(0.0, follower) for follower in range(fleet.followers)]  # entries of earlier predictions are left in it

    def predict(follower: int, at: float) -> None:
        free_at[follower] = at
        heappush(heap, (at, follower))

    def choose(nodes: int, work: float, now: float) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < nodes:
            at, follower = heappop(heap)
            if at == free_at[follower] and follower not in chosen:
                chosen.append(follower)
        for follower in chosen:
            waiting[follower] += work
            predict(follower, max(free_at[follower], now) + work / fleet.devices)
        return chosen

    def correct(follower: int, work: float, now: float) -> None:
        """A job has ended: what is left begins now, sooner or later than expected."""
        waiting[follower] -= work
        predict(follower, now + max(0.0, waiting[follower]) / fleet.devices)

    return _served(workload, fleet, choose, correct)


def _served(
    workload: SimulatedWorkload,
    fleet: Fleet,
    choose: Callable[[int, float, float], list[int]],
    ended_on: Callable[[int, float, float], None],
) -> Schedule:
    """Jobs are bound by `choose`; one starts when it is the first of all its followers and there is room on each."""
    queues: list[deque[int]] = [deque() for _ in range(fleet.followers)]
    free = [fleet.devices] * fleet.followers
    heavy = [0] * fleet.followers
    bound: dict[int, list[int]] = {}

    def width(job: int) -> int:
        needs = workload.needs[job]
        return fleet.devices if needs.whole_node else needs.count

    def can_start(job: int) -> bool:
        devices, is_heavy = width(job), workload.needs[job].cpu_heavy
        return all(queues[f][0] == job and free[f] >= devices and not (is_heavy and heavy[f]) for f in bound[job])

    def serve(followers: list[int]) -> Iterator[int]:
        to_serve = list(followers)
        for follower in to_serve:  # grows while it is walked
            while queues[follower] and can_start(queues[follower][0]):
                job = queues[follower][0]
                for one in bound[job]:
                    queues[one].popleft()
                    free[one] -= width(job)
                    heavy[one] += workload.needs[job].cpu_heavy
                    if one != follower:
                        to_serve.append(one)
                yield job

    def come(job: int, now: float) -> Iterator[int]:
        bound[job] = choose(workload.needs[job].nodes, float(workload.predicted[job]) * width(job), now)
        for follower in bound[job]:
            queues[follower].append(job)
        return serve(bound[job])

    def end(job: int, now: float) -> Iterator[int]:
        followers = bound.pop(job)
        for follower in followers:
            free[follower] += width(job)
            heavy[follower] -= workload.needs[job].cpu_heavy
            ended_on(follower, float(workload.predicted[job]) * width(job), now)
        return serve(followers)

    return event_by_event(workload, fleet, come, end)


# A mean completion time that no schedule can go below


def lowest_mean(workload: SimulatedWorkload, fleet: Fleet) -> float:
    """The larger of two bounds that hold even for schedulers that know the future, interrupt and move jobs.

    No job is completed faster than it runs. And one device as fast as all together could do whatever they do; on
    it, serving what has the least left first has the lowest mean of all.
    """
    sizes = workload.seconds * workload.device_counts(fleet.devices) / fleet.capacity
    waiting: list[tuple[float, int]] = []  # what is left of each job
    clock = total = 0.0
    coming = 0
    while coming < len(workload) or waiting:
        if not waiting:
            clock = max(clock, float(workload.submitted[coming]))
        until = float(workload.submitted[coming]) if coming < len(workload) else float("inf")
        while waiting and clock < until:
            left, job = heappop(waiting)
            worked = min(left, until - clock)
            clock += worked
            if worked < left:
                heappush(waiting, (left - worked, job))
            else:
                total += clock - float(workload.submitted[job])
        if coming < len(workload) and clock >= until:
            heappush(waiting, (float(sizes[coming]), coming))
            coming += 1
    return max(float(workload.seconds.mean()), total / len(workload))


# The study


POLICIES: dict[str, Callable[[SimulatedWorkload, Fleet], Schedule]] = {
    BASELINE: round_robin,
    "least-loaded": least_loaded,
    # One shared queue, the shortest predicted first, without ageing.
    "sjf": partial(_scheduled, stretch=math.inf, exact=False),
    # The scheduler as the leader runs it, with the durations that were predicted.
    OURS: partial(_scheduled, stretch=STRETCH, exact=False),
    # One shared queue, the shortest first, by the durations that jobs really take.
    CLAIRVOYANT: partial(_scheduled, stretch=math.inf, exact=True),
}


def study(
    *,
    workloads: Sequence[str],
    loads: Sequence[float],
    fleet: Fleet,
    jobs: int,
    error: float,
    policies: Sequence[str],
    seeds: Sequence[int],
    trace: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Study:
    """Every cell, or that of the trace; `progress` is called with what is being done."""
    begun = time.monotonic()
    if trace is not None:
        first = read_trace(trace, fleet=fleet, error=error, seed=seeds[0])
        points = [(first.name, load_of(first, fleet))]
    else:
        points = [(name, load) for name in workloads for load in loads]
    cells = []
    for name, load in points:
        outcomes: dict[str, list[SimulatedOutcome]] = {policy: [] for policy in policies}
        bounds: list[float] = []
        for seed in seeds:
            if trace is not None:
                workload = read_trace(trace, fleet=fleet, error=error, seed=seed)
            else:
                workload = generate(name, load=load, fleet=fleet, jobs=jobs, error=error, seed=seed)
            bounds.append(lowest_mean(workload, fleet))
            for policy in policies:
                progress(f"{name} at load {load:.3g}, seed {seed}: {policy}")
                outcomes[policy].append(measure(POLICIES[policy](workload, fleet)))
        lines = tuple(Line(policy, tuple(outcomes[policy])) for policy in policies)
        cells.append(StudyCell(name, load, lines, sum(bounds) / len(bounds)))
    settings: dict[str, object] = {
        "followers": fleet.followers,
        "devices": fleet.devices,
        "jobs": None if trace else jobs,
        "error": error,
        "seeds": list(seeds),
        "stretch": STRETCH,
    }
    return Study(tuple(cells), settings, time.monotonic() - begun)
