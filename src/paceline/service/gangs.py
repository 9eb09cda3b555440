"""What the followers of a gang are told: to begin in their order, and to stop together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from paceline.service.asking import Order
from paceline.service.attempts import Attempts
from paceline.service.engines.base import FollowerState
from paceline.service.jobs import STOPPED, Job, JobState
from paceline.service.keeping import assignment_of


@dataclass(frozen=True)
class Verdict:
    """How a gang goes on: with orders, or not at all."""

    orders: tuple[Order, ...] = ()
    lost: str = ""  # why the attempt came to nothing, once nobody goes on with it


def look_after(
    job: Job,
    attempts: Attempts,
    followers: Mapping[str, FollowerState],
    is_there: Callable[[str], bool],
    lease: timedelta,
) -> Verdict:
    """What goes wrong with one ends the attempt on all; it is over when none of them goes on."""
    first = job.followers[0]
    going = attempts.going(job, is_there)
    reason = attempts.trouble(job) or (STOPPED if job.stop_asked else "")
    is_told = attempts.has_ended(first, job) and is_there(first)  # its next report decides
    if reason and not going and not is_told:
        return Verdict(lost=reason)
    if reason or is_told:
        for follower in going:
            attempts.told_to_stop(follower, job)
        return Verdict(tuple(Order(follower, (job.id, job.attempt), None) for follower in going))
    return Verdict(_beginnings(job, attempts, followers, lease) if job.state is JobState.PLACED else ())


def _beginnings(
    job: Job, attempts: Attempts, followers: Mapping[str, FollowerState], lease: timedelta
) -> tuple[Order, ...]:
    """The others first; when all of them say where they wait, the first."""
    meetings = {one: attempts.meeting(one, job) for one in job.followers[1:]}
    wanted = [one for one, meeting in meetings.items() if meeting is None] or [job.followers[0]]
    orders = []
    for follower in wanted:
        state = followers.get(follower)
        if state is not None:
            place = job.followers.index(follower)
            known = tuple(meeting for meeting in meetings.values() if meeting) if place == 0 else ()
            assignment = assignment_of(job, lease, place=place, address=state.address, meetings=known)
            orders.append(Order(follower, (job.id, job.attempt), assignment))
    return tuple(orders)
