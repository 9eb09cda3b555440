"""What followers tell is kept once, whoever dies when, and whatever the store does."""

from __future__ import annotations

import threading

import pytest

from paceline.core.errors import StoreError
from paceline.service.engines.base import AttemptReport
from paceline.service.jobs import FailureKind, JobFailure, JobState
from paceline.service.leader import Leader
from paceline.store.store import Store
from support.kept_jobs import BEYOND_LEASE, full_disk, history, kept, statuses, until
from support.scripted_followers import Clock, Measured, ScriptedEngine, a_job

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


def test_a_full_disk_stops_acceptance_and_nothing_that_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine)
    thread = threading.Thread(target=leader.run)
    leader.submit(a_job())
    thread.start()
    try:
        until(lambda: bool(engine.begun))
        with full_disk(store, monkeypatch):
            engine.attempt("job").all_of_it()
            until(lambda: bool(leader.trouble))
            assert "disk is full" in leader.trouble
            with pytest.raises(StoreError, match="disk is full"):
                leader.submit(a_job("refused"))
            asked = len(engine.asked)
            until(lambda: len(engine.asked) > asked + 2)
            assert ("job", 1) in engine.asked[-1], "its follower must hear that the leader is there"
        until(lambda: not leader.trouble)
        leader.submit(a_job("taken"))
        until(lambda: ("one", "taken", 1) in engine.begun)
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


def test_a_report_on_a_job_that_nobody_knows_is_left_where_it_is(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    stranger = AttemptReport(job_id="stranger", attempt=1)
    not_yet = AttemptReport(job_id="job", attempt=7)
    engine.poll = lambda follower, acknowledged: [stranger, not_yet]  # type: ignore[method-assign]
    for _ in range(3):
        leader.step()
    told = [record.getMessage() for record in caplog.records if "not in this store" in record.getMessage()]
    assert [word for message in told for word in ("stranger", "job job") if word in message] == ["stranger", "job job"]
    assert all(("stranger", 1) not in asked for asked in engine.asked)


@pytest.mark.parametrize("kind", [FailureKind.TIMEOUT, FailureKind.MEMORY])
@pytest.mark.parametrize(("cases", "status"), [(1, "finished"), (2, "interrupted")])
def test_a_run_that_ran_out_of_something_is_whole_if_all_cases_were_measured(
    store: Store, clock: Clock, kind: FailureKind, cases: int, status: str
) -> None:
    engine = ScriptedEngine()
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    engine.attempt("job").begin(cases=cases)
    engine.attempt("job").record()
    engine.attempt("job").end(JobFailure(kind=kind, message="it was too much"))
    leader.step()
    job = kept(store)
    assert job.failure is not None
    assert (job.state, job.failure.kind, job.attempt) == (JobState.FAILED, kind, 1)
    assert statuses(store) == [status]
