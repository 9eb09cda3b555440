"""What the followers of jobs are told: to begin, those of a gang in their order, and to stop, all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from paceline.service.asking import Order
from paceline.service.attempts import Attempts
from paceline.service.engines.base import FollowerState
from paceline.service.jobs import STOPPED, Job, JobState
from paceline.service.keeping import assignment_of
from paceline.service.presence import Presence

_MEET = timedelta(minutes=5)  # that the followers of a gang have to begin, all of them


@dataclass(frozen=True)
class Verdict:
    """How an attempt goes on: with orders, or not at all."""

    orders: tuple[Order, ...] = ()
    lost: str = ""  # why the attempt came to nothing, once nobody goes on with it


def look_after(job: Job, attempts: Attempts, presence: Presence, lease: timedelta, now: datetime) -> Verdict:
    """How a job goes on; one whose follower is silent for too long is given up."""
    is_expired = job.lease_until is not None and job.lease_until < now
    follower = next((one for one in job.followers if not presence.is_there(one)), job.followers[0])
    if len(job.followers) > 1:
        if is_expired and not presence.is_there(follower):
            attempts.blame((job.id, job.attempt), presence.silence(follower))
        elif is_expired and (absent := _who_does_not_come(job, attempts, now)):
            attempts.blame((job.id, job.attempt), absent)
        return _look_after_gang(job, attempts, presence, lease)
    if is_expired:
        return Verdict(lost=_why_untaken(job, attempts, follower) or presence.silence(follower))
    if follower in presence.here and (job.stop_asked or job.state is JobState.PLACED):
        assignment = None if job.stop_asked else assignment_of(job, lease)
        return Verdict((Order(follower, (job.id, job.attempt), assignment),))
    return Verdict()


def _why_untaken(job: Job, attempts: Attempts, follower: str) -> str:
    """Why a follower that answers did not begin; empty if it did, or does not answer."""
    why = attempts.untaken.get((follower, (job.id, job.attempt)))
    return f"follower {follower} could not begin: {why}" if why else ""


def _who_does_not_come(job: Job, attempts: Attempts, now: datetime) -> str:
    """Why a gang never meets although all of them answer; empty while it may yet."""
    if job.state is not JobState.PLACED:
        return ""
    for follower in job.followers:
        if untaken := _why_untaken(job, attempts, follower):
            return untaken
    late = [one for one in job.followers[1:] if attempts.meeting(one, job) is None] or [job.followers[0]]
    return f"follower {late[0]} did not begin within {_MEET.total_seconds():g} s" if now - job.state_at > _MEET else ""


def _look_after_gang(job: Job, attempts: Attempts, presence: Presence, lease: timedelta) -> Verdict:
    """What goes wrong with one ends the attempt on all; it is over when none of them goes on."""
    first = job.followers[0]
    going = attempts.going(job, presence.is_there)
    reason = attempts.trouble(job) or (STOPPED if job.stop_asked else "")
    is_told = attempts.has_ended(first, job) and presence.is_there(first)  # its next report decides
    if reason and not going and not is_told:
        return Verdict(lost=reason)
    if reason or is_told:
        for follower in going:
            attempts.told_to_stop(follower, job)
        return Verdict(tuple(Order(follower, (job.id, job.attempt), None) for follower in going))
    return Verdict(_beginnings(job, attempts, presence.here, lease) if job.state is JobState.PLACED else ())


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
