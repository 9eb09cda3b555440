"""Jobs in the store, and what followers report of them: it is stored before anything here acts on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from paceline.core.errors import InputError
from paceline.service.engines.base import AttemptKey, Item
from paceline.service.jobs import FailureKind, Job, JobEvent, JobState, Lost, Renewed, change
from paceline.store.queue import Conflict, EventRow, LogRow, Writing
from paceline.store.store import Store

UNFINISHED = tuple(state for state in JobState if not state.is_final)
ACTIVE = tuple(state for state in JobState if state.is_active)
FINAL = tuple(state for state in JobState if state.is_final)


def list_jobs(
    store: Store,
    states: Sequence[JobState] = (),
    *,
    limit: int | None = None,
    before: tuple[datetime, str] | None = None,
) -> list[Job]:
    """Jobs in any of these states, the newest first; `before` is where an earlier page ended."""
    documents = store.queue.jobs([state.value for state in states], limit=limit, before=before)
    return [Job.model_validate(document) for document in documents]


class JobStore:
    """The jobs that are not over, and how far the reports on their attempts are in the store."""

    def __init__(self, store: Store, now: Callable[[], datetime], lease: timedelta) -> None:
        self._store = store
        self._now = now
        self._lease = lease
        self.unfinished: dict[str, Job] = {}  # the first submitted first
        self._acknowledged: dict[AttemptKey, int] = {}

    def load(self) -> None:
        """Read the state from the store, and renew the leases of all that is under way."""
        jobs = {job.id: job for job in reversed(list_jobs(self._store, UNFINISHED))}
        with self._store.queue.writing("take up the jobs") as writing:
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
        return Job.model_validate(document)

    def active(self) -> list[Job]:
        """Those that a follower has."""
        return [job for job in self.unfinished.values() if job.state.is_active]

    def is_current(self, attempt: AttemptKey) -> bool:
        """Whether an attempt is the one that decides about its job."""
        job = self.unfinished.get(attempt[0])
        return job is not None and job.state.is_active and job.attempt == attempt[1]

    def submit(self, job: Job) -> bool:
        """Store a new job; False if one of this id exists already."""
        event = EventRow(job.submitted_at, "submitted", {"by": job.submitted_by})
        with self._store.queue.writing(f"take job '{job.id}'") as writing:
            is_new = writing.submit(job.model_dump(mode="json"), event)
        if is_new:
            self.unfinished[job.id] = job
        return is_new

    def change(self, job: Job, event: JobEvent) -> Job:
        """The job after the event; what a lost attempt has measured stays."""
        changed = change(job, event, lease=self._lease)
        with self._store.queue.writing(f"change job '{job.id}'") as writing:
            if isinstance(event, Lost):
                writing.close_run(job.run_ids[-1], is_whole=False)
            _save(writing, changed, event)
        self._remember(changed)
        return changed

    def take_report(self, job: Job, attempt: int, follower: str, items: list[Item], events: Iterable[JobEvent]) -> Job:
        """The job after these events, stored in one transaction with the items: none counts twice, or for nothing."""
        run_id = job.run_ids[attempt - 1]
        is_current = self.is_current((job.id, attempt))
        last = items[-1] if items else None
        with self._store.queue.writing(f"take a report on job '{job.id}'") as writing:
            for item in items:
                _store_item(writing, job, attempt, follower, item)
            if last is not None and not writing.acknowledge(job.id, attempt, last.number):
                raise Conflict(f"a report on job '{job.id}' was taken by somebody else: is there a second leader?")
            if last is not None and not is_current:
                writing.close_run(run_id, is_whole=False)  # at once, as there may be no later report
            elif last is not None and last.kind == "ended":
                kind = last.failure.kind if last.failure is not None else None
                is_whole = kind in (None, FailureKind.CASES)
                # Of these, each case may have had its own, or the whole was ended in the middle.
                if kind in (FailureKind.TIMEOUT, FailureKind.MEMORY):
                    is_whole = writing.is_measured(run_id)
                writing.close_run(run_id, is_whole=is_whole)
            for event in events:
                job = change(job, event, lease=self._lease)
                _save(writing, job, event)
        if last is not None:
            self._acknowledged[job.id, attempt] = last.number
        if is_current:
            self._remember(job)
        return job

    def take_lines(self, job: Job, attempt: int, follower: str, items: Iterable[Item]) -> None:
        """Store the log of a gang's follower other than the first, which reports nothing else to store."""
        lines = [item for item in items if item.text]
        if lines:
            with self._store.queue.writing(f"keep lines of job '{job.id}'") as writing:
                for item in lines:
                    _store_item(writing, job, attempt, follower, item)

    def acknowledged(self, attempt: AttemptKey, *, with_store: bool = True) -> int:
        """Up to which number an attempt's items are in the store; without it, as far as that was looked up before."""
        if with_store and attempt not in self._acknowledged:
            self._acknowledged[attempt] = self._store.queue.acknowledged(*attempt)
        return self._acknowledged.get(attempt, 0)

    def forget_attempt(self, attempt: AttemptKey) -> None:
        """Nobody will report on this attempt again."""
        self._acknowledged.pop(attempt, None)

    def _remember(self, job: Job) -> None:
        if job.state.is_final:
            self.unfinished.pop(job.id, None)
        else:
            self.unfinished[job.id] = job


def _save(writing: Writing, changed: Job, event: JobEvent) -> None:
    """Store a job after an event, and the event; a mere renewal leaves no trace in the history."""
    entry = None if isinstance(event, Renewed) else EventRow(event.at, event.kind, event.model_dump(mode="json"))
    writing.save(changed.model_dump(mode="json"), entry)


def _store_item(writing: Writing, job: Job, attempt: int, follower: str, item: Item) -> None:
    if item.run is not None:
        writing.begin_run(item.run)
    if item.record is not None:
        writing.add_record(item.record)
    if item.samples is not None:
        part = item.samples
        run_id = job.run_ids[attempt - 1]
        writing.keep_samples(run_id, part.case_index, part.attempt, part.metric, part.unit, part.values)
    if item.text:
        writing.log(job.id, LogRow(attempt, item.number, item.at, item.text, follower))
