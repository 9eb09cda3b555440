"""Routes of jobs: submit, list, look at, stop, read the log."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from paceline.core.errors import InputError
from paceline.service.api import documents as d
from paceline.service.api import submissions
from paceline.service.api.errors import Refused, declared, unavailable
from paceline.service.api.served import Served, caller_name, note_subject
from paceline.service.jobs import Job, JobState

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Id = Annotated[str, Path(pattern=d.JOB_ID)]
Cursor = Annotated[str | None, Query(pattern=r"^[0-9]{1,17}_[A-Za-z0-9][A-Za-z0-9-]{0,39}$")]
After = Annotated[str, Query(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$")]
Limit = Annotated[int, Query(ge=1, le=500)]
States = Annotated[list[JobState] | None, Query()]


def router(served: Served) -> APIRouter:
    """The routes."""
    made = APIRouter(tags=["jobs"])
    leader, queue = served.leader, served.store.queue

    @made.post("/jobs", status_code=201, responses={200: {"model": d.JobView}, **declared(409)})
    def submit(sent: d.JobSent, request: Request, response: Response) -> d.JobView:
        """Submit a job. The same id again gives the job that is there, with 200."""
        note_subject(request, sent.id)
        if leader.trouble:
            raise unavailable(leader.trouble)
        job = submissions.new_job(
            sent.id,
            sent.suite,
            sent.overrides,
            sent.needs,
            wanted=sent.only,
            priority=sent.priority,
            tags=sent.tags,
            by=caller_name(request),
        )
        try:
            job, is_new = leader.submit(job)
        except InputError as error:
            raise Refused(409, "conflict", str(error)) from None
        response.status_code = 201 if is_new else 200
        return view(job)

    @made.get("/jobs")
    def list_jobs(state: States = None, cursor: Cursor = None, limit: Limit = 100) -> d.JobsPage:
        """Jobs, the newest first."""
        rows = queue.jobs([one.value for one in state or ()], limit=limit + 1, before=_read_cursor(cursor))
        jobs = [Job.model_validate(row.document) for row in rows[:limit]]
        following = _cursor(jobs[-1]) if len(rows) > limit else None
        return d.JobsPage(jobs=[summary(job) for job in jobs], next=following, counts=queue.counts())

    @made.get("/jobs/{job_id}", responses=declared(404))
    def show_job(job_id: Id) -> d.JobView:
        """One job, with its history."""
        return view(served.job(job_id))

    @made.post("/jobs/{job_id}/cancel", responses=declared(404))
    def cancel(job_id: Id, request: Request) -> d.JobView:
        """Stop a job, whether it waits or runs; one that is over stays as it is."""
        note_subject(request, job_id)
        served.job(job_id)
        return view(leader.cancel(job_id, caller_name(request)))

    @made.get("/jobs/{job_id}/logs", responses=declared(404))
    def logs(job_id: Id, after: After = "0.0", limit: Limit = 500) -> d.LogPage:
        """Lines of its log, after those that were read already."""
        job = served.job(job_id)
        attempt, number = (int(part) for part in after.split("."))
        rows = queue.logs(job_id, (attempt, number), limit)
        lines = [d.LogLine.model_validate(asdict(row)) for row in rows]
        following = f"{lines[-1].attempt}.{lines[-1].number}" if lines else after
        return d.LogPage(lines=lines, next=following, is_over=job.state.is_final and len(lines) < limit)

    def summary(job: Job) -> d.JobSummary:
        return d.JobSummary.model_validate(d.summary_of(job, *served.live(job)))

    def view(job: Job) -> d.JobView:
        history = [d.HistoryEntry(at=row.at, kind=row.kind, details=row.document) for row in queue.events(job.id)]
        more = {"suite", "overrides", "only", "needs", "devices", "run_ids"}
        known = d.summary_of(job, *served.live(job)) | {name: getattr(job, name) for name in more}
        return d.JobView.model_validate(known | {"history": history})

    return made


def _cursor(job: Job) -> str:
    return f"{(job.submitted_at - _EPOCH) // _MICROSECOND}_{job.id}"


def _read_cursor(cursor: str | None) -> tuple[datetime, str] | None:
    if cursor is None:
        return None
    at, _, job_id = cursor.partition("_")
    try:
        return _EPOCH + int(at) * _MICROSECOND, job_id
    except OverflowError:
        raise InputError(f"cursor = {cursor} is none that an earlier page has given") from None
