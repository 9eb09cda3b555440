"""Who tells of which attempt, who still measures one that was given up, and how the followers of a gang stand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from paceline.core.errors import InputError
from paceline.service.engines.base import Attempt, Item, Meeting, Report
from paceline.service.jobs import (
    STOPPED,
    Began,
    Ended,
    FailureKind,
    Job,
    JobEvent,
    JobFailure,
    JobState,
    Lost,
    Renewed,
)
from paceline.service.keeping import KeptJobs

Teller = tuple[str, Attempt]  # a follower and what it tells of

_AGAIN = (FailureKind.LOST, FailureKind.BROKEN)  # another attempt may do better
_RENEW_PART = 3  # a lease is renewed in the store when a third of it is over, not at every look
_LOOKS = 5  # within which the death of a process is told that happened before it was told to stop

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Standing:
    """What one follower of a gang told last."""

    place: int
    meeting: Meeting | None
    has_ended: bool
    failure: JobFailure | None


@dataclass(frozen=True)
class Trouble:
    """Why the attempt of a gang comes to nothing."""

    reason: str
    is_hearsay: bool  # what one of the gang says of another
    cause: FailureKind


class Attempts:
    """The attempts that followers have, whether they are wanted or not."""

    def __init__(self, jobs: KeptJobs, lease: timedelta) -> None:
        self._jobs = jobs
        self._lease = lease
        self._tellers: set[Teller] = set()  # who may have to tell of which attempt
        self._strays: set[Teller] = set()  # who measures an attempt that was given up
        self._members: dict[Teller, int] = {}  # those beside the first of a gang, and up to where they were heard
        self._standings: dict[Teller, Standing] = {}  # of gangs whose attempt is the current one
        self._trouble: dict[Attempt, Trouble] = {}  # what went wrong first
        self._asked: dict[Teller, int] = {}  # how often followers of such gangs were told to stop
        self.untaken: dict[Teller, str] = {}  # why those did not take an order who were given one last
        self._strangers: set[str] = set()  # jobs that followers tell of and this store does not know

    # What followers are asked and tell

    def expected(self, follower: str) -> dict[Attempt, int]:
        """What a follower may have to tell of, and up to where it was heard."""
        for job in self._jobs.active():
            if follower in job.followers:
                teller = (follower, (job.id, job.attempt))
                self._tellers.add(teller)
                if follower != job.followers[0]:
                    self._members.setdefault(teller, 0)
        return {attempt: self._heard_of(teller, attempt) for teller, attempt in self._tellers if teller == follower}

    def known(self, follower: str) -> dict[Attempt, int]:
        """The same, as far as it is known without the store."""
        mine = [attempt for teller, attempt in self._tellers if teller == follower]
        return {attempt: self._members.get((follower, attempt), self._jobs.known_of(attempt)) for attempt in mine}

    def hear(self, follower: str, report: Report) -> tuple[Job, list[Item]] | None:
        """The job that a report decides about, with what is new; late reports are kept, and decide nothing."""
        job = self._job_of(follower, report)
        if job is None:
            return None
        attempt = (report.job_id, report.attempt)
        teller = (follower, attempt)
        self._tellers.add(teller)
        last = next((item for item in report.items if item.kind == "ended"), None)
        if not self._jobs.is_current(attempt):
            self._hear_late(job, teller, report, last)
            return None
        if report.place > 0:
            self._hear_member(job, teller, report)
        if len(job.followers) > 1:
            self._note(job, teller, report, last)
        if report.place > 0:
            return None
        return job, [item for item in report.items if item.number > self._jobs.heard_of(attempt)]

    def events(self, job: Job, items: Iterable[Item], now: datetime) -> list[JobEvent]:
        """What happened to a job, seen from what its follower told just now."""
        events: list[JobEvent] = []
        if job.lease_until is None or job.lease_until - now < self._lease * (_RENEW_PART - 1) / _RENEW_PART:
            events.append(Renewed(at=now))
        for item in items:
            if item.kind == "began" and job.state is JobState.PLACED:
                events.append(Began(at=now))
            elif item.kind == "ended" and item.failure is not None and item.failure.kind in _AGAIN:
                reason = self.trouble(job) or item.failure.message
                events.append(Lost(at=now, reason=reason, cause=self.cause(job)))
            elif item.kind == "ended":
                events.append(Ended(at=now, failure=item.failure))
        return events

    def forget(self, follower: str, asked: Iterable[Attempt], reports: Iterable[Report]) -> None:
        """What is over and is no longer told of will never be told of again."""
        told = {(report.job_id, report.attempt) for report in reports}
        for attempt in set(asked) - told:
            if not self._jobs.is_current(attempt):
                self._let_go((follower, attempt))
            elif self._standings.pop((follower, attempt), None) is not None:
                self.blame(attempt, f"follower {follower} does not know of it any more")

    def tidy(self, present: Iterable[str]) -> None:
        """Forget what nobody can tell any more, and how gangs stood whose attempt is over."""
        there = set(present)
        for teller in [one for one in self._tellers if one[0] not in there]:
            if not self._jobs.is_current(teller[1]):
                self._let_go(teller)
        for teller in [one for one in self._standings if not self._jobs.is_current(one[1])]:
            del self._standings[teller]
        for teller in [one for one in self._asked if not self._jobs.is_current(one[1])]:
            del self._asked[teller]
        for attempt in [one for one in self._trouble if not self._jobs.is_current(one)]:
            del self._trouble[attempt]

    @property
    def strays(self) -> list[Teller]:
        """Who is to stop an attempt that was given up."""
        return sorted(self._strays)

    @property
    def busy(self) -> set[str]:
        """Followers that still measure what was given up, or is about to be."""
        going = (one for one, standing in self._standings.items() if one[1] in self._trouble and not standing.has_ended)
        return {follower for follower, _ in (*self._strays, *going)}

    # How gangs stand

    def going(self, job: Job, is_there: Callable[[str], bool]) -> list[str]:
        """Followers of a job that have begun it and not ended, as far as they can be heard at all."""
        attempt = (job.id, job.attempt)
        found = {one: self._standings.get((one, attempt)) for one in job.followers}
        return [one for one, standing in found.items() if standing and not standing.has_ended and is_there(one)]

    def has_ended(self, follower: str, job: Job) -> bool:
        """Whether a follower of a gang has told the end of its part."""
        standing = self._standings.get((follower, (job.id, job.attempt)))
        return standing is not None and standing.has_ended

    def meeting(self, follower: str, job: Job) -> Meeting | None:
        """Where a follower of a gang waits for the first."""
        standing = self._standings.get((follower, (job.id, job.attempt)))
        return standing.meeting if standing is not None else None

    def trouble(self, job: Job) -> str:
        """What went wrong first with a gang; empty if nothing did."""
        known = self._trouble.get((job.id, job.attempt))
        return known.reason if known is not None else ""

    def cause(self, job: Job) -> FailureKind:
        """The kind of what went wrong first with a gang."""
        known = self._trouble.get((job.id, job.attempt))
        return known.cause if known is not None else FailureKind.LOST

    def blame(self, attempt: Attempt, reason: str, cause: FailureKind = FailureKind.LOST) -> None:
        """Something went wrong with a gang; what one says of another is worth less than its own word."""
        is_hearsay = cause is FailureKind.BROKEN
        known = self._trouble.get(attempt)
        if known is None or (known.is_hearsay and not is_hearsay):
            self._trouble[attempt] = Trouble(reason, is_hearsay, FailureKind.LOST if is_hearsay else cause)

    def told_to_stop(self, follower: str, job: Job) -> None:
        """A follower of a gang is told to stop, perhaps again."""
        teller = (follower, (job.id, job.attempt))
        self._asked[teller] = self._asked.get(teller, 0) + 1

    def _note(self, job: Job, teller: Teller, report: Report, last: Item | None) -> None:
        failure = last.failure if last is not None else None
        self._standings[teller] = Standing(report.place, report.meeting, last is not None, failure)
        is_own_end = self._asked.get(teller, 0) <= _LOOKS  # and not that of one that did not stop when it was told to
        if failure is not None and failure.message != STOPPED and is_own_end:
            self.blame(teller[1], f"follower {teller[0]}: {failure.message}", failure.kind)

    def _hear_late(self, job: Job, teller: Teller, report: Report, last: Item | None) -> None:
        attempt = teller[1]
        if report.place > 0:
            self._hear_member(job, teller, report)
            if last is not None:
                self._members[teller] = last.number
        else:
            items = [item for item in report.items if item.number > self._jobs.heard_of(attempt)]
            self._jobs.keep(job, report.attempt, teller[0], items, [])
        if last is not None:
            self._strays.discard(teller)
        else:
            self._strays.add(teller)

    def _hear_member(self, job: Job, teller: Teller, report: Report) -> None:
        """Keep the lines of one beside the first; its end is told again and again while the attempt is under way."""
        heard, standing = self._members.get(teller, 0), self._standings.get(teller)
        new = [item for item in report.items if item.number > heard]
        if standing is None or not standing.has_ended:
            self._jobs.keep_lines(job, report.attempt, teller[0], new)
        self._members[teller] = max([heard, *(item.number for item in new if item.kind != "ended")])

    def _heard_of(self, follower: str, attempt: Attempt) -> int:
        heard = self._members.get((follower, attempt))
        return self._jobs.heard_of(attempt) if heard is None else heard

    def _let_go(self, teller: Teller) -> None:
        self._tellers.discard(teller)
        self._strays.discard(teller)
        if self._members.pop(teller, None) is None:
            self._jobs.let_go(teller[1])

    def _job_of(self, follower: str, report: Report) -> Job | None:
        try:
            job = self._jobs.find(report.job_id)
            if 1 <= report.attempt <= len(job.run_ids):
                return job
        except InputError:
            pass
        if report.job_id not in self._strangers:  # nothing is acknowledged: it may be another store's
            self._strangers.add(report.job_id)
            _log.warning("follower %s tells of job %s, which this store does not know", follower, report.job_id)
        return None
