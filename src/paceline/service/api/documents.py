"""What is sent and what is answered, typed: the description of the API is made from these."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field, JsonValue

from paceline.core.run import RunRow
from paceline.service.engines.base import AttemptProgress
from paceline.service.jobs import JobFailure, JobState, MachineNeeds, Name, StrictModel
from paceline.store.queue import AuditRow, QuarantineRow

RUN_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


class ValidateSent(StrictModel):
    """A suite as somebody types it."""

    suite: dict[str, JsonValue] | Name | None = None
    text: str | None = Field(default=None, max_length=50_000, description="The suite as YAML, instead")
    overrides: dict[str, JsonValue] = {}
    needs: MachineNeeds = MachineNeeds()


class JobSummary(BaseModel):
    """A job in a list."""

    id: str
    name: str
    state: JobState
    state_at: datetime
    submitted_at: datetime
    submitted_by: str
    priority: int
    tags: tuple[str, ...]
    attempt: int
    followers: tuple[str, ...]
    needs: MachineNeeds
    run_id: str | None
    stop_asked: bool
    failure: JobFailure | None
    progress: AttemptProgress
    expected_end: datetime | None
    waits_for: str = Field(description="Why the machines that are here cannot run it; empty if it waits for its turn")


class HistoryEntry(BaseModel):
    """One thing that happened to a job."""

    at: datetime
    kind: str
    details: dict[str, Any]


class JobView(JobSummary):
    """A job with all that is known of it."""

    suite: dict[str, Any]
    overrides: dict[str, Any]
    only: tuple[str, ...]
    devices: tuple[tuple[int, ...], ...]
    run_ids: tuple[str, ...]
    history: list[HistoryEntry]


class JobsPage(BaseModel):
    """Jobs, the newest first."""

    jobs: list[JobSummary]
    next: str | None = Field(description="Give it as `cursor` for the page after this one; null at the end")
    counts: dict[str, int] = Field(description="How many jobs are in each state")
    quarantined: int = Field(description="How many items that followers reported could not be stored")
    refused: dict[str, str] = Field(description="Followers that are refused, each with the reason")


class QuarantinePage(BaseModel):
    """Items of reports that could not be stored, the newest first."""

    entries: list[QuarantineRow]


class QuarantineView(BaseModel):
    """One of them, as its follower reported it."""

    entry: QuarantineRow
    item: dict[str, Any]


class LogLine(BaseModel):
    """What an attempt wrote."""

    attempt: int
    number: int
    at: datetime
    text: str
    follower: str = Field(description="The machine that wrote it; empty for lines of earlier versions")


class LogPage(BaseModel):
    """Lines in order."""

    lines: list[LogLine]
    next: str = Field(description="Give it as `after` for what follows")
    is_over: bool = Field(description="Whether the job has ended, and this is all of its log")


class RunsPage(BaseModel):
    """Runs, the newest first."""

    runs: list[RunRow]


class RunView(BaseModel):
    """A run with its records; samples only where they were asked for."""

    run: dict[str, Any]
    records: list[dict[str, Any]]


class Busy(BaseModel):
    """What a follower is doing."""

    job: str
    name: str
    state: JobState
    since: datetime
    devices: tuple[int, ...]
    expected_end: datetime | None


class FollowerView(BaseModel):
    """A machine that measures."""

    id: str
    host: str
    gpus: tuple[str, ...]
    gpu_memory_gib: tuple[int, ...]
    cpus: float
    memory_gib: float
    labels: tuple[str, ...]
    seen_at: datetime
    draining: bool
    refused: str = Field(description="Why it is given no work; empty if it may be")
    present: bool
    jobs: list[Busy]


class FollowersPage(BaseModel):
    """All machines that were ever seen, those that are here first."""

    followers: list[FollowerView]


class ProblemView(BaseModel):
    """One thing that is wrong with a suite."""

    code: str = Field(description="What is wrong, for programs: words joined by hyphens")
    message: str
    case: int | None = Field(description="Which entry, from 1; null for the suite as a whole")
    key: str | None
    suggestion: str | None = Field(description="The nearest known key or name")


class SuiteValidation(BaseModel):
    """Whether a suite would be taken."""

    ok: bool
    problems: list[ProblemView]
    cases: int
    titles: list[str] = Field(description="Of the first cases")


class AuditPage(BaseModel):
    """Who did what, the newest first."""

    entries: list[AuditRow]


class Health(BaseModel):
    """Whether the leader is alive, and takes jobs."""

    status: Literal["ok", "not-ready"]
    live: bool
    ready: bool = Field(description="Whether it takes jobs, and knows its followers")
