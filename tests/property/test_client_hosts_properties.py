"""However many hosts send, however they are equipped: together they send one schedule, and it comes back as one."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.load.clients import Offset
from paceline.load.generator import LoadPlan, dealt, workers_of_hosts
from paceline.load.parameters import LoadParameters
from paceline.load.request import Endpoint, Prepared
from paceline.load.trace import Trace, WorkerResults
from paceline.load.worker import WorkerTask

hosts = st.lists(st.integers(1, 9), min_size=1, max_size=6)
seeds = st.integers(0, 2**32)


@given(hosts, st.integers(0, 40))
def test_every_task_is_dealt_to_one_host_and_none_gets_more_than_it_has_workers(workers: list[int], less: int) -> None:
    number = max(1, sum(workers) - less)
    shares = dealt(number, workers)
    assert sorted(task for share in shares for task in share) == list(range(number))
    assert all(len(share) <= own for share, own in zip(shares, workers, strict=True))
    assert number < len(workers) or all(shares)


@given(hosts, st.integers(1, 60), st.none() | st.integers(1, 9))
def test_every_host_has_a_worker_and_no_more_than_cores(cores: list[int], needed: int, each: int | None) -> None:
    workers = workers_of_hosts(cores, needed, each)
    assert all(1 <= own <= most for own, most in zip(workers, cores, strict=True))
    if each is None:
        assert sum(workers) >= min(needed, len(cores) * min(cores))


@given(st.integers(1, 200), hosts, seeds)
def test_hosts_together_send_what_one_would_send(count: int, workers: list[int], seed: int) -> None:
    load = LoadParameters(arrival="poisson", rate=100, requests=count, network="wifi")
    kinds = [Prepared(b"a"), Prepared(b"bb")]
    plan, again = (LoadPlan.of(load, kinds, seed) for _ in range(2))
    tasks = plan.divided(TASK, sum(workers))
    shares = [[tasks[number] for number in own] for own in dealt(len(tasks), workers)]
    sent = [request for share in shares for task in share for request in _requests(task)]
    assert sorted(sent) == sorted(_requests(again.divided(TASK, 1)[0]))


@given(seeds, st.integers(1, 60), st.integers(1, 5))
def test_parts_of_hosts_merge_to_the_whole_and_can_be_told_apart(seed: int, number: int, parts: int) -> None:
    random = np.random.default_rng(seed)
    owner = random.integers(0, parts, number).astype(np.int32)
    whole = _trace(random, number, owner)
    merged = Trace.merged([whole.of_host(host) for host in range(parts)])
    _assert_same(merged, whole)
    for host in range(parts):
        _assert_same(merged.of_host(host), whole.of_host(host))


@given(seeds, st.integers(1, 40), st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=20)), max_size=5))
def test_what_was_seen_travels_unchanged(seed: int, number: int, answers: list[tuple[int, bytes]]) -> None:
    random = np.random.default_rng(seed)
    whole = replace(_trace(random, number, None), losses=("worker 3 was löst",))
    found = WorkerResults.unpacked(WorkerResults(whole, answers).packed())
    _assert_same(found.trace, whole)
    assert (found.answers, found.trace.losses) == (answers, ("worker 3 was löst",))


@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.tuples(st.integers(1, 10**8), st.integers(1, 10**8)), min_size=1, max_size=10),
)
def test_the_true_offset_of_a_clock_is_within_its_uncertainty(offset: int, ways: list[tuple[int, int]]) -> None:
    trips, now = [], 0
    for there, back in ways:
        trips.append((now, now + there + offset, now + there + back))
        now += there + back
    found = Offset.of_trips(trips)
    assert abs(found.seconds * 1e9 - offset) <= found.uncertainty * 1e9 + 1.0 + abs(offset) * 1e-15
    assert found.uncertainty * 2e9 <= min(there + back for there, back in ways) * (1 + 1e-9)


TASK = WorkerTask(
    parent=1,
    endpoint=Endpoint("kserve-json", "h", 1, "/", "x"),
    payloads=[b"a", b"bb"],
    metadata=[(), ()],
    samples=np.ones(2, np.int32),
)


def _requests(task: WorkerTask) -> list[tuple[float, int, float, float]]:
    assert task.up is not None
    assert task.down is not None
    return list(zip(*(one.tolist() for one in (task.intended, task.kinds, task.up, task.down)), strict=True))


def _trace(random: np.random.Generator, number: int, owner: NDArray[np.int32] | None) -> Trace:
    intended = np.cumsum(random.exponential(1.0, number)) + np.arange(number)
    return Trace(
        intended=intended,
        sent=intended + 0.1,
        first=intended + 0.2,
        done=np.where(random.random(number) < 0.3, np.nan, intended + random.random(number)),
        status=random.choice([0, 2, 200], number).astype(np.int32),
        kind=random.integers(0, 3, number).astype(np.int32),
        worker=random.integers(0, 4, number).astype(np.int32),
        samples=random.integers(1, 4, number).astype(np.int32),
        stages={"queue": random.random(number)},
        batch=random.integers(1, 4, number).astype(np.int32),
        chunks=[random.random(int(length)) for length in random.integers(0, 4, number)],
        dispatched=intended + 0.05,
        host=owner,
    )


def _assert_same(one: Trace, other: Trace) -> None:
    for column in fields(Trace):
        mine, theirs = getattr(one, column.name), getattr(other, column.name)
        if column.name == "chunks":
            assert len(mine) == len(theirs)
            assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
        elif column.name == "stages":
            assert {name: values.tolist() for name, values in mine.items()} == {
                name: values.tolist() for name, values in theirs.items()
            }
        elif isinstance(mine, dict | int | float | str | tuple) and column.name != "cpu_seconds":
            assert mine == theirs
        elif column.name != "cpu_seconds":
            assert (mine is None) == (theirs is None)
            assert mine is None or np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")
