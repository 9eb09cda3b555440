"""Keeping jobs and what followers tell: the store has it before anybody here knows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from paceline.core.errors import InputError
from paceline.service.engines.base import Assignment, Attempt, Item, Meeting
from paceline.service.jobs import Event, FailureKind, Job, JobEvent, JobFailure, JobState, Lost, Renewed, change
from paceline.service.placing import gpus_among
from paceline.store.queue import Conflict, EventRow, JobRow, ToldLines, Writing
from paceline.store.store import Store


class KeptJobs:
    """The jobs that are not over, and how far their attempts were heard of."""

    def __init__(self, store: Store, now: Callable[[], datetime], lease: timedelta) -> None:
        self._store = store
        self._now = now
        self._lease = lease
        self.unfinished: dict[str, Job] = {}  # the first submitted first
        self._acknowledged: dict[Attempt, int] = {}

    def load(self) -> None:
        """Remember only what the store says, with everything that is under way as if it had just been heard of."""
        unfinished = [state.value for state in JobState if not state.is_final]
        jobs = [Job.model_validate(row.document) for row in self._store.queue.jobs(unfinished, limit=None)]
        with self._store.queue.writing("take up the jobs") as writing:
            for place, job in enumerate(jobs):
                if job.state.is_active:
                    event = Renewed(at=self._now())
                    jobs[place] = change(job, event, lease=self._lease)
                    _save(writing, jobs[place], event)
                    writing.reopen_run(job.run_ids[-1])
        self.unfinished = {job.id: job for job in reversed(jobs)}
        self._acknowledged = {}

    def find(self, job_id: str) -> Job:
        """A job as it is now, also one that is over."""
        known = self.unfinished.get(job_id)
        if known is not None:
            return known
        row = self._store.queue.job(job_id)
        if row is None:
            raise InputError(f"there is no job '{job_id}': `paceline jobs` lists them")
        return Job.model_validate(row.document)

    def active(self) -> list[Job]:
        """Those that a follower has."""
        return [job for job in self.unfinished.values() if job.state.is_active]

    def is_current(self, attempt: Attempt) -> bool:
        """Whether an attempt is the one that decides about its job."""
        job = self.unfinished.get(attempt[0])
        return job is not None and job.state.is_active and job.attempt == attempt[1]

    def submit(self, job: Job) -> bool:
        """Keep a new job; False if one of this id is there already."""
        event = EventRow(job.submitted_at, "submitted", {"by": job.submitted_by})
        with self._store.queue.writing(f"take job '{job.id}'") as writing:
            is_new = writing.submit(_row_of(job), event)
        if is_new:
            self.unfinished[job.id] = job
        return is_new

    def change(self, job: Job, event: JobEvent) -> Job:
        """The job after the event."""
        changed = change(job, event, lease=self._lease)
        with self._store.queue.writing(f"change job '{job.id}'") as writing:
            _save(writing, changed, event)
        self._remember(changed)
        return changed

    def lose(self, job: Job, reason: str, cause: FailureKind = FailureKind.LOST) -> Job:
        """The job after its attempt came to nothing; what that measured stays."""
        event = Lost(at=self._now(), reason=reason, cause=cause)
        changed = change(job, event)
        with self._store.queue.writing(f"change job '{job.id}'") as writing:
            writing.close_run(job.run_ids[-1], is_whole=False)
            _save(writing, changed, event)
        self._remember(changed)
        return changed

    def keep(self, job: Job, attempt: int, follower: str, items: list[Item], events: Iterable[JobEvent]) -> Job:
        """The job after these events, kept in one go with what was told: no item counts twice, or for nothing."""
        run_id = job.run_ids[attempt - 1]
        is_current = self.is_current((job.id, attempt))
        last = items[-1] if items else None
        with self._store.queue.writing(f"take a report on job '{job.id}'") as writing:
            for item in items:
                _keep_item(writing, job, attempt, follower, item)
            if last is not None and not writing.acknowledge(job.id, attempt, last.number):
                raise Conflict(f"a report on job '{job.id}' was taken by somebody else: is there a second leader?")
            if last is not None and not is_current:
                writing.close_run(run_id, is_whole=False)  # at once, as there may be no later word
            elif last is not None and last.kind == "ended":
                writing.close_run(run_id, is_whole=_is_whole(writing, run_id, last.failure))
            for event in events:
                job = change(job, event, lease=self._lease)
                _save(writing, job, event)
        if last is not None:
            self._acknowledged[job.id, attempt] = last.number
        if is_current:
            self._remember(job)
        return job

    def keep_lines(self, job: Job, attempt: int, follower: str, items: Iterable[Item]) -> None:
        """Keep what one of a gang beside the first writes; it tells nothing else that is kept."""
        lines = [item for item in items if item.text]
        if lines:
            with self._store.queue.writing(f"keep lines of job '{job.id}'") as writing:
                for item in lines:
                    _keep_item(writing, job, attempt, follower, item)

    def heard_of(self, attempt: Attempt) -> int:
        """Up to which number an attempt's items are in the store."""
        if attempt not in self._acknowledged:
            self._acknowledged[attempt] = self._store.queue.acknowledged(*attempt)
        return self._acknowledged[attempt]

    def known_of(self, attempt: Attempt) -> int:
        """The same, as far as it is known without the store."""
        return self._acknowledged.get(attempt, 0)

    def let_go(self, attempt: Attempt) -> None:
        """Nobody will tell of this attempt again."""
        self._acknowledged.pop(attempt, None)

    def _remember(self, job: Job) -> None:
        if job.state.is_final:
            self.unfinished.pop(job.id, None)
        else:
            self.unfinished[job.id] = job


