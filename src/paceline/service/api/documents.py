"""What is sent and what is answered, typed: the description of the API is made from these."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, JsonValue, StringConstraints

from paceline.core.run import RunRow
from paceline.service.admission import Quotas
from paceline.service.api.tokens import NAME
from paceline.service.credentials import TokenState
from paceline.service.engines.base import AttemptProgress
from paceline.service.jobs import JobFailure, JobState, MachineNeeds, Name, StrictModel
from paceline.store.queue import AuditRow, QuarantineRow

RUN_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
TOKEN_NAME = f"^{NAME.pattern}$"


class ValidateSent(StrictModel):
    """A suite as somebody types it."""

    suite: dict[str, JsonValue] | Name | None = None
    text: str | None = Field(default=None, max_length=50_000, description="The suite as YAML, instead")
    overrides: dict[str, JsonValue] = {}
    needs: MachineNeeds = MachineNeeds()


class TokenSent(StrictModel):
    """A token to make."""

    name: Annotated[str, StringConstraints(pattern=TOKEN_NAME)]
    scope: Literal["follower", "read", "submit", "admin"] = "submit"
    days: float | None = Field(default=90.0, gt=0, le=36_500, description="How long it holds; null is for ever")
    quotas: Quotas = Quotas()


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


class BenchmarkView(BaseModel):
    """A benchmark that a job can name."""

    name: str
    summary: str
    category: str
    primary: str
    metrics: list[dict[str, Any]]
    parameters: dict[str, Any] = Field(description="JSON schema")
    refused: list[str] = Field(description="Parameters that are not taken from the network")


class BenchmarksPage(BaseModel):
    """What a job can name."""

    benchmarks: list[BenchmarkView]


class SuiteView(BaseModel):
    """A suite that ships."""

    name: str
    description: str
    suite: dict[str, Any]


class SuitesPage(BaseModel):
    """Suites that a job can name."""

    suites: list[SuiteView]


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


class TokenView(BaseModel):
    """A token, without itself."""

    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    quotas: Quotas
    state: TokenState


class TokensPage(BaseModel):
    """All tokens."""

    tokens: list[TokenView]


class TokenMade(TokenView):
    """A new token, shown this once."""

    token: str


class AuditPage(BaseModel):
    """Who did what, the newest first."""

    entries: list[AuditRow]


class Health(BaseModel):
    """Whether the leader is alive, and takes jobs."""

    status: Literal["ok", "not-ready"]
    live: bool
    ready: bool = Field(description="Whether it takes jobs, and knows its followers")
