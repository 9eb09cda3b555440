"""The leader with followers that do what a test says: nothing is lost or counted twice, nobody waits for ever."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import InputError, StoreError
from paceline.service.engines.base import Assignment, Report
from paceline.service.jobs import LEASE, FailureKind, Job, JobFailure, JobState
from paceline.service.leader import Leader
from paceline.store import open_store
from paceline.store.store import Store
from support.scripted_followers import Clock, Measured, ScriptedEngine, a_job, gpu_job

BEYOND_LEASE = LEASE.total_seconds() + 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


def history(store: Store, job_id: str = "job") -> list[str]:
    return [event.kind for event in store.queue.events(job_id)]


def kept(store: Store, job_id: str = "job") -> Job:
    row = store.queue.job(job_id)
    assert row is not None
    return Job.model_validate(row.document)


def statuses(store: Store, job_id: str = "job") -> list[str]:
    found = {row.id: row.status for row in store.runs(limit=None)}
    return [found.get(run_id, "none") for run_id in kept(store, job_id).run_ids]


@contextmanager
def full_disk(store: Store, monkeypatch: pytest.MonkeyPatch, *, after: int = 0) -> Iterator[None]:
    """So many writes go well, and every later one fails."""
    real, left = store.writing, [after]

    @contextmanager
    def writing(doing: str) -> Iterator[Any]:
        if left[0] <= 0:
            raise StoreError(f"could not {doing} in the store: database or disk is full")
        left[0] -= 1
        with real(doing) as connection:
            yield connection

    with monkeypatch.context() as patch:
        patch.setattr(store, "writing", writing)
        yield


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
    with pytest.raises(InputError, match="another suite"):
        leader.submit(a_job(suite={"name": "other", "cases": []}))
    assert history(store) == ["submitted"]


MOMENTS = ("placed", "begun", "began", "recorded", "ended", "taken")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_new_leader_goes_on_from_any_moment(store: Store, clock: Clock, moment: str) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    engine.silent = {"one"} if moment == "placed" else set()
    leader.step()
    measured = engine.attempts.get("one", {}).get(("job", 1))
    for reached, act in (("began", Measured.begin), ("recorded", Measured.record), ("ended", Measured.end)):
        if measured is not None and MOMENTS.index(moment) >= MOMENTS.index(reached):
            act(measured)
            if moment in ("recorded", "taken"):
                leader.step()
    engine.silent = set()

    leader = Leader(store, engine, clock)
    for _ in range(3):
        leader.step()
        measured = engine.attempts.get("one", {}).get(("job", 1))
        if measured is not None and not measured.has_ended:
            done = [item.kind for item in measured.items]
            for kind, act in (("began", Measured.begin), ("record", Measured.record), ("ended", Measured.end)):
                if kind not in done:
                    act(measured)
    job = kept(store)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    assert history(store) == ["submitted", "placed", "began", "ended"]
    assert len(store.load(job.run_ids[0]).records) == 1
    assert statuses(store) == ["finished"]


def test_a_leader_that_dies_at_any_write_loses_and_doubles_nothing(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [f"job-{writes}" for writes in range(12)]
    engine = ScriptedEngine()
    for writes, name in enumerate(jobs):
        leader = Leader(store, engine, clock)
        leader.submit(a_job(name))
        with full_disk(store, monkeypatch, after=writes):
            for _ in range(5):
                try:
                    leader.step()
                except StoreError:
                    break  # as if it had been killed there
                for measured in [one for held in engine.attempts.values() for one in held.values()]:
                    if not measured.items:
                        measured.all_of_it()
    leader = Leader(store, engine, clock)
    for _ in range(50):
        leader.step()
        for measured in [one for held in engine.attempts.values() for one in held.values()]:
            if not measured.items:
                measured.all_of_it()
    for name in jobs:
        assert history(store, name) == ["submitted", "placed", "began", "ended"]
        assert kept(store, name).state is JobState.SUCCEEDED
        assert statuses(store, name) == ["finished"]
        assert len(store.load(kept(store, name).run_ids[0]).records) == 1


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
    engine = ScriptedEngine(["one"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    given_up = engine.attempt("job")
    given_up.begin()
    leader.step()
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


def test_late_reports_are_kept_and_end_nothing(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one", "two"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    first = kept(store).followers[0]
    late = engine.attempt("job")
    engine.silent = {first}
    clock.pass_(BEYOND_LEASE)
    leader.step()
    assert kept(store).attempt == 2
    engine.attempt("job", 2).begin()
    late.all_of_it()
    engine.silent = set()
    leader.step()
    job = kept(store)
    assert (job.state, job.attempt) == (JobState.RUNNING, 2)
    assert statuses(store) == ["interrupted", "running"]
    assert len(store.load(job.run_ids[0]).records) == 1
    engine.attempt("job", 2).record()
    engine.attempt("job", 2).end()
    leader.step()
    assert kept(store).state is JobState.SUCCEEDED
    assert statuses(store) == ["interrupted", "finished"]


def test_samples_of_a_case_in_flight_become_a_record_when_the_attempt_is_lost(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    engine.attempt("job").begin()
    engine.attempt("job").samples(0.5, 0.25)
    engine.attempt("job").die()
    leader.step()
    (record,) = store.load(kept(store).run_ids[0]).records
    assert not record.is_final
    assert kept(store).attempt == 2


def test_a_leader_that_was_held_up_itself_blames_nobody(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    clock.pass_(10 * BEYOND_LEASE)
    leader.step()
    assert (kept(store).state, kept(store).attempt) == (JobState.PLACED, 1)


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


def test_cases_that_fail_make_a_whole_run_of_a_failed_job(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    engine.attempt("job").begin()
    engine.attempt("job").end(JobFailure(kind=FailureKind.CASES, message="1 of 1 cases did not succeed"))
    leader.step()
    assert kept(store).state is JobState.FAILED
    assert statuses(store) == ["finished"]


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


def test_a_full_disk_stops_acceptance_and_nothing_that_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine)
    thread = threading.Thread(target=leader.run)
    leader.submit(a_job())
    thread.start()
    try:
        _until(lambda: bool(engine.begun))
        with full_disk(store, monkeypatch):
            engine.attempt("job").all_of_it()
            _until(lambda: bool(leader.trouble))
            assert "disk is full" in leader.trouble
            with pytest.raises(StoreError, match="disk is full"):
                leader.submit(a_job("refused"))
            asked = len(engine.asked)
            _until(lambda: len(engine.asked) > asked + 2)
            assert ("job", 1) in engine.asked[-1], "its follower must hear that the leader is there"
        _until(lambda: not leader.trouble)
        leader.submit(a_job("taken"))
        _until(lambda: ("one", "taken", 1) in engine.begun)
        assert kept(store).state is JobState.SUCCEEDED
        assert statuses(store) == ["finished"]
        assert store.queue.job("refused") is None
    finally:
        leader.close()
        thread.join(10)
    assert not thread.is_alive()


def test_a_job_that_was_taken_just_before_the_disk_was_full_is_placed_later(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.step()
    with full_disk(store, monkeypatch, after=1):
        assert leader.submit(a_job())[1]
    assert kept(store).state is JobState.QUEUED
    leader.step()
    assert engine.begun == [("one", "job", 1)]


def test_a_defect_of_an_engine_does_not_end_the_leader(store: Store) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine)
    real, engine.followers = engine.followers, lambda: [][0]  # type: ignore[method-assign]
    thread = threading.Thread(target=leader.run)
    thread.start()
    try:
        _until(lambda: "IndexError" in leader.trouble)
        engine.followers = real  # type: ignore[method-assign]
        leader.submit(a_job())
        _until(lambda: bool(engine.begun))
    finally:
        leader.close()
        thread.join(10)


def test_a_report_on_a_job_that_nobody_knows_is_left_where_it_is(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    stranger = Report(job_id="stranger", attempt=1)
    not_yet = Report(job_id="job", attempt=7)
    engine.poll = lambda follower, acknowledged: [stranger, not_yet]  # type: ignore[method-assign]
    for _ in range(3):
        leader.step()
    told = [record.getMessage() for record in caplog.records if "does not know" in record.getMessage()]
    assert [word for message in told for word in ("stranger", "job job") if word in message] == ["stranger", "job job"]
    assert all(("stranger", 1) not in asked for asked in engine.asked)


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
        for name, value in vars(leader).items()
        if isinstance(value, dict) and name not in ("_followers", "_heard_at") and value
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


def _until(is_so: Any, patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
