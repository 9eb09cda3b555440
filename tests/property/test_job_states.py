"""Whatever happens to a job in whatever order: it is in one place at most, ends once, and is not tried for ever."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from paceline.service.jobs import (
    Began,
    Cancelled,
    Ended,
    FailureKind,
    IllegalChange,
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

KINDS = ("placed", "began", "renewed", "ended", "failed", "lost", "cancelled", "refused")


def event(kind: str, number: int) -> JobEvent:
    at = START + timedelta(seconds=number)
    failure = JobFailure(kind=FailureKind.CASES, message="no")
    made: dict[str, JobEvent] = {
        "placed": Placed(at=at, followers=(f"follower-{number}",), devices=((0,),), run_id=f"run-{number}"),
        "began": Began(at=at),
        "renewed": Renewed(at=at),
        "ended": Ended(at=at),
        "failed": Ended(at=at, failure=failure),
        "lost": Lost(at=at, reason="gone"),
        "cancelled": Cancelled(at=at),
        "refused": Refused(at=at, failure=failure),
    }
    return made[kind]


@given(st.lists(st.sampled_from(KINDS), max_size=40), st.integers(1, 4))
def test_a_job_is_in_one_place_ends_once_and_is_not_tried_for_ever(kinds: list[str], most: int) -> None:
    job, holder = a_job(), None
    for number, kind in enumerate(kinds):
        happened = event(kind, number)
        before = job
        try:
            job = change(job, happened, most_attempts=most)
        except IllegalChange:
            assert job is before
            continue
        assert not before.state.is_final
        assert job.version == before.version + 1
        if isinstance(happened, Placed):
            assert holder is None
            holder = job.followers
        if not job.state.is_active:
            holder = None
        assert job.followers == (holder or ())
        assert job.attempt == len(job.run_ids) == len(set(job.run_ids)) <= most
        assert (job.failure is not None) == (job.state is JobState.FAILED)
