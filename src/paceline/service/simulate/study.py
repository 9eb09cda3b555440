"""Policies against each other on the same tasks: every workload at every load, with several seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.analysis.simulation import BASELINE, CLAIRVOYANT, OURS, Cell, Line, Outcome, Schedule, Study, measure
from paceline.service.scheduler.order import STRETCH
from paceline.service.simulate import baselines, engine
from paceline.service.simulate.bound import lowest_mean
from paceline.service.simulate.workload import Fleet, Workload, generate, load_of, read_trace

POLICIES: dict[str, Callable[[Workload, Fleet], Schedule]] = {
    BASELINE: baselines.round_robin,
    "least-loaded": baselines.least_loaded,
    "sjf": engine.shortest_first,
    OURS: engine.two_tier,
    CLAIRVOYANT: engine.clairvoyant,
}


@dataclass(frozen=True)
class Question:
    """What is to be simulated."""

    workloads: Sequence[str]
    loads: Sequence[float]
    fleet: Fleet
    jobs: int
    error: float
    policies: Sequence[str]
    seeds: Sequence[int]
    trace: Path | None = None  # instead of workloads and loads


def study(question: Question, progress: Callable[[str], None] = lambda text: None) -> Study:
    """Every cell; `progress` is told what is being done."""
    begun = time.monotonic()
    if question.trace is not None:
        trace = question.trace
        first = read_trace(trace, fleet=question.fleet, error=question.error, seed=question.seeds[0])
        cells = [
            _cell(
                question,
                first.name,
                load_of(first, question.fleet),
                lambda seed: read_trace(trace, fleet=question.fleet, error=question.error, seed=seed),
                progress,
            )
        ]
    else:
        cells = [
            _cell(question, name, load, _generator(question, name, load), progress)
            for name in question.workloads
            for load in question.loads
        ]
    return Study(tuple(cells), _settings(question), time.monotonic() - begun)


def _generator(question: Question, name: str, load: float) -> Callable[[int], Workload]:
    def make(seed: int) -> Workload:
        return generate(name, load=load, fleet=question.fleet, jobs=question.jobs, error=question.error, seed=seed)

    return make


def _cell(
    question: Question, name: str, load: float, make: Callable[[int], Workload], progress: Callable[[str], None]
) -> Cell:
    outcomes: dict[str, list[Outcome]] = {policy: [] for policy in question.policies}
    bounds: list[float] = []
    for seed in question.seeds:
        workload = make(seed)
        bounds.append(lowest_mean(workload, question.fleet))
        for policy in question.policies:
            progress(f"{name} at load {load:.3g}, seed {seed}: {policy}")
            outcomes[policy].append(measure(POLICIES[policy](workload, question.fleet)))
    lines = tuple(Line(policy, tuple(outcomes[policy])) for policy in question.policies)
    return Cell(name, load, lines, sum(bounds) / len(bounds))


def _settings(question: Question) -> dict[str, object]:
    fleet = question.fleet
    return {
        "followers": fleet.followers,
        "devices": fleet.devices,
        "jobs": None if question.trace else question.jobs,
        "error": question.error,
        "seeds": list(question.seeds),
        "stretch": STRETCH,
    }
