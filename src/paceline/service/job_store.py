"""Jobs in the store, and what followers report of them: it is stored before anything here acts on it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError

from paceline.core.errors import InputError, PacelineError
from paceline.core.text import clean
from paceline.service.engines.base import UNREADABLE, AttemptKey, Item
from paceline.service.jobs import FailureKind, Job, JobEvent, JobState, Lost, Renewed, change
from paceline.store import retention
from paceline.store.queue import Conflict, EventRow, LogRow, QuarantineRow, Writing
from paceline.store.reader import naming_damage
from paceline.store.store import Store, is_the_contents_fault, refusal

TRIES = 3  # that a report has before what cannot be stored of it is put aside
UNFINISHED = tuple(state for state in JobState if not state.is_final)
ACTIVE = tuple(state for state in JobState if state.is_active)
FINAL = tuple(state for state in JobState if state.is_final)

_log = logging.getLogger(__name__)
_Stored = TypeVar("_Stored")


class ReportRefused(PacelineError):
    """A report could not be stored because of what it says; it is tried again, and then without what is wrong."""


def list_jobs(
    store: Store,
    states: Sequence[JobState] = (),
    *,
    limit: int | None = None,
    before: tuple[datetime, str] | None = None,
) -> list[Job]:
    """Jobs in any of these states, the newest first; `before` is where an earlier page ended."""
    documents = store.queue.jobs([state.value for state in states], limit=limit, before=before)
    with naming_damage("read a job", store.location):
        return [Job.model_validate(document) for document in documents]


class JobStore:
    """The jobs that are not over, and how far the reports on their attempts are in the store."""

    def __init__(self, store: Store, now: Callable[[], datetime], lease: timedelta) -> None:
        self._store = store
        self._now = now
        self._lease = lease
        self.unfinished: dict[str, Job] = {}  # the first submitted first
        self._acknowledged: dict[AttemptKey, int] = {}
        self._refusals: dict[tuple[AttemptKey, str], int] = {}  # in a row, of a follower's reports on an attempt
        self.writes = 0
        self.write_seconds = 0.0

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Writing]:
        """A transaction whose time counts."""
        begun = time.perf_counter()
        with self._store.queue.writing(doing) as writing:
            yield writing
        self.writes += 1
        self.write_seconds += time.perf_counter() - begun

    def load(self) -> None:
        """Read the state from the store, and renew the leases of all that is under way."""
        jobs = {job.id: job for job in reversed(list_jobs(self._store, UNFINISHED))}
        with self._writing("take up the jobs") as writing:
            for job in jobs.values():
                if job.state.is_active:
                    event = Renewed(at=self._now())
                    jobs[job.id] = change(job, event, lease=self._lease)
                    _save(writing, jobs[job.id], event)
                    writing.reopen_run(job.run_ids[-1])
        self.unfinished, self._acknowledged = jobs, {}

    def find(self, job_id: str) -> Job:
        """A job as it is now, also one that is over."""
        if job_id in self.unfinished:
            return self.unfinished[job_id]
        document = self._store.queue.job(job_id)
        if document is None:
            raise InputError("unknown-job", f"there is no job '{job_id}': `paceline jobs` lists them", value=job_id)
        with naming_damage(f"read job '{job_id}'", self._store.location):
            return Job.model_validate(document)

    def active(self) -> list[Job]:
        """Those that a follower has."""
        return [job for job in self.unfinished.values() if job.state.is_active]

    def is_current(self, attempt: AttemptKey) -> bool:
        """Whether an attempt is the one that decides about its job."""
        job = self.unfinished.get(attempt[0])
        return job is not None and job.state.is_active and job.attempt == attempt[1]

    def followers_of(self, job: Job, attempt: int) -> tuple[str, ...]:
        """Who was given an attempt, the first one first; nobody if the history does not say."""
        if self.is_current((job.id, attempt)):
            return job.followers
        placed = [event.document for event in self._store.queue.events(job.id) if event.kind == "placed"]
        return tuple(placed[attempt - 1]["followers"]) if attempt <= len(placed) else ()

    def submit(self, job: Job) -> bool:
        """Store a new job; False if one of this id exists already."""
        event = EventRow(job.submitted_at, "submitted", {"by": job.submitted_by})
        with self._writing(f"take job '{job.id}'") as writing:
            is_new = writing.submit(job.model_dump(mode="json"), event)
        if is_new:
            self.unfinished[job.id] = job
        return is_new

    def change(self, job: Job, event: JobEvent) -> Job:
        """The job after the event; what a lost attempt has measured stays."""
        changed = change(job, event, lease=self._lease)
        with self._writing(f"change job '{job.id}'") as writing:
            if isinstance(event, Lost):
                writing.close_run(job.run_ids[-1], is_whole=False)
            _save(writing, changed, event)
        self._remember(changed)
        return changed

    def take_report(self, job: Job, attempt: int, follower: str, items: list[Item], events: Iterable[JobEvent]) -> Job:
        """The job after these events, stored in one transaction with the items: none counts twice, or for nothing."""
        known = list(events)

        def take(is_careful: bool) -> Job:
            return self._take(job, attempt, follower, items, known, is_careful)

        return self._refusing((job.id, attempt), follower, take)

    def _refusing(self, attempt: AttemptKey, follower: str, store: Callable[[bool], _Stored]) -> _Stored:
        """Store a report as a whole; one that was refused some times in a row without what is wrong with it."""
        try:
            stored = store(False)
        except Exception as error:
            if not is_the_contents_fault(error):
                raise
            refusals = self._refusals[attempt, follower] = self._refusals.get((attempt, follower), 0) + 1
            if refusals < TRIES:
                message = f"a report of follower {follower} on job '{attempt[0]}' cannot be stored: {refusal(error)}"
                raise ReportRefused(message) from error
            stored = store(True)
        self._refusals.pop((attempt, follower), None)
        return stored

    def _take(
        self, job: Job, attempt: int, follower: str, items: list[Item], events: list[JobEvent], is_careful: bool
    ) -> Job:
        run_id = job.run_ids[attempt - 1]
        is_current = self.is_current((job.id, attempt))
        last = items[-1] if items else None
        with self._writing(f"take a report on job '{job.id}'") as writing:
            parts = _Parts(writing, job, attempt, follower, self._now(), is_careful)
            for item in items:
                parts.store(item, partial(_store_item, writing, job, attempt, follower, item))
            if last is not None and not writing.acknowledge(job.id, attempt, last.number):
                raise Conflict(f"a report on job '{job.id}' was taken by somebody else: is there a second leader?")
            if last is not None and not is_current:
                # At once, as there may be no later report.
                parts.store(last, partial(writing.close_run, run_id, is_whole=False))
            elif last is not None and last.kind == "ended":
                kind = last.failure.kind if last.failure is not None else None
                is_whole = kind in (None, FailureKind.CASES)
                # Of these, each case may have had its own, or the whole was ended in the middle.
                if kind in (FailureKind.TIMEOUT, FailureKind.MEMORY):
                    is_whole = writing.is_measured(run_id)
                is_whole = is_whole and not parts.are_aside
                parts.store(last, partial(writing.close_run, run_id, is_whole=is_whole))
            for event in events:
                changed = parts.store(last, partial(_change, writing, job, event, self._lease))
                job = job if changed is None else changed
        if last is not None:
            self._acknowledged[job.id, attempt] = last.number
        if is_current:
            self._remember(job)
        return job

    def take_lines(self, job: Job, attempt: int, follower: str, items: Iterable[Item]) -> None:
        """Store the log of a gang's follower other than the first, which reports nothing else to store."""
        lines = [item for item in items if item.text]
        if lines:
            self._refusing((job.id, attempt), follower, partial(self._take_lines, job, attempt, follower, lines))

    def _take_lines(self, job: Job, attempt: int, follower: str, items: list[Item], is_careful: bool) -> None:
        with self._writing(f"keep lines of job '{job.id}'") as writing:
            parts = _Parts(writing, job, attempt, follower, self._now(), is_careful)
            for item in items:
                parts.store(item, partial(_store_item, writing, job, attempt, follower, item))

    def retry(self, quarantine_id: int) -> QuarantineRow:
        """Store what is in quarantine, now that the reason may be gone; InputError says why it stays there."""
        row, document = self._quarantined(quarantine_id)
        try:
            item = Item.model_validate(document)
            with self._writing(f"store item {quarantine_id} of the quarantine") as writing:
                _store_item(writing, self.find(row.job_id), row.attempt, row.follower, item)
                writing.release(quarantine_id)
        except Exception as error:
            if not is_the_contents_fault(error):
                raise
            message = f"item {quarantine_id} still cannot be stored: {_words(error)}; drop it if nobody needs it"
            raise InputError("still-refused", message, value=quarantine_id) from None
        return row

    def drop(self, quarantine_id: int) -> QuarantineRow:
        """Delete what is in quarantine."""
        row, _ = self._quarantined(quarantine_id)
        with self._writing(f"drop item {quarantine_id} of the quarantine") as writing:
            writing.release(quarantine_id)
        return row

    def _quarantined(self, quarantine_id: int) -> tuple[QuarantineRow, dict[str, Any]]:
        quarantined = self._store.queue.quarantined_item(quarantine_id)
        if quarantined is None:
            message = f"there is no item {quarantine_id} in quarantine: `paceline quarantine` lists them"
            raise InputError("unknown-item", message, value=quarantine_id)
        return quarantined

    def acknowledged(self, attempt: AttemptKey, *, with_store: bool = True) -> int:
        """Up to which number an attempt's items are in the store; without it, as far as that was looked up before."""
        if with_store and attempt not in self._acknowledged:
            self._acknowledged[attempt] = self._store.queue.acknowledged(*attempt)
        return self._acknowledged.get(attempt, 0)

    def forget_attempt(self, attempt: AttemptKey) -> None:
        """Nobody will report on this attempt again."""
        self._acknowledged.pop(attempt, None)
        self._refusals = {key: count for key, count in self._refusals.items() if key[0] != attempt}

    def _remember(self, job: Job) -> None:
        if job.state.is_final:
            self.unfinished.pop(job.id, None)
        else:
            self.unfinished[job.id] = job