def assignment_of(
    job: Job, lease: timedelta, *, place: int = 0, address: str = "", meetings: tuple[Meeting, ...] = ()
) -> Assignment:
    """What a follower of a placed job is told; of a gang, the one at this place."""
    assert job.run_id is not None
    return Assignment(
        job_id=job.id,
        attempt=job.attempt,
        run_id=job.run_id,
        suite=job.suite,
        overrides=job.overrides,
        only=job.only,
        tags=job.tags,
        devices=gpus_among(job.devices[place]),
        name=job.followers[place],
        peers=tuple(follower for at, follower in enumerate(job.followers) if at != place),
        place=place,
        address=address,
        meetings=meetings,
        lease_seconds=lease.total_seconds(),
    )


def _row_of(job: Job) -> JobRow:
    document: dict[str, Any] = job.model_dump(mode="json")
    return JobRow(job.id, job.state.value, job.priority, job.submitted_at, job.submitted_by, job.version, document)


def _save(writing: Writing, changed: Job, event: Event) -> None:
    """Keep a job after an event, and the event; who was merely heard of again leaves no trace in the history."""
    kind = event.model_dump(mode="json")
    kept = None if isinstance(event, Renewed) else EventRow(event.at, kind["kind"], kind)
    writing.save(_row_of(changed), kept)


def _is_whole(writing: Writing, run_id: str, failure: JobFailure | None) -> bool:
    """Whether a run that has ended has all of its cases, well or not."""
    if failure is None or failure.kind is FailureKind.CASES:
        return True
    # Of these, each case may have had its own, or the whole was ended in the middle.
    return failure.kind in (FailureKind.TIMEOUT, FailureKind.MEMORY) and writing.is_measured(run_id)


def _keep_item(writing: Writing, job: Job, attempt: int, follower: str, item: Item) -> None:
    """Keep one thing that a follower told of an attempt."""
    if item.run is not None:
        writing.begin_run(item.run)
    if item.record is not None:
        writing.add_record(item.record)
    if item.samples is not None:
        writing.keep_samples(
            job.run_ids[attempt - 1],
            item.samples.case_index,
            item.samples.attempt,
            item.samples.metric,
            item.samples.unit,
            item.samples.values,
        )
    if item.text:
        writing.log(job.id, ToldLines(attempt, item.number, item.at, item.text, follower))
