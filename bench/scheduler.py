"""What a decision of the scheduler costs while many jobs wait, and how the simulator grows with the cluster.

All times are of the CPU: nothing here waits for anything.
"""

from __future__ import annotations

import random
import time
from itertools import count

import numpy as np

from bench.ratio import Ratio
from paceline.analysis.simulation import OURS
from paceline.service.scheduler import events
from paceline.service.scheduler.state import ClusterState, Demand, Follower, Needs, SchedulerDevice
from paceline.service.simulate import POLICIES, Fleet, generate

LIVE = ((100, 1_000), (1_000, 10_000), (10_000, 100_000))  # followers, jobs that wait
ASKED = (1_000, 10_000)
SIMULATED = ((100, 10_000), (1_000, 100_000), (10_000, 1_000_000))  # followers, jobs
DECISIONS = 400
DECISION_SECONDS = 10e-3
SIMULATION_SECONDS = 600.0
KINDS = ("h200", "a100", "cpu")


def scheduler_ratios() -> list[Ratio]:
    """All lines about the scheduler."""
    return [*(_live(followers, waiting) for followers, waiting in LIVE), *_simulated()]


def _live(followers: int, waiting: int) -> Ratio:
    """A full cluster of mixed followers and jobs: what it takes to decide when a job comes and when one ends."""
    generator = random.Random(7)
    cluster, names = ClusterState(), count()
    for place in range(followers):
        kind = KINDS[place % len(KINDS)]
        devices = (SchedulerDevice(kind, memory_gib=80),) * (1 if kind == "cpu" else 8)
        events.joined(cluster, Follower(f"f{place}", devices), 0.0)
    queued = 0
    while queued < waiting:
        demand = _task(generator, names, 0.0)
        queued += not events.submitted(cluster, demand, 0.0)
    spent = []
    for step in range(DECISIONS):
        now = float(step)
        if step % 2:
            demand, begun = _task(generator, names, now), time.process_time()
            events.submitted(cluster, demand, now)
        else:
            ended = generator.choice(list(cluster.running))
            begun = time.process_time()
            events.ended(cluster, ended, now)
        spent.append(time.process_time() - begun)
    usual, late, worst = (float(value) for value in np.percentile(spent, (50, 99, 100)))
    is_asked = (followers, waiting) == ASKED
    ratio = late / DECISION_SECONDS
    made_of = f"median {usual * 1e3:.3g} ms, p99 {late * 1e3:.3g} ms, longest {worst * 1e3:.3g} ms"
    name = f"decision: {followers:,} and {waiting:,}"
    return Ratio(f"{name} / 10 ms", ratio, "<= 1" if is_asked else "", ratio <= 1 or not is_asked, made_of)


def _task(generator: random.Random, names: count[int], now: float) -> Demand:
    kind = generator.choice(KINDS)
    wide = kind != "cpu" and generator.random() < 0.2
    needs = Needs(
        kind=kind,
        count=generator.choice((2, 4, 8)) if wide else 1,
        memory_gib=generator.choice((0, 16, 40, 80)),
        whole_node=wide and generator.random() < 0.3,
        nodes=generator.choice((2, 4)) if wide and generator.random() < 0.3 else 1,
        cpu_heavy=kind == "cpu" or generator.random() < 0.2,
    )
    return Demand(f"t{next(names)}", needs, generator.lognormvariate(5.0, 1.0), now, error=0.3)


def _simulated() -> list[Ratio]:
    ratios = []
    before = 0.0
    for followers, demands in SIMULATED:
        fleet = Fleet(followers)
        workload = generate("lognormal", load=0.9, fleet=fleet, jobs=demands, error=0.3, seed=0)
        begun = time.process_time()
        POLICIES[OURS](workload, fleet)
        seconds = time.process_time() - begun
        growth = f"; {seconds / before:.3g} times the one before" if before else ""
        is_asked = demands == SIMULATED[-1][1]
        ratio = seconds / SIMULATION_SECONDS
        made_of = f"{seconds:.3g} s, {seconds / demands * 1e6:.3g} us a job{growth}"
        name = f"simulate: {followers:,} and {demands:,} / 10 min"
        ratios.append(Ratio(name, ratio, "<= 1" if is_asked else "", ratio <= 1 or not is_asked, made_of))
        before = seconds
    return ratios
