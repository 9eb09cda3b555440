"""A follower that is refused is given nothing and nothing is taken from it; what it had delivered stays."""

from __future__ import annotations

import pytest

from paceline.service.jobs import JobState, MachineNeeds
from paceline.service.leader import Leader
from paceline.store.store import Store
from support.kept_jobs import history, kept, statuses
from support.scripted_followers import Clock, ScriptedEngine, a_job

WHY = "its token was revoked on 2030-01-01 at 00:00 UTC"


def test_a_refused_follower_gets_no_job(store: Store, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(["one", "two"])
    engine.refused = {"one": WHY}
    leader = Leader(store, engine, clock)
    leader.submit(a_job("first"))
    leader.submit(a_job("second"))
    for _ in range(3):
        leader.step()
    assert engine.begun == [("two", "first", 1)] * len(engine.begun)
    assert kept(store, "second").state is JobState.QUEUED
    assert [state.id for state in leader.followers()] == ["two"]
    assert [(state.id, state.refused) for state in leader.refused()] == [("one", WHY)]
    assert caplog.messages.count(f"follower one is refused: {WHY}") == 1


def test_its_job_goes_elsewhere_at_once_and_what_it_delivered_stays(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one", "two"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    leader.step()
    refused = kept(store).followers[0]
    other = ({"one", "two"} - {refused}).pop()
    attempt = engine.attempts[refused]["job", 1]
    attempt.begin(cases=2)
    attempt.record()
    leader.step()

    engine.refused = {refused: WHY}
    attempt.end()  # what it says from now on does not count
    leader.step()
    leader.step()
    job = kept(store)
    assert (job.attempt, job.followers) == (2, (other,))
    assert history(store) == ["submitted", "placed", "began", "lost", "placed"]
    (lost,) = (event for event in store.queue.events("job") if event.kind == "lost")
    assert lost.document["reason"] == f"follower {refused} is refused: {WHY}"
    assert len(store.load(job.run_ids[0]).records) == 1
    assert statuses(store) == ["interrupted", "none"]

    engine.attempts[other]["job", 2].all_of_it()
    leader.step()
    assert kept(store).state is JobState.SUCCEEDED


def measuring(store: Store, clock: Clock) -> tuple[ScriptedEngine, Leader]:
    """A leader whose only follower has begun a job of two cases."""
    engine = ScriptedEngine(["one"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    engine.attempt("job").begin(cases=2)
    leader.step()
    return engine, leader


def test_it_is_not_asked_for_reports_and_its_lease_is_not_renewed(store: Store, clock: Clock) -> None:
    engine, leader = measuring(store, clock)
    engine.refused = {"one": WHY}
    before = len(engine.asked)
    leader.step()
    leader.step()
    assert len(engine.asked) == before
    assert kept(store).state is JobState.QUEUED


def test_once_it_is_believed_again_it_reports_what_it_measured_and_gets_jobs(store: Store, clock: Clock) -> None:
    engine, leader = measuring(store, clock)
    attempt = engine.attempt("job")
    engine.refused = {"one": WHY}
    attempt.record()
    leader.step()
    first = kept(store).run_ids[0]
    assert store.load(first).records == []
    engine.refused = {}
    leader.step()
    assert len(store.load(first).records) == 1, "a late report is stored"
    assert attempt.is_stopping
    attempt.stop()
    leader.step()
    leader.step()
    assert kept(store).attempt == 2
    assert leader.refused() == []


def test_one_that_is_believed_again_has_to_answer_before_it_gets_anything(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one"])
    leader = Leader(store, engine, clock)
    leader.step()
    engine.refused = {"one": WHY}
    leader.step()
    engine.refused, engine.silent = {}, {"one"}  # a new token was made, which it does not have
    leader.submit(a_job())
    leader.step()
    leader.step()
    assert kept(store).state is JobState.QUEUED
    assert engine.begun == []


def test_a_gang_ends_on_all_when_one_of_it_is_refused(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one", "two"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job(needs=MachineNeeds(nodes=2)))
    leader.step()
    second = kept(store).followers[1]
    engine.attempts[second]["job", 1].begin()
    leader.step()
    engine.refused = {kept(store).followers[0]: WHY}
    for _ in range(3):
        leader.step()
    assert engine.attempts[second]["job", 1].is_stopping
    engine.attempts[second]["job", 1].stop()
    leader.step()
    leader.step()
    assert kept(store).state is JobState.QUEUED
    assert "is refused" in store.queue.events("job")[-1].document["reason"]


def test_a_new_leader_does_not_wait_for_a_refused_follower_to_answer(store: Store, clock: Clock) -> None:
    engine = ScriptedEngine(["one"])
    leader = Leader(store, engine, clock)
    leader.submit(a_job())
    leader.step()
    engine.attempt("job").begin()
    leader.step()
    engine.refused = {"one": WHY}
    again = Leader(store, engine, clock)
    again.step()
    assert [(state.id, state.refused) for state in again.refused()] == [("one", WHY)]
    clock.pass_(31)
    again.step()
    assert kept(store).state is JobState.QUEUED
    assert store.queue.events("job")[-1].document["reason"] == f"follower one is refused: {WHY}"