@dataclass
class _Parts:
    """Stores the parts of a report; one that is taken with care is stored without those that cannot be."""

    writing: Writing
    job: Job
    attempt: int
    follower: str
    now: datetime
    is_careful: bool
    are_aside: bool = False

    def store(self, item: Item | None, store: Callable[[], _Stored]) -> _Stored | None:
        """Store what belongs to an item; None if it was put aside."""
        if not self.is_careful or item is None:
            return store()
        try:
            with self.writing.part():
                return store()
        except Exception as error:
            if not is_the_contents_fault(error):
                raise
            self._put_aside(item, _words(error))
            return None

    def _put_aside(self, item: Item, why: str) -> None:
        self.are_aside = True
        row = QuarantineRow(self.job.id, self.attempt, self.follower, item.number, item.kind, why, self.now)
        self.writing.quarantine(row, item.model_dump())
        _log.warning(
            "item %d (%s) of follower %s on job %s is put in quarantine: %s; `paceline quarantine` shows it",
            *(item.number, item.kind, self.follower, self.job.id, why),
        )


def _words(error: Exception) -> str:
    """Why something cannot be stored, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"'{'.'.join(map(str, first['loc']))}': {first['msg']}"
    return clean(refusal(error))


def _change(writing: Writing, job: Job, event: JobEvent, lease: timedelta) -> Job:
    changed = change(job, event, lease=lease)
    _save(writing, changed, event)
    return changed


def _save(writing: Writing, changed: Job, event: JobEvent) -> None:
    """Store a job after an event, and the event; a mere renewal leaves no trace in the history."""
    entry = None if isinstance(event, Renewed) else EventRow(event.at, event.kind, event.model_dump(mode="json"))
    writing.save(changed.model_dump(mode="json"), entry)


def _store_item(writing: Writing, job: Job, attempt: int, follower: str, item: Item) -> None:
    if item.kind == UNREADABLE:
        message = "the line that the follower had written of it is damaged"
        raise InputError("unreadable-item", message, value=item.number)
    run_id = job.run_ids[attempt - 1]
    named = item.run.id if item.run is not None else item.record.run_id if item.record is not None else run_id
    if named != run_id:
        raise InputError("another-run", f"it belongs to run '{named}', and the attempt's is '{run_id}'", value=named)
    if item.run is not None:
        writing.begin_run(item.run)
    if item.record is not None:
        writing.add_record(item.record)
    if item.samples is not None:
        part = item.samples
        writing.keep_samples(run_id, part.case_index, part.attempt, part.metric, part.unit, part.values)
    if item.text:
        writing.log(job.id, LogRow(attempt, item.number, item.at, item.text, follower))


_PAUSE = timedelta(hours=1)  # between two looks, when nothing is left to remove
_STATES = [state.value for state in FINAL]


@dataclass(frozen=True)
class Policy:
    """How long what is over stays; None is for ever."""

    jobs: timedelta | None = timedelta(days=90)
    logs: timedelta | None = timedelta(days=30)


class Pruning:
    """Removes a little at each look, so that nobody waits for it."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self._next: datetime | None = None
        self._has_pruned = False

    def look(self, now: datetime) -> None:
        """Remove some of what is due, and give the room back once nothing more is."""
        if self._next is not None and now < self._next:
            return
        pruned = 0
        if self._policy.logs is not None:
            pruned += retention.prune_logs(self._store, _STATES, now - self._policy.logs)
        if self._policy.jobs is not None:
            pruned += retention.prune_jobs(self._store, _STATES, now - self._policy.jobs)
        if pruned:
            self._has_pruned = True
            return
        if self._has_pruned:
            retention.shrink(self._store, whole=False)
        self._has_pruned, self._next = False, now + _PAUSE
