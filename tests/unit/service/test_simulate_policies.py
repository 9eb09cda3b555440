"""Simulated schedules against ones that are worked out another way, and against what must hold for any."""

from __future__ import annotations

from heapq import heappop, heappush
from pathlib import Path

import numpy as np
import pytest

from paceline.analysis.simulation import CLAIRVOYANT, OURS, measure
from paceline.service.simulate import (
    POLICIES,
    WORKLOADS,
    Fleet,
    SimulatedWorkload,
    generate,
    load_of,
    lowest_mean,
    read_trace,
    study,
)
from support.refused import refused

FOUR = Fleet(4)
MARKS = {0.5: 1.3, 0.7: 1.7, 0.9: 2.4}


def make(name: str = "exponential", load: float = 0.9, fleet: Fleet = FOUR, jobs: int = 2000) -> SimulatedWorkload:
    return generate(name, load=load, fleet=fleet, jobs=jobs, error=0.3, seed=5)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("policy", POLICIES)
def test_each_task_runs_once_for_as_long_as_it_takes(name: str, policy: str) -> None:
    fleet = Fleet(3)
    workload = make(name, fleet=fleet, jobs=300)
    schedule = POLICIES[policy](workload, fleet)
    assert np.all(schedule.started >= workload.submitted - 1e-9)
    assert np.allclose(schedule.ended - schedule.started, workload.seconds)
    changes = sorted([(end, -1) for end in schedule.ended] + [(start, 1) for start in schedule.started])
    assert np.cumsum([change for _, change in changes]).max() <= fleet.capacity
    assert lowest_mean(workload, fleet) <= measure(schedule).mean + 1e-9


@pytest.mark.parametrize("exact", [True, False])
def test_a_shared_queue_is_what_a_plain_heap_does(exact: bool) -> None:
    workload, free = make(), 4
    known = workload.seconds if exact else workload.predicted
    waiting: list[tuple[float, int]] = []
    running: list[tuple[float, int]] = []
    started, coming = np.zeros(len(workload)), 0
    while coming < len(workload) or running:
        if not running or (coming < len(workload) and workload.submitted[coming] < running[0][0]):
            now = workload.submitted[coming]
            heappush(waiting, (known[coming], coming))
            coming += 1
        else:
            now, _ = heappop(running)
            free += 1
        while free and waiting:
            _, task = heappop(waiting)
            started[task] = now
            heappush(running, (now + workload.seconds[task], task))
            free -= 1
    simulated = POLICIES[CLAIRVOYANT if exact else "sjf"]
    assert np.array_equal(simulated(workload, Fleet(4)).started, started)


def test_round_robin_is_a_recursion_on_each_follower() -> None:
    workload = make(jobs=500)
    free_at, started = [0.0] * 4, np.zeros(500)
    for task in range(500):
        started[task] = max(workload.submitted[task], free_at[task % 4])
        free_at[task % 4] = started[task] + workload.seconds[task]
    assert np.allclose(POLICIES["round-robin"](workload, Fleet(4)).started, started)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("load", MARKS)
def test_tasks_are_completed_sooner_than_by_round_robin_and_nearly_as_soon_as_can_be(name: str, load: float) -> None:
    fleet = Fleet(4)
    workload = make(name, load, fleet)
    means = {policy: measure(POLICIES[policy](workload, fleet)).mean for policy in ("round-robin", OURS, CLAIRVOYANT)}
    assert means["round-robin"] / means[OURS] > 0.85 * MARKS[load]  # one seed is not many
    assert means[OURS] < 1.07 * means[CLAIRVOYANT]


def test_the_load_is_the_one_that_was_asked_for() -> None:
    fleet = Fleet(7, devices=2)
    workload = make(load=0.6, fleet=fleet)
    assert float(workload.seconds.sum()) / (fleet.capacity * workload.submitted[-1]) == pytest.approx(0.6)
    assert np.log(workload.predicted / workload.seconds).std() == pytest.approx(0.3, rel=0.1)


def test_seeds_repeat_and_differ() -> None:
    once, again = (
        study(workloads=["bimodal"], loads=[0.8], fleet=FOUR, jobs=200, error=0.3, policies=[OURS], seeds=[1, 2])
        for _ in range(2)
    )
    assert once.cells == again.cells
    first, second = once.cells[0].lines[0].outcomes
    assert first != second


TRACE = """submitted,seconds,devices,nodes,whole_node,cpu_heavy,priority,predicted
100,50,1,1,0,0,0,40
110,60,2,2,0,0,0,
105,30,1,1,1,0,1,
120,10,1,1,0,1,0,
121,10,1,1,0,1,0,
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trace_with_wide_tasks_runs_under_every_policy(policy: str, tmp_path: Path) -> None:
    path, fleet = tmp_path / "mine.csv", Fleet(2, devices=4)
    path.write_text(TRACE)
    workload = read_trace(path, fleet=fleet, error=0.3, seed=0)
    assert workload.submitted.tolist() == [0, 5, 10, 20, 21] and workload.predicted[0] == 40
    assert workload.name == "mine" and load_of(workload, fleet) == pytest.approx((50 + 120 + 240 + 20) / (8 * 21))
    schedule = POLICIES[policy](workload, fleet)
    assert np.allclose(schedule.ended - schedule.started, workload.seconds)
    assert schedule.device_seconds == 430


@pytest.mark.parametrize(
    ("text", "code", "key", "line"),
    [
        ("submitted,seconds\n", "empty-trace", None, None),
        ("submitted\n1\n", "missing-column", "seconds", None),
        ("submitted,seconds,gpus\n1,2,3\n", "unknown-column", "gpus", None),
        ("submitted,seconds\n1,soon\n", "invalid-value", "seconds", 2),
        ("submitted,seconds\n1,2\n-1,2\n", "invalid-value", "submitted", 3),
        ("submitted,seconds,nodes\n1,2,3\n", "does-not-fit", None, 2),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(
    text: str, code: str, key: str | None, line: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with refused(code, key=key, where=f"trace '{path}', line {line}" if line else ""):
        read_trace(path, fleet=Fleet(2), error=0.3, seed=0)


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused("unreadable-file", value=str(tmp_path / "none.csv")):
        read_trace(tmp_path / "none.csv", fleet=Fleet(2), error=0.3, seed=0)
