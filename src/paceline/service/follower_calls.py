"""Calls to followers: who is present, what each reports and is ordered, and which attempts they have.

All of them are called at once, so that one that is slow to answer delays nobody. The followers of a gang begin in their
order, and end together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from paceline.core.errors import InputError
from paceline.service.engines.base import (
    Assignment,
    AttemptKey,
    AttemptReport,
    Engine,
    FollowerGone,
    FollowerState,
    Item,
    Meeting,
)
from paceline.service.job_store import JobStore
from paceline.service.jobs import STOPPED, Began, Ended, FailureKind, Job, JobEvent, JobState, Lost, Renewed
from paceline.service.placement import gpu_indices
from paceline.service.quiet_log import QuietLog

Holder = tuple[str, AttemptKey]  # a follower and an attempt that it has, or had

_CALLS_AT_ONCE = 16
_PARTS = 32  # that a thread polls one after the other: of thousands of followers, several in one
_RETRIED = (FailureKind.LOST, FailureKind.BROKEN)  # another attempt may do better
_RENEW_PART = 3  # a lease is renewed in the store when a third of it is over, not at every look
_LOOKS = 5  # within which the death of a process is reported that happened before it was ordered to stop
_MEET = timedelta(minutes=5)  # that the followers of a gang have to begin, all of them

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Order:
    """What a follower is to do with an attempt: begin it, or stop it."""

    follower: str
    attempt: AttemptKey
    assignment: Assignment | None  # None to stop


class FollowerCalls:
    """Calls to the followers of an engine; those that do not answer are left for the next time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._quiet = QuietLog(_log)
        self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="follower")

    def poll(self, acknowledged: Mapping[str, dict[AttemptKey, int]]) -> dict[str, list[AttemptReport]]:
        """What each has to report beyond what is acknowledged; those that do not answer are missing."""

        def poll(follower: str) -> list[AttemptReport] | None:
            try:
                return list(self._engine.poll(follower, acknowledged[follower]))
            except (FollowerGone, OSError) as error:
                self._quiet.warning(f"follower {follower}: {error}")
                return None
            except Exception as error:  # whatever one of them answers, the others are heard
                self._quiet.warning(f"follower {follower}: its answer cannot be read: {type(error).__name__}", error)
                return None

        names = list(acknowledged)
        size = max(1, len(names) // (_CALLS_AT_ONCE * _PARTS))
        parts = [names[start : start + size] for start in range(0, len(names), size)]
        answers = self._threads.map(lambda part: [(follower, poll(follower)) for follower in part], parts)
        return {follower: answer for part in answers for follower, answer in part if answer is not None}

    def send(self, orders: Sequence[Order]) -> dict[Holder, str]:
        """Give orders; those that were not taken, each with the reason, have to be given again."""

        def send(order: Order) -> str:
            try:
                if order.assignment is None:
                    self._engine.cancel(order.follower, *order.attempt)
                else:
                    self._engine.begin(order.follower, order.assignment)
            except (FollowerGone, OSError) as error:
                self._quiet.warning(f"follower {order.follower}: {error}")
                return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            return ""

        reasons = self._threads.map(send, orders)
        return {(order.follower, order.attempt): why for order, why in zip(orders, reasons, strict=True) if why}

    def close(self) -> None:
        """Call nobody any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Presence:
    """The followers of one leader, as its engine sees them and as they answer."""

    def __init__(self, now: Callable[[], datetime], lease: timedelta) -> None:
        self._now = now
        self._lease = lease
        self.start_over(())

    def start_over(self, recorded: Iterable[FollowerState]) -> None:
        """Remember only those that were let in once; whoever is present has to answer first."""
        self.here: dict[str, FollowerState] = {}  # those that the engine lists and believes
        self.refused: dict[str, FollowerState] = {}  # those that it does not believe; they are as good as gone
        self.recorded = {state.id: state for state in recorded}  # also those that have gone
        self._answered_at: dict[str, datetime] = {}
        self._since = self._now()

    def see(self, present: Collection[FollowerState]) -> None:
        """These are here now; one that has gone has to answer again when it returns."""
        self.here = {state.id: state for state in present if not state.refused}
        # What one that is not believed says of itself is not shown, but what is known of it from before.
        self.refused = {
            state.id: self.recorded.get(state.id, state).model_copy(update={"refused": state.refused})
            for state in present
            if state.refused
        }
        self._answered_at = {one: at for one, at in self._answered_at.items() if one in self.here}

    def hear(self, follower: str) -> None:
        """A follower has answered."""
        self._answered_at[follower] = self._now()

    def doubt(self, follower: str) -> None:
        """A follower has to answer again before it counts as heard."""
        self._answered_at.pop(follower, None)

    def is_heard(self, follower: str) -> bool:
        """Whether a follower has answered within a lease."""
        answered_at = self._answered_at.get(follower)
        return answered_at is not None and self._now() - answered_at <= self._lease

    def is_there(self, follower: str) -> bool:
        """Whether a follower answers, or may yet answer for the first time."""
        may_answer = follower in self.here and self._now() - self._since <= self._lease
        return self.is_heard(follower) or (may_answer and follower not in self._answered_at)

    def leaving(self, inside: Collection[str], idle: Collection[str]) -> dict[str, str]:
        """Those of the cluster that have gone, or run nothing and take nothing new, each with the reason."""
        gone = {one: self.refusal(one) or f"follower {one} is gone" for one in inside if one not in self.here}
        drained = [one for one in idle if one in self.here and self.here[one].draining]
        return gone | {one: f"follower {one} takes nothing new" for one in drained}

    def silent(self, inside: Iterable[str]) -> dict[str, str]:
        """Those of the cluster that have not answered within a lease, each with the reason."""
        return {one: self.silence(one) for one in inside if not self.is_heard(one)}

    def silence(self, follower: str) -> str:
        """Why a follower is given up that does not answer."""
        return self.refusal(follower) or f"follower {follower} was not heard of for {self._lease.total_seconds():g} s"

    def refusal(self, follower: str) -> str:
        """Why a follower is refused; empty if it is not."""
        return f"follower {follower} is refused: {self.refused[follower].refused}" if follower in self.refused else ""

    def newcomers(
        self, inside: Collection[str], busy: Collection[str], returning: Collection[Collection[str]]
    ) -> set[str]:
        """Who can be let in: whoever answers, is not busy with what was given up, and has all of its gang here.

        `returning` has the followers of each job that an earlier leader placed: these are let in also while they take
        nothing new.
        """
        awaited = {one for gang in returning for one in gang}
        ready = {one for one, state in self.here.items() if one in awaited or not state.draining}
        ready = {one for one in ready if one not in inside and one not in busy and self.is_heard(one)}
        while alone := {one for gang in returning if not ready.union(inside).issuperset(gang) for one in gang} & ready:
            ready -= alone
        return ready


@dataclass(frozen=True)
class GangMember:
    """What one follower of a gang reported last, if anything."""

    meeting: Meeting | None = None
    has_ended: bool = False


class Attempts:
    """The attempts that followers have, whether they are wanted or not."""

    def __init__(self, jobs: JobStore, lease: timedelta) -> None:
        self._jobs = jobs
        self._lease = lease
        self._holders: set[Holder] = set()  # who may have to report on which attempt
        self.strays: set[Holder] = set()  # who measures an attempt that was given up
        self._others: dict[Holder, int] = {}  # those of a gang other than the first, and what they are acknowledged
        self._members: dict[Holder, GangMember] = {}  # of gangs whose attempt is the current one
        self._trouble: dict[AttemptKey, tuple[str, FailureKind]] = {}  # what went wrong first, and its kind
        self._stops: dict[Holder, int] = {}  # how often followers of such gangs were ordered to stop
        self.refused_orders: dict[Holder, str] = {}  # why those did not take an order who were given one last
        self._strangers: set[str] = set()  # jobs that followers report on and this store does not have
        self._refused: set[tuple[Holder, int]] = set()  # who reported what was not theirs, and at which place of a gang

    # Reports of followers

    def expected(self, followers: Iterable[str], *, with_store: bool = True) -> dict[str, dict[AttemptKey, int]]:
        """What each may have to report on, and up to where it is acknowledged, as far as that can be known."""
        there = {follower: dict[AttemptKey, int]() for follower in followers}
        for job in self._jobs.active():
            for follower in job.followers:
                holder = (follower, (job.id, job.attempt))
                if follower in there:
                    self._holders.add(holder)
                    if follower != job.followers[0]:
                        self._others.setdefault(holder, 0)
        for holder in self._holders:
            if (expected := there.get(holder[0])) is not None:
                known = self._others.get(holder)
                attempt = holder[1]
                expected[attempt] = self._jobs.acknowledged(attempt, with_store=with_store) if known is None else known
        return there

    def take(self, follower: str, report: AttemptReport) -> tuple[Job, list[Item]] | None:
        """The job that a report decides about, with what is new; late reports are stored, and decide nothing."""
        try:
            job = self._jobs.find(report.job_id)
            is_stranger = not 1 <= report.attempt <= len(job.run_ids)
        except InputError:
            is_stranger = True
        if is_stranger:  # nothing is acknowledged: it may be another store's
            if report.job_id not in self._strangers:
                self._strangers.add(report.job_id)
                _log.warning("follower %s reports on job %s, which is not in this store", follower, report.job_id)
            return None
        attempt = (report.job_id, report.attempt)
        holder = (follower, attempt)
        last = next((item for item in report.items if item.kind == "ended"), None)
        if not self._was_given(holder, job, report.place):
            (self.strays.discard if last is not None else self.strays.add)(holder)  # it may use devices all the same
            return None
        self._holders.add(holder)
        if report.place > 0:  # its log is stored; its end is reported again while the attempt is under way
            acknowledged, member = self._others.get(holder, 0), self._members.get(holder)
            new = [item for item in report.items if item.number > acknowledged]
            if member is None or not member.has_ended:
                self._jobs.take_lines(job, report.attempt, follower, new)
            self._others[holder] = max([acknowledged, *(item.number for item in new if item.kind != "ended")])
        if not self._jobs.is_current(attempt):
            if report.place == 0:
                self._jobs.take_report(job, report.attempt, follower, self._new_items(report), [])
            elif last is not None:
                self._others[holder] = last.number
            if last is not None:
                self.strays.discard(holder)
            else:
                self.strays.add(holder)
            return None
        if len(job.followers) > 1:
            self._members[holder] = GangMember(report.meeting, has_ended=last is not None)
            failure = last.failure if last is not None else None
            is_own_end = self._stops.get(holder, 0) <= _LOOKS  # and not that of one that did not stop when ordered to
            if failure is not None and failure.message != STOPPED and is_own_end:
                self.blame(attempt, f"follower {follower}: {failure.message}", failure.kind)
        return (job, self._new_items(report)) if report.place == 0 else None

    def events(self, job: Job, items: Iterable[Item], now: datetime) -> list[JobEvent]:
        """What happened to a job, according to what its follower reported just now."""
        events: list[JobEvent] = []
        if job.lease_until is None or job.lease_until - now < self._lease * (_RENEW_PART - 1) / _RENEW_PART:
            events.append(Renewed(at=now))
        for item in items:
            if item.kind == "began" and job.state is JobState.PLACED:
                events.append(Began(at=now))
            elif item.kind == "ended" and item.failure is not None and item.failure.kind in _RETRIED:
                reason, cause = self.trouble(job)
                events.append(Lost(at=now, reason=reason or item.failure.message, cause=cause))
            elif item.kind == "ended":
                events.append(Ended(at=now, failure=item.failure))
        return events

    def forget(self, follower: str, expected: Iterable[AttemptKey], reports: Iterable[AttemptReport]) -> None:
        """What is over and is no longer reported on will never be reported on again."""
        reported = {(report.job_id, report.attempt) for report in reports}
        self.strays = {holder for holder in self.strays if holder[0] != follower or holder[1] in reported}
        for attempt in set(expected) - reported:
            if not self._jobs.is_current(attempt):
                self._let_go((follower, attempt))
            elif self._members.pop((follower, attempt), None) is not None:
                self.blame(attempt, f"follower {follower} no longer has it")

    def tidy(self, present: Iterable[str]) -> None:
        """Forget what nobody can report any more, and the gangs whose attempt is over."""
        there, is_current = set(present), self._jobs.is_current
        self.strays = {holder for holder in self.strays if holder[0] in there or holder in self._holders}
        for holder in [one for one in self._holders if one[0] not in there and not is_current(one[1])]:
            self._let_go(holder)
        self._members = {holder: member for holder, member in self._members.items() if is_current(holder[1])}
        self._stops = {holder: count for holder, count in self._stops.items() if is_current(holder[1])}
        self._trouble = {attempt: trouble for attempt, trouble in self._trouble.items() if is_current(attempt)}

    @property
    def busy(self) -> set[str]:
        """Followers that still measure what was given up, or is about to be."""
        going = (one for one, member in self._members.items() if one[1] in self._trouble and not member.has_ended)
        return {follower for follower, _ in (*self.strays, *going)}

    # Gangs

    def member(self, follower: str, job: Job) -> GangMember:
        """What a follower of a gang reported last of the current attempt."""
        return self._members.get((follower, (job.id, job.attempt)), GangMember())

    def going(self, job: Job, is_there: Callable[[str], bool]) -> list[str]:
        """Followers of a job that have begun it and not ended, as far as they answer at all."""
        members = {one: self._members.get((one, (job.id, job.attempt))) for one in job.followers}
        return [one for one, member in members.items() if member and not member.has_ended and is_there(one)]

    def trouble(self, job: Job) -> tuple[str, FailureKind]:
        """What went wrong first with a gang, and its kind; empty if nothing did."""
        reason, cause = self._trouble.get((job.id, job.attempt), ("", FailureKind.LOST))
        return reason, FailureKind.LOST if cause is FailureKind.BROKEN else cause

    def blame(self, attempt: AttemptKey, reason: str, cause: FailureKind = FailureKind.LOST) -> None:
        """Something went wrong with a gang; what one says of another counts less than what it says of itself."""
        _, earlier = self._trouble.get(attempt, ("", FailureKind.BROKEN))
        if attempt not in self._trouble or (earlier is FailureKind.BROKEN and cause is not FailureKind.BROKEN):
            self._trouble[attempt] = (reason, cause)

    def stop(self, follower: str, job: Job) -> Order:
        """The order for a follower of a gang to stop, perhaps again."""
        holder = (follower, (job.id, job.attempt))
        self._stops[holder] = self._stops.get(holder, 0) + 1
        return Order(*holder, None)

    def _was_given(self, holder: Holder, job: Job, place: int) -> bool:
        """Whether a follower has, or had, an attempt at this place of a gang; who was given it never changes."""
        follower, (_, attempt) = holder
        if (holder, place) in self._refused:
            return False
        given = self._jobs.followers_of(job, attempt)
        if 0 <= place < len(given) and given[place] == follower:
            return True
        self._refused.add((holder, place))
        message = "refused: follower %s reports on attempt %d at job %s at place %d, which it was not given"
        _log.warning(message, follower, attempt, job.id, place)
        return False

    def _new_items(self, report: AttemptReport) -> list[Item]:
        acknowledged = self._jobs.acknowledged((report.job_id, report.attempt))
        return [item for item in report.items if item.number > acknowledged]

    def _let_go(self, holder: Holder) -> None:
        self._holders.discard(holder)
        self.strays.discard(holder)
        if self._others.pop(holder, None) is None:
            self._jobs.forget_attempt(holder[1])


def next_orders(
    job: Job, attempts: Attempts, presence: Presence, lease: timedelta, now: datetime
) -> tuple[list[Order], str]:
    """The orders with which a job goes on, or why its attempt came to nothing: its follower is silent for too long."""
    is_expired = job.lease_until is not None and job.lease_until < now
    follower = next((one for one in job.followers if not presence.is_there(one)), job.followers[0])
    if len(job.followers) > 1:
        if is_expired and not presence.is_there(follower):
            attempts.blame((job.id, job.attempt), presence.silence(follower))
        elif is_expired and (absent := _why_not_met(job, attempts, now)):
            attempts.blame((job.id, job.attempt), absent)
        return _next_orders_of_gang(job, attempts, presence, lease)
    if is_expired:
        return [], _why_refused(job, attempts, follower) or presence.silence(follower)
    if follower in presence.here and (job.stop_asked or job.state is JobState.PLACED):
        assignment = None if job.stop_asked else assignment_of(job, lease)
        return [Order(follower, (job.id, job.attempt), assignment)], ""
    return [], ""


def assignment_of(
    job: Job, lease: timedelta, *, place: int = 0, address: str = "", meetings: tuple[Meeting, ...] = ()
) -> Assignment:
    """What a follower of a placed job is given; of a gang, the one at this place."""
    assert job.run_id is not None
    return Assignment(
        job_id=job.id,
        attempt=job.attempt,
        run_id=job.run_id,
        suite=job.suite,
        overrides=job.overrides,
        only=job.only,
        tags=job.tags,
        devices=gpu_indices(job.devices[place]),
        name=job.followers[place],
        peers=tuple(follower for at, follower in enumerate(job.followers) if at != place),
        place=place,
        address=address,
        meetings=meetings,
        lease_seconds=lease.total_seconds(),
    )


def _why_refused(job: Job, attempts: Attempts, follower: str) -> str:
    """Why a follower that answers did not begin; empty if it did, or does not answer."""
    why = attempts.refused_orders.get((follower, (job.id, job.attempt)))
    return f"follower {follower} could not begin: {why}" if why else ""


def _why_not_met(job: Job, attempts: Attempts, now: datetime) -> str:
    """Why a gang never meets although all of them answer; empty while it may yet."""
    if job.state is not JobState.PLACED:
        return ""
    refusals = filter(None, (_why_refused(job, attempts, follower) for follower in job.followers))
    late = [one for one in job.followers[1:] if attempts.member(one, job).meeting is None] or [job.followers[0]]
    too_late = f"follower {late[0]} did not begin within {_MEET.total_seconds():g} s"
    return next(refusals, too_late if now - job.state_at > _MEET else "")


def _next_orders_of_gang(job: Job, attempts: Attempts, presence: Presence, lease: timedelta) -> tuple[list[Order], str]:
    """What goes wrong with one ends the attempt on all; it is over when none of them goes on."""
    going = attempts.going(job, presence.is_there)
    reason = attempts.trouble(job)[0] or (STOPPED if job.stop_asked else "")
    # Then its next report decides.
    has_first_ended = attempts.member(job.followers[0], job).has_ended and presence.is_there(job.followers[0])
    if reason and not going and not has_first_ended:
        return [], reason
    if reason or has_first_ended:
        return [attempts.stop(follower, job) for follower in going], ""
    if job.state is not JobState.PLACED:
        return [], ""
    # The others begin first; when all of them report where they wait, the first does.
    meetings = {one: attempts.member(one, job).meeting for one in job.followers[1:]}
    next_ones = [one for one, meeting in meetings.items() if meeting is None] or [job.followers[0]]
    orders = []
    for follower in next_ones:
        state = presence.here.get(follower)
        if state is not None:
            place = job.followers.index(follower)
            given = tuple(meeting for meeting in meetings.values() if meeting) if place == 0 else ()
            assignment = assignment_of(job, lease, place=place, address=state.address, meetings=given)
            orders.append(Order(follower, (job.id, job.attempt), assignment))
    return orders, ""
