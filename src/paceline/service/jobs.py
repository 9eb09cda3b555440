"""A job: the request that somebody submits, the job that it becomes, and the one function that changes its state.

                 placed            began             ended
    queued ----------------> placed ------> running --------> succeeded | failed
      ^  |                      |              |
      |  | cancelled            | lost         | lost, asked to stop
      |  v                      v              v
      | cancelled <-------- (queued again, or failed after the last attempt; cancelled if that was asked)
      +------------------------------------------+

Every change is an event. `change` is pure: it gives the job as it is after the event, or refuses the event. The leader
stores the changed job and its event first, and acts afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, StringConstraints, model_validator

from paceline.core.errors import PacelineError
from paceline.core.suite import Here

LEASE = timedelta(seconds=30)  # how long a follower may be silent before its job is given to another
MOST_ATTEMPTS = 3
STOPPED = "it was asked to stop"  # what a follower reports of an attempt that it did not end by itself
JOB_ID = r"^[A-Za-z0-9][A-Za-z0-9-]{0,39}$"

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_TAG = r"^[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,63}$"


def _checked_tag(value: Any) -> Any:
    """A pattern alone would be told as it is."""
    if isinstance(value, str) and not re.fullmatch(_TAG, value):
        raise ValueError(
            f"{value!r} is no tag of a job: write letters, digits and . _ : @ / + -, at most 64, "
            "and begin with a letter or a digit"
        )
    return value


Tag = Annotated[str, StringConstraints(pattern=_TAG), BeforeValidator(_checked_tag)]


class StrictModel(BaseModel):
    """Base of what is stored or sent: it does not change, and an unknown key is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class JobState(StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    PLACED = "placed"  # a follower was chosen; it has not reported yet that it began
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing more can happen to the job."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

    @property
    def is_active(self) -> bool:
        """Whether a follower has it."""
        return self in (JobState.PLACED, JobState.RUNNING)


class FailureKind(StrEnum):
    """Why a job failed, for programs; the message is for people."""

    CASES = "cases"  # it ran to its end, and some cases did not succeed
    TIMEOUT = "timeout"  # its cases, or the whole of it, took longer than they may
    MEMORY = "out-of-memory"  # that of a device or of the machine was too small for it
    REFUSED = "refused"  # the follower could not expand or start it
    LOST = "follower-lost"  # its followers died or were cut off, as often as it may be tried
    BROKEN = "gang-broken"  # what a follower says whose gang lost another one; a job's own failure is LOST
    UNPLACEABLE = "unplaceable"  # no machine that was ever seen can meet its needs, and the time to wait is over
    INTERNAL = "internal"


_REMEDIES = {
    FailureKind.CASES: "its report and `paceline logs` say why each of them failed",
    FailureKind.TIMEOUT: "give the suite's entries a longer `timeout`, as in `timeout: 2h`, or make them smaller",
    FailureKind.MEMORY: "use a smaller batch or model, or machines with more memory, as in `--machines memory=80`",
    FailureKind.REFUSED: "change the suite as the message says; the machine may have other plug-ins than the leader",
    FailureKind.LOST: "see to the machines that it ran on, and submit it again",
    FailureKind.BROKEN: "see to the machines that it ran on, and submit it again",
    FailureKind.UNPLACEABLE: "ask for less, or start a follower on a machine that has it",
    FailureKind.INTERNAL: "submit it again; if that does not help, report it with what the leader printed",
}


class JobFailure(StrictModel):
    """Why a job failed, in words a person can act on."""

    kind: FailureKind
    message: str
    remedy: str = ""  # what to do; by default that of its kind

    @model_validator(mode="before")
    @classmethod
    def _add_remedy(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and not given.get("remedy") and given.get("kind") in _REMEDIES:
            return {**given, "remedy": _REMEDIES[FailureKind(given["kind"])]}
        return given


class MachineNeeds(StrictModel):
    """What the machine of a job must have."""

    gpu: str = ""  # part of the model's name, as in h200; empty is any machine
    gpus: int = Field(default=0, ge=0, le=1024)  # per node
    memory_gib: int = Field(default=0, ge=0)  # of each GPU
    labels: tuple[str, ...] = ()
    nodes: int = Field(default=1, ge=1, le=4096)
    whole_node: bool = False
    follower: Annotated[str, StringConstraints(max_length=200)] = ""  # by its name, this one alone; empty is any

    @model_validator(mode="after")
    def _one_place(self) -> MachineNeeds:
        if self.follower and self.nodes > 1:
            raise ValueError(f"'nodes' = {self.nodes}: one follower alone is named, so leave it out")
        return self

    def here(self, kind: str | None = None) -> Here:
        """What a suite expands to on machines that just meet these needs, with devices of this kind."""
        gpus = self.gpus or (1 if self.gpu else 0)
        world = self.nodes * max(1, gpus) if self.nodes > 1 else 1
        return Here.with_devices(gpus, kind, world=world, nodes=self.nodes)


class JobRequest(StrictModel):
    """A job to run, as somebody submits it."""

    id: Annotated[str, StringConstraints(pattern=JOB_ID)] = Field(
        description="Made by the one who sends it: the same id again submits nothing new"
    )
    suite: dict[str, JsonValue] | Name = Field(description="The suite itself, or the name of one, or of a benchmark")
    overrides: dict[str, JsonValue] = Field(default={}, description="Parameters to change in every case that has them")
    needs: MachineNeeds = MachineNeeds()
    priority: int = Field(default=0, ge=-100, le=100, strict=True)
    tags: tuple[Tag, ...] = Field(default=(), max_length=16)
    only: tuple[Name, ...] = Field(
        default=(), max_length=64, description="Of the suite, the cases whose name has all words of one of these"
    )


class Job(StrictModel):
    """What was submitted, and how far it is; the store keeps it as it is here."""

    id: str  # made by the client, so that sending it twice submits it once
    name: str  # of the suite
    suite: dict[str, Any]  # the document, checked when it was submitted
    overrides: dict[str, Any] = Field(default_factory=dict)
    only: tuple[str, ...] = ()  # words that the names of its cases must have; none takes them all
    needs: MachineNeeds = MachineNeeds()
    priority: int = Field(default=0, ge=-100, le=100)
    tags: tuple[str, ...] = ()
    submitted_by: str = ""
    submitted_at: datetime
    state: JobState = JobState.QUEUED
    state_at: datetime  # since when
    attempt: int = 0  # how many followers it was given to, one after the other
    followers: tuple[str, ...] = ()  # who has it, the first one leads; empty unless placed or running
    devices: tuple[tuple[int, ...], ...] = ()  # which GPUs of each
    lease_until: datetime | None = None
    stop_asked: bool = False  # somebody cancelled it while a follower had it
    run_ids: tuple[str, ...] = ()  # of each attempt that began; the last one is the job's result
    failure: JobFailure | None = None
    version: int = 0  # how often it changed: two leaders cannot both change the same one

    @property
    def run_id(self) -> str | None:
        """The run that holds its result, or what there is of it."""
        return self.run_ids[-1] if self.run_ids else None


class _Event(StrictModel):
    """Base of what can happen to a job."""

    at: datetime


class Placed(_Event):
    """The scheduler chose followers; the run gets its id now, so that every record has a place to go."""

    kind: Literal["placed"] = "placed"
    followers: tuple[str, ...]
    devices: tuple[tuple[int, ...], ...] = ()
    run_id: str


class Began(_Event):
    """The follower has begun to measure."""

    kind: Literal["began"] = "began"


class Renewed(_Event):
    """The follower was heard of; this is the only event that is not kept in the history."""

    kind: Literal["renewed"] = "renewed"


class Ended(_Event):
    """The follower is through with it."""

    kind: Literal["ended"] = "ended"
    failure: JobFailure | None = None


class Lost(_Event):
    """The follower died, was cut off, or let its lease run out."""

    kind: Literal["lost"] = "lost"
    reason: str
    cause: FailureKind = FailureKind.LOST  # why the job fails if that was the last attempt


class Cancelled(_Event):
    """Somebody wants it to stop."""

    kind: Literal["cancelled"] = "cancelled"
    by: str = ""


class Refused(_Event):
    """It can never run."""

    kind: Literal["refused"] = "refused"
    failure: JobFailure


JobEvent = Annotated[Placed | Began | Renewed | Ended | Lost | Cancelled | Refused, Field(discriminator="kind")]


class IllegalChange(PacelineError):
    """An event that cannot happen to a job in its state: a late answer, a second leader, or a defect."""


def change(job: Job, event: JobEvent, *, most_attempts: int = MOST_ATTEMPTS, lease: timedelta = LEASE) -> Job:
    """The job after the event."""
    match event:
        case Placed() if job.state is JobState.QUEUED:
            run_ids, until = (*job.run_ids, event.run_id), event.at + lease
            given = {"followers": event.followers, "devices": event.devices}
            return _now(
                job, event, JobState.PLACED, attempt=job.attempt + 1, lease_until=until, run_ids=run_ids, **given
            )
        case Began() if job.state is JobState.PLACED:
            return _now(job, event, JobState.RUNNING, lease_until=event.at + lease)
        case Renewed() if job.state.is_active:
            return job.model_copy(update={"lease_until": event.at + lease, "version": job.version + 1})
        case Ended() | Lost() if job.state.is_active and job.stop_asked:
            return _at_rest(job, event, JobState.CANCELLED)
        case Ended() if job.state.is_active:
            state = JobState.FAILED if event.failure else JobState.SUCCEEDED
            return _at_rest(job, event, state, failure=event.failure)
        case Lost() if job.state.is_active and job.attempt < most_attempts:
            return _at_rest(job, event, JobState.QUEUED)
        case Lost() if job.state.is_active:
            message = f"{event.reason}; that was attempt {job.attempt} of {most_attempts}"
            return _at_rest(job, event, JobState.FAILED, failure=JobFailure(kind=event.cause, message=message))
        case Cancelled() if job.state is JobState.QUEUED:
            return _at_rest(job, event, JobState.CANCELLED)
        case Cancelled() if job.state.is_active:
            return job.model_copy(update={"stop_asked": True, "version": job.version + 1})
        case Refused() if job.state is JobState.QUEUED:
            return _at_rest(job, event, JobState.FAILED, failure=event.failure)
    raise IllegalChange(f"job '{job.id}' is {job.state}: it cannot be {event.kind} now")


def _now(job: Job, event: _Event, state: JobState, **more: Any) -> Job:
    return job.model_copy(update={"state": state, "state_at": event.at, "version": job.version + 1, **more})


def _at_rest(job: Job, event: _Event, state: JobState, **more: Any) -> Job:
    """No follower has it any more."""
    return _now(job, event, state, followers=(), devices=(), lease_until=None, **more)
