"""What the routes work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fastapi import Request

from paceline.core.run import RunRecords
from paceline.service.api.errors import not_found
from paceline.service.api.tokens import Tokens
from paceline.service.engines.base import Progress
from paceline.service.jobs import Job
from paceline.service.leader import Leader
from paceline.store.store import Store


@dataclass(frozen=True)
class Served:
    """A leader, its store, and how a run becomes a page."""

    leader: Leader
    store: Store
    tokens: Tokens
    report: Callable[[RunRecords], str]

    def job(self, job_id: str) -> Job:
        """A job by its id; the answer says so if there is none."""
        if self.store.queue.job(job_id) is None:
            raise not_found("job", job_id)
        return self.leader.job(job_id)

    def live(self, job: Job) -> tuple[Progress, datetime | None, str]:
        """What a job is doing, when it is expected to end, and why no machine that is here can run it."""
        if not job.state.is_active:
            return Progress(), None, self.leader.why_it_waits(job.id)
        return self.leader.progress(job.id), self.leader.expected_end(job.id), ""


def caller_name(request: Request) -> str:
    """Who asks, as the history and the audit log name them."""
    caller = request.state.caller
    return caller.name if caller is not None else ""


def note_subject(request: Request, subject: str) -> None:
    """What a request is about, for the audit log."""
    request.state.subject = subject
