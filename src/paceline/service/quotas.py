"""What the jobs of one token may use of what all share, and the refusal of what goes beyond it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from pydantic import Field

from paceline.core.errors import InputError
from paceline.service.jobs import Job, JobState, StrictModel
from paceline.store.queue import TokenRow
from paceline.store.store import Store

PERIOD = timedelta(days=30)  # in which machine-hours count
OVER_QUOTA = "over-quota"


class Quotas(StrictModel):
    """What the jobs of a token may use; what is None has no limit."""

    max_queued: int | None = Field(default=None, ge=0, le=1_000_000, description="Jobs that wait")
    max_running: int | None = Field(default=None, ge=0, le=1_000_000, description="Jobs that run at once")
    max_priority: int | None = Field(default=None, ge=-100, le=100, description="Of each job")
    machine_hours: float | None = Field(
        default=None, ge=0, le=1e9, description="Hours that its jobs have had machines within 30 days"
    )


def most_running(tokens: Iterable[TokenRow]) -> dict[str, int]:
    """How many jobs of each owner may run at once, where that is limited."""
    limited = (row for row in tokens if "admin" not in row.scopes and row.revoked_at is None)
    return {row.name: int(row.quotas["max_running"]) for row in limited if "max_running" in row.quotas}


def check(job: Job, quotas: Quotas, store: Store) -> None:
    """Refuse a job that would go beyond what its owner may use."""
    refusals: list[tuple[str, object, str]] = []
    if quotas.max_priority is not None and job.priority > quotas.max_priority:
        reason = f"priority {job.priority} is above {quotas.max_priority}: submit it with less"
        refusals.append(("priority", job.priority, reason))
    if quotas.max_queued is not None:
        waiting = store.queue.counts(of=job.submitted_by).get(JobState.QUEUED, 0)
        if waiting >= quotas.max_queued:
            reason = f"{waiting} of at most {quotas.max_queued} jobs wait already: submit it once one has begun"
            refusals.append(("max_queued", waiting, reason))
    if quotas.machine_hours is not None:
        used = machine_hours(store, job.submitted_by)
        if used >= quotas.machine_hours:
            reason = f"{used:.1f} of {quotas.machine_hours:g} machine-hours within {PERIOD.days} days are used"
            refusals.append(("machine_hours", round(used, 2), reason))
    for key, value, reason in refusals:
        message = f"beyond the quota of '{job.submitted_by}': {reason}; who has an admin token may raise it"
        raise InputError(OVER_QUOTA, message, key=key, value=value)


def machine_hours(store: Store, owner: str, now: datetime | None = None) -> float:
    """Hours that the jobs of somebody have had machines, each machine counted, within the period."""
    now = now or datetime.now(UTC)
    since = now - PERIOD
    seconds = 0.0
    held: dict[str, tuple[datetime, int]] = {}  # by job: since when, and how many machines
    for job_id, event in store.queue.placements(owner, since):
        if event.kind == "placed":
            held[job_id] = (event.at, len(event.document.get("followers", ())) or 1)
        else:
            begun, machines = held.pop(job_id, (since, 1))  # one that was placed earlier than the period
            seconds += machines * (event.at - begun).total_seconds()
    seconds += sum(machines * (now - begun).total_seconds() for begun, machines in held.values())
    return max(0.0, seconds) / 3600  # a clock that was put back gives nobody more
