"""Whatever a follower reports, the leader goes on: text is written out, and what cannot be stored is put aside."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core.record import Cause, CauseKind, Outcome, Record
from paceline.service.engines.base import Item
from paceline.service.job_store import TRIES
from paceline.service.jobs import FailureKind, JobFailure, JobState
from paceline.service.leader import Leader
from paceline.store import open_store
from paceline.store.store import Store
from support.kept_jobs import kept, statuses
from support.refused import refused
from support.scripted_followers import START, Clock, Measured, ScriptedEngine, a_job, case

UNCLEAN = os.fsdecode(b"d\xff") + "\x00\x1b[2J"
CLEAN = r"d\udcff\x00\x1b[2J"


@pytest.fixture(params=["sqlite", "postgresql"])
def either_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    is_file = request.param == "sqlite"
    with open_store(tmp_path / "store.db" if is_file else request.getfixturevalue("postgres").new_database()) as opened:
        yield opened


def running(store: Store, clock: Clock, *jobs: str) -> tuple[ScriptedEngine, Leader]:
    """A leader with a follower for each job, all of which have begun."""
    engine = ScriptedEngine([f"on-{job}" for job in jobs])
    leader = Leader(store, engine, clock)
    for job in jobs:
        leader.submit(a_job(job))
    leader.step()
    for job in jobs:
        engine.attempt(job).begin()
    leader.step()
    return engine, leader


def a_record(attempt: Measured, index: int = 0, **more: object) -> Record:
    fields = {"run_id": attempt.assignment.run_id, "outcome": Outcome.OK, "started_at": START, "seconds": 1.0}
    return Record.model_validate({**fields, "case": case(index), **more})


def test_text_of_a_case_that_no_database_takes_stops_nobody(either_store: Store, clock: Clock) -> None:
    engine, leader = running(either_store, clock, "job")
    cause = Cause(kind=CauseKind.ERROR, message=UNCLEAN, detail=UNCLEAN)
    engine.attempt("job").tell(
        "record", record=a_record(engine.attempt("job"), outcome="failed", cause=cause, facts={UNCLEAN: UNCLEAN})
    )
    engine.attempt("job").tell("log", text=f"{UNCLEAN}\n")
    engine.attempt("job").end(JobFailure(kind=FailureKind.CASES, message=UNCLEAN))
    leader.step()
    job = kept(either_store)
    assert (job.state, job.failure and job.failure.message) == (JobState.FAILED, CLEAN)
    (record,) = either_store.load(job.run_ids[0]).records
    assert record.cause is not None
    assert (record.cause.message, record.facts) == (CLEAN, {CLEAN: CLEAN})
    assert [line.text for line in either_store.queue.logs("job")] == [f"{CLEAN}\n"]
    assert either_store.queue.quarantined() == []


def test_what_cannot_be_stored_is_put_aside_and_everything_else_is_stored(either_store: Store, clock: Clock) -> None:
    engine, leader = running(either_store, clock, "bad", "good")
    bad = engine.attempt("bad")
    bad.tell("log", text="before\n")
    bad.tell("record", record=a_record(bad, index=7))  # a case that was never planned
    bad.tell("record", record=a_record(bad).model_copy(update={"run_id": "another run"}))
    bad.tell("record", record=a_record(bad))
    bad.end()
    engine.attempt("good").record()
    engine.attempt("good").end()
    leader.step()
    assert kept(either_store, "good").state is JobState.SUCCEEDED, "the others do not wait for it"
    assert kept(either_store, "bad").state is JobState.RUNNING
    for _ in range(TRIES):
        leader.step()
    assert kept(either_store, "bad").state is JobState.SUCCEEDED
    assert statuses(either_store, "bad") == ["interrupted"], "not all of it is there"
    assert len(either_store.load(kept(either_store, "bad").run_ids[0]).records) == 1
    assert [line.text for line in either_store.queue.logs("bad")] == ["before\n"]
    rows = either_store.queue.quarantined("bad")
    assert [(row.number, row.kind, row.follower) for row in rows] == [(4, "record", "on-bad"), (3, "record", "on-bad")]
    assert "it belongs to run 'another run'" in rows[0].reason
    assert either_store.queue.quarantined("good") == []


def test_what_is_in_quarantine_is_there_after_a_restart_and_can_be_retried_or_dropped(
    store: Store, clock: Clock
) -> None:
    engine, leader = running(store, clock, "job")
    attempt = engine.attempt("job")
    attempt.tell("record", record=a_record(attempt, index=1))
    attempt.tell("record", record=a_record(attempt, index=7))
    attempt.end()
    for _ in range(TRIES):
        leader.step()
    again = Leader(store, engine, clock)
    again.step()
    second, first = store.queue.quarantined("job")
    with refused("still-refused", value=first.id):
        again.retry_quarantined(first.id)
    run_id = kept(store).run_ids[0]
    store.plan(run_id, [case(1)])  # as if the reason had been mended
    again.retry_quarantined(first.id)
    assert [record.case.index for record in store.load(run_id).records] == [1]
    again.drop_quarantined(second.id)
    assert store.queue.quarantined() == []
    with refused("unknown-item", value=second.id):
        again.drop_quarantined(second.id)


def test_an_event_that_cannot_happen_does_not_keep_a_job_from_ending(store: Store, clock: Clock) -> None:
    engine, leader = running(store, clock, "job")
    engine.attempt("job").end()
    engine.attempt("job").end()
    for _ in range(TRIES):
        leader.step()
    assert kept(store).state is JobState.SUCCEEDED
    assert ["cannot be ended now" in row.reason for row in store.queue.quarantined()] == [True]


def test_a_report_that_is_refused_is_logged_once(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.service.job_store.TRIES", 1000)
    engine, leader = running(store, clock, "job")
    attempt = engine.attempt("job")
    attempt.tell("record", record=a_record(attempt, index=7))
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            leader.step()
    assert len(caplog.records) == 1
    assert leader.trouble == ""


def test_a_follower_whose_answer_cannot_be_read_stops_nobody(store: Store, clock: Clock) -> None:
    engine, leader = running(store, clock, "bad", "good")
    poll = engine.poll

    def broken(follower: str, acknowledged: dict[tuple[str, int], int]) -> object:
        if follower == "on-bad":
            return [Item.model_validate({"number": "nonsense"})]
        return poll(follower, acknowledged)

    engine.poll = broken  # type: ignore[method-assign,assignment]
    engine.attempt("good").record()
    engine.attempt("good").end()
    leader.step()
    assert kept(store, "good").state is JobState.SUCCEEDED
