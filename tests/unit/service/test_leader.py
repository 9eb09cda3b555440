"""The leader with followers that do what a test says: jobs go where they can, and nobody waits for ever."""

from __future__ import annotations

import errno
import random
import threading
from itertools import pairwise

import pytest

from paceline.service.engines.base import Assignment
from paceline.service.jobs import LEASE, FailureKind, JobState
from paceline.service.leader import Leader
from paceline.store.store import Store
from support.kept_jobs import BEYOND_LEASE, history, kept, statuses, until
from support.refused import refused
from support.scripted_followers import Clock, ScriptedEngine, a_job, gpu_job


def running_on_one(store: Store, clock: Clock) -> tuple[ScriptedEngine, Leader]:
    """A leader whose only follower has begun the only job."""
    engine = ScriptedEngine(["one"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    engine.attempt("job").begin()
    leader.step()
    return engine, leader


def test_a_job_goes_through_its_states_and_its_result_is_in_the_store(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    assert kept(store).state is JobState.PLACED
    engine.attempt("job").begin()
    leader.step()
    assert kept(store).state is JobState.RUNNING
    engine.attempt("job").record()
    engine.attempt("job").end()
    leader.step()
    assert kept(store).state is JobState.SUCCEEDED
    assert history(store) == ["submitted", "placed", "began", "ended"]
    assert statuses(store) == ["finished"]
    assert len(store.load(kept(store).run_ids[0]).records) == 1


def test_a_follower_is_told_to_begin_only_what_the_store_has(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine()
    seen: list[tuple[JobState, int]] = []

    def look(assignment: Assignment) -> None:
        seen.append((kept(store).state, kept(store).attempt))

    engine.before_begin.append(look)
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    assert seen == [(JobState.PLACED, 1)]


def test_the_same_id_is_one_job(store: Store, clock: Clock) -> None:
    leader = Leader(store, ScriptedEngine(), clock)
    assert leader.submit(a_job())[1]
    standing, is_new = leader.submit(a_job())
    assert (standing.id, is_new) == ("job", False)
    with refused("duplicate-job", key="id", value="job"):
        leader.submit(a_job(suite={"name": "other", "cases": []}))
    assert history(store) == ["submitted"]


def test_what_a_lost_follower_measured_stays_and_the_job_goes_elsewhere(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one", "two"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    first = kept(store).followers[0]
    engine.attempt("job").begin(cases=2)
    engine.attempt("job").record()
    leader.step()
    engine.present.remove(first)
    leader.step()
    job = kept(store)
    assert (job.state, job.attempt) == (JobState.PLACED, 2)
    assert job.followers[0] != first
    lost = store.queue.events("job")[-2]
    assert (lost.kind, lost.document["reason"]) == ("lost", f"follower {first} is gone")
    assert statuses(store)[0] == "interrupted"
    assert len(store.load(job.run_ids[0]).records) == 1
    engine.attempt("job", 2).all_of_it()
    leader.step()
    assert kept(store).state is JobState.SUCCEEDED


def test_a_silent_follower_is_given_up_and_gets_nothing_before_it_answers_and_has_stopped(
    store: Store, clock: Clock
) -> None:
    engine, leader = running_on_one(store, clock)
    given_up = engine.attempt("job")
    engine.silent = {"one"}
    clock.pass_(LEASE.total_seconds() / 2)
    leader.step()
    assert kept(store).state is JobState.RUNNING
    clock.pass_(BEYOND_LEASE)
    leader.step()
    assert kept(store).state is JobState.QUEUED, "nobody answers who could have it"
    assert "was not heard of for 30 s" in store.queue.events("job")[-1].document["reason"]

    engine.silent = set()
    leader.step()
    leader.step()
    assert given_up.is_stopping
    assert kept(store).state is JobState.QUEUED, "its devices are not free yet"
    given_up.die()
    leader.step()
    leader.step()
    assert (kept(store).state, kept(store).attempt) == (JobState.PLACED, 2)
    engine.attempt("job", 2).all_of_it()
    leader.step()
    assert history(store) == ["submitted", "placed", "began", "lost", "placed", "began", "ended"]
    assert statuses(store) == ["interrupted", "finished"]


def test_a_follower_that_answers_but_cannot_begin_says_why(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one"])
    leader = Leader(store, engine, clock)

    def full(assignment: Assignment) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    engine.before_begin.append(full)
    leader.submit(a_job())
    leader.step()
    clock.pass_(BEYOND_LEASE)
    leader.step()
    lost = next(event for event in store.queue.events("job") if event.kind == "lost")
    assert lost.document["reason"] == "follower one could not begin: No space left on device"
    engine.before_begin.clear()
    leader.step()
    engine.attempt("job", 2).all_of_it()
    leader.step()
    assert kept(store).state is JobState.SUCCEEDED


def test_a_leader_that_was_held_up_itself_blames_nobody(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    clock.pass_(10 * BEYOND_LEASE)
    leader.step()
    assert (kept(store).state, kept(store).attempt) == (JobState.PLACED, 1)


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_takes_no_job_from_its_follower(store: Store, clock: Clock, hours: int) -> None:
    """A silent one is given up after a lease that really passed, neither at once nor an hour late."""
    engine, elapsed = ScriptedEngine(["one"]), [0.0]
    leader = Leader(store, engine, clock, elapsed=lambda: elapsed[0])
    leader.submit(a_job())
    leader.step()
    leader.step()
    engine.silent = {"one"}
    clock.pass_(hours * 3600.0)
    for seconds in (0.0, 1.0):
        elapsed[0] += seconds
        clock.pass_(seconds)
        leader.step()
    assert kept(store).state is JobState.PLACED
    for seconds in (BEYOND_LEASE, 1.0):
        elapsed[0] += seconds
        clock.pass_(seconds)
        leader.step()
    assert kept(store).state is JobState.QUEUED


def test_followers_that_go_together_cost_a_job_one_attempt(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one", "two", "three"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.submit(a_job("other"))
    leader.step()
    engine.present.clear()
    leader.step()
    for name in ("job", "other"):
        assert (kept(store, name).state, kept(store, name).attempt) == (JobState.QUEUED, 1)


def test_a_job_that_is_lost_as_often_as_it_may_be_fails(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    for number in range(1, 4):
        leader.step()
        engine.attempt("job", number).die()
        leader.step()
    job = kept(store)
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert job.failure.kind is FailureKind.LOST
    assert {attempt for _, _, attempt in engine.begun} == {1, 2, 3}


@pytest.mark.parametrize("when", ["queued", "placed", "running", "lost"])
def test_cancelling(store: Store, clock: Clock, when: str) -> None:
    engine = ScriptedEngine([] if when == "queued" else ["one"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    if when in ("running", "lost"):
        engine.attempt("job").begin()
        leader.step()
    answer = leader.cancel("job", by="bob")
    assert leader.cancel("job", by="bob").version == answer.version, "twice is once"
    if when == "queued":
        assert answer.state is JobState.CANCELLED
    else:
        assert answer.stop_asked
    if when == "lost":
        engine.present.clear()
    leader.step()
    if when in ("placed", "running"):
        assert engine.attempt("job").is_stopping
        assert kept(store).state.is_active
        engine.attempt("job").die()
        leader.step()
    assert kept(store).state is JobState.CANCELLED
    assert history(store).count("cancelled") == 1
    assert leader.cancel("job").state is JobState.CANCELLED


def test_a_job_that_is_told_to_stop_by_an_earlier_leader_is_stopped_by_the_next(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    leader.cancel("job")
    leader = Leader(store, engine, clock)
    leader.step()
    assert engine.attempt("job").is_stopping


def test_a_defect_of_an_engine_does_not_end_the_leader(store: Store) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine)
    real, engine.followers = engine.followers, lambda: [][0]  # type: ignore[method-assign]
    thread = threading.Thread(target=leader.run)
    thread.start()
    try:
        until(lambda: "IndexError" in leader.trouble)
        engine.followers = real  # type: ignore[method-assign]
        leader.submit(a_job())
        until(lambda: bool(engine.begun))
    finally:
        leader.close()
        thread.join(10)


def test_memory_holds_only_what_is_under_way(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one", "two"])
    leader = Leader(store, engine, clock)
    for number in range(20):
        leader.submit(a_job(f"job-{number}"))
    for turn in range(60):
        leader.step()
        for held in engine.attempts.values():
            for measured in held.values():
                if not measured.items:
                    measured.all_of_it()
        if turn == 5:
            engine.present.remove("two")
        if turn == 10:
            engine.present.append("two")
    assert all(kept(store, f"job-{number}").state is JobState.SUCCEEDED for number in range(20))
    memory = {
        name: value
        for part in (leader, leader._jobs, leader._attempts)
        for name, value in vars(part).items()
        if isinstance(value, dict | set) and value
    }
    assert memory == {}


def test_two_jobs_never_share_a_device(store: Store, clock: Clock) -> None:
    """A random workload on followers that come, go, fall silent and return: who had which device, and when."""
    rng = random.Random(7)
    engine = ScriptedEngine(["one", "two", "three"], gpus=3)
    leader = Leader(store, engine, clock)
    names = [f"job-{number}" for number in range(60)]
    todo = list(names)
    holding: dict[tuple[str, int], dict[tuple[str, int], float]] = {}
    intervals: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for turn in range(3000):
        if todo and rng.random() < 0.3:
            name = todo.pop()
            leader.submit(gpu_job(name, rng.choice([1, 1, 2, 3])) if rng.random() < 0.7 else a_job(name))
        if rng.random() < 0.01:
            engine.silent ^= {rng.choice(engine.present)}
        elif rng.random() < 0.05:
            engine.silent.clear()
        leader.step()
        clock.pass_(rng.uniform(0.1, 2.0))
        for follower, held in engine.attempts.items():
            for attempt, measured in held.items():
                times = holding.setdefault(attempt, {})
                # A job without GPUs measures the processor, and is disturbed by whatever runs beside it.
                devices = measured.assignment.devices or range(3)
                if measured.has_ended:
                    continue
                for device in devices:
                    times.setdefault((follower, device), float(turn))
                is_through = measured.is_stopping or rng.random() < 0.1
                if not measured.items:
                    measured.begin()
                elif is_through:
                    measured.die() if measured.is_stopping or rng.random() < 0.1 else measured.end()
                    for place, since in times.items():
                        intervals.setdefault(place, []).append((since, float(turn)))
        if not todo and not store.queue.jobs(["queued", "placed", "running"]):
            break
    assert all(kept(store, name).state.is_final for name in names)
    assert sum(map(len, intervals.values())) >= len(names)
    for place, spans in intervals.items():
        for (_, ended), (began, _) in pairwise(sorted(spans)):
            assert ended <= began, f"two jobs were measured on {place} at once"


def test_a_follower_that_takes_nothing_new_finishes_what_it_has_and_comes_back_later(
    store: Store, clock: Clock
) -> None:
    engine, leader = running_on_one(store, clock)
    engine.draining = {"one"}
    leader.step()
    assert kept(store).state is JobState.RUNNING
    engine.attempt("job").record()
    engine.attempt("job").end()
    leader.step()
    assert kept(store).state is JobState.SUCCEEDED
    leader.step()
    leader.submit(a_job("next"))
    leader.step()
    assert kept(store, "next").state is JobState.QUEUED
    engine.draining = set()
    leader.step()
    assert kept(store, "next").state is JobState.PLACED
