"""Jobs and reports in the store's words: what is written when a follower tells something, and what it is told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from paceline.service.engines.base import Assignment, Item
from paceline.service.jobs import Event, Job, Renewed
from paceline.service.placing import gpus_among
from paceline.store.queue import EventRow, JobRow, LogRow, Writing


def row_of(job: Job) -> JobRow:
    """A job as the store keeps it."""
    document: dict[str, Any] = job.model_dump(mode="json")
    return JobRow(job.id, job.state.value, job.priority, job.submitted_at, job.submitted_by, job.version, document)


def save(writing: Writing, changed: Job, event: Event) -> None:
    """Keep a job after an event, and the event; who was merely heard of again leaves no trace in the history."""
    kind = event.model_dump(mode="json")
    kept = None if isinstance(event, Renewed) else EventRow(event.at, kind["kind"], kind)
    writing.save(row_of(changed), kept)


def keep_item(writing: Writing, job: Job, attempt: int, item: Item) -> None:
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
        writing.log(job.id, LogRow(attempt, item.number, item.at, item.text))


def assignment_of(job: Job, lease: timedelta) -> Assignment:
    """What the follower of a placed job is told."""
    assert job.run_id is not None
    return Assignment(
        job_id=job.id,
        attempt=job.attempt,
        run_id=job.run_id,
        suite=job.suite,
        overrides=job.overrides,
        tags=job.tags,
        devices=gpus_among(job.devices[0]),
        peers=job.followers[1:],
        lease_seconds=lease.total_seconds(),
    )
