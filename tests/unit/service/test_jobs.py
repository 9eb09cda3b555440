"""Every event in every state, and what each changes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from paceline.service.jobs import (
    LEASE,
    MOST_ATTEMPTS,
    Began,
    Cancelled,
    Ended,
    FailureKind,
    IllegalChange,
    Job,
    JobEvent,
    JobFailure,
    JobState,
    Lost,
    Placed,
    Refused,
    Renewed,
    change,
)
from support.scripted_followers import START, a_job

LATER = START + timedelta(seconds=10)
FAILURE = JobFailure(kind=FailureKind.CASES, message="1 of 2 cases did not succeed")
EVENTS: dict[str, JobEvent] = {
    "placed": Placed(at=LATER, followers=("a",), devices=((0,),), run_id="run-1"),
    "began": Began(at=LATER),
    "renewed": Renewed(at=LATER),
    "ended": Ended(at=LATER),
    "ended badly": Ended(at=LATER, failure=FAILURE),
    "lost": Lost(at=LATER, reason="follower a is gone"),
    "cancelled": Cancelled(at=LATER, by="ann"),
    "refused": Refused(at=LATER, failure=JobFailure(kind=FailureKind.UNPLACEABLE, message="no such machine")),
}


def jobs() -> dict[str, Job]:
    """One in each state, and those in which somebody asked it to stop."""
    queued = a_job()
    placed = change(queued, Placed(at=START, followers=("a",), devices=((0,),), run_id="run-1"))
    running = change(placed, Began(at=START))
    stop = Cancelled(at=START)
    return {
        "queued": queued,
        "placed": placed,
        "running": running,
        "placed, to stop": change(placed, stop),
        "running, to stop": change(running, stop),
        "succeeded": change(running, Ended(at=START)),
        "failed": change(running, Ended(at=START, failure=FAILURE)),
        "cancelled": change(queued, stop),
    }


AFTER = {
    ("queued", "placed"): "placed",
    ("queued", "cancelled"): "cancelled",
    ("queued", "refused"): "failed",
    ("placed", "began"): "running",
    ("placed", "renewed"): "placed",
    ("placed", "ended"): "succeeded",
    ("placed", "ended badly"): "failed",
    ("placed", "lost"): "queued",
    ("placed", "cancelled"): "placed",
    ("running", "renewed"): "running",
    ("running", "ended"): "succeeded",
    ("running", "ended badly"): "failed",
    ("running", "lost"): "queued",
    ("running", "cancelled"): "running",
    ("placed, to stop", "began"): "running",
    ("placed, to stop", "renewed"): "placed",
    ("placed, to stop", "ended"): "cancelled",
    ("placed, to stop", "ended badly"): "cancelled",
    ("placed, to stop", "lost"): "cancelled",
    ("placed, to stop", "cancelled"): "placed",
    ("running, to stop", "renewed"): "running",
    ("running, to stop", "ended"): "cancelled",
    ("running, to stop", "ended badly"): "cancelled",
    ("running, to stop", "lost"): "cancelled",
    ("running, to stop", "cancelled"): "running",
}


@pytest.mark.parametrize("happens", EVENTS)
@pytest.mark.parametrize("state", jobs())
def test_every_event_in_every_state(state: str, happens: str) -> None:
    job, event = jobs()[state], EVENTS[happens]
    if (state, happens) not in AFTER:
        with pytest.raises(IllegalChange, match=f"job 'job' is {job.state}: it cannot be {event.kind} now"):
            change(job, event)
        return
    after = change(job, event)
    assert after.state == AFTER[state, happens]
    assert after.version == job.version + 1
    assert bool(after.followers) == bool(after.lease_until) == after.state.is_active


def test_a_placed_job_knows_who_has_it_and_where_its_records_go() -> None:
    job = jobs()["placed"]
    assert (job.followers, job.devices, job.run_id, job.attempt) == (("a",), ((0,),), "run-1", 1)
    assert job.lease_until == START + LEASE


def test_being_heard_of_moves_the_lease_and_nothing_else() -> None:
    job = jobs()["running"]
    after = change(job, EVENTS["renewed"], lease=timedelta(seconds=5))
    assert after.lease_until == LATER + timedelta(seconds=5)
    assert after.state_at == job.state_at


def test_a_job_is_lost_as_often_as_it_may_be_tried_and_then_says_why_it_failed() -> None:
    job = a_job()
    for number in range(1, MOST_ATTEMPTS + 1):
        assert job.state is JobState.QUEUED
        job = change(job, Placed(at=LATER, followers=("a",), run_id=f"run-{number}"))
        job = change(job, EVENTS["lost"])
    assert job.state is JobState.FAILED
    assert job.run_ids == ("run-1", "run-2", "run-3")
    assert job.failure == JobFailure(kind=FailureKind.LOST, message="follower a is gone; that was attempt 3 of 3")


def test_a_failure_is_kept_and_a_success_has_none() -> None:
    assert jobs()["failed"].failure == FAILURE
    assert jobs()["succeeded"].failure is None
    assert jobs()["succeeded"].run_id == "run-1"


@pytest.mark.parametrize("kind", [FailureKind.TIMEOUT, FailureKind.MEMORY])
def test_what_ran_out_is_the_cause_and_is_not_tried_again(kind: FailureKind) -> None:
    failure = JobFailure(kind=kind, message="1 of 1 cases did not succeed")
    job = change(jobs()["running"], Ended(at=LATER, failure=failure))
    assert (job.state, job.attempt) == (JobState.FAILED, 1)
    assert job.failure is not None
    assert job.failure.kind is kind


def test_the_last_loss_says_what_the_job_failed_of() -> None:
    job = change(jobs()["running"], Lost(at=LATER, reason="killed", cause=FailureKind.MEMORY), most_attempts=1)
    assert job.failure is not None
    assert (job.failure.kind, job.failure.message) == (FailureKind.MEMORY, "killed; that was attempt 1 of 1")


@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_failure_says_what_helps(kind: FailureKind) -> None:
    assert JobFailure(kind=kind, message="x").remedy
    assert JobFailure.model_validate({"kind": kind.value, "message": "x"}).remedy, "also one of an earlier version"
    assert JobFailure(kind=kind, message="x", remedy="this").remedy == "this"
