"""The contract between the leader and those who measure: assignments go out, reports come in until acknowledged.

The leader is the only one who writes to the store. A follower keeps what it measured in a spool of its own until the
leader says that the store has it, so that neither a lost answer nor a leader that died loses a record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

from pydantic import Field

from paceline.core.record import Record
from paceline.core.run import Run
from paceline.service.jobs import JobFailure, StrictModel

AttemptKey = tuple[str, int]  # job, number of the attempt
UNREADABLE = "unreadable"  # the kind of an item whose line is damaged


class FollowerState(StrictModel):
    """What a follower is and has, as the scheduler and people see it."""

    id: str
    host: str
    gpus: tuple[str, ...] = ()  # names, in the order of their indices
    gpu_memory_gib: tuple[int, ...] = ()
    cpus: float = 1.0
    memory_gib: float = 0.0
    labels: tuple[str, ...] = ()
    machine: dict[str, Any] = Field(default_factory=dict)  # the environment of a record
    address: str = ""  # where the others of a gang reach it; without one it is in no gang
    seen_at: datetime
    draining: bool = False  # finishes what it has and takes nothing new
    refused: str = ""  # why it is not believed; it is given nothing, and nothing is taken from it


class Meeting(StrictModel):
    """Where a follower of a gang waits for the first one, and the word by which it knows it."""

    address: str
    port: int
    secret: str


class Assignment(StrictModel):
    """One attempt at a job, for one follower.

    The followers of a gang are alike. All but the first begin, and say where they wait; the first begins when all of
    them do, has every case of several ranks measured by all, and reports the results. The others report only their
    log, and their end.
    """

    job_id: str
    attempt: int
    run_id: str
    suite: dict[str, Any]
    overrides: dict[str, Any] = Field(default_factory=dict)
    only: tuple[str, ...] = ()  # words that the names of its cases must have
    tags: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()  # GPUs it may use; empty is none
    name: str = ""  # of this follower
    peers: tuple[str, ...] = ()  # the other followers of a gang
    place: int = 0  # among the followers of a gang; 0 is the first
    address: str = ""  # this follower's own, where its peers reach it
    meetings: tuple[Meeting, ...] = ()  # for the first of a gang: where its peers wait, in their order
    lease_seconds: float = 30.0  # unheard for so long, the follower gives up

    @property
    def folder_name(self) -> str:
        """Of the folder that the attempt has on its follower."""
        return f"{re.sub(r'[^A-Za-z0-9-]', '_', self.job_id)}.{self.attempt}"


class CaseSamples(StrictModel):
    """What was measured of a case that has not ended yet."""

    case_index: int
    attempt: int  # at the case
    metric: str
    unit: str
    values: tuple[float, ...]


class Item(StrictModel):
    """One thing that a follower reports; numbered from 1 within an attempt, and reported until acknowledged."""

    number: int = Field(ge=1, lt=2**31)
    at: datetime
    kind: Literal["began", "samples", "record", "log", "ended", "unreadable"]
    run: Run | None = None  # of `began`: where it is measured, and what the suite expanded to there
    samples: CaseSamples | None = None  # of a case in flight, which may never become a record
    record: Record | None = None
    # Of `log`, and of `ended` if somebody else had to report it: lines for people. Of `unreadable`: what is left of it.
    text: str = ""
    failure: JobFailure | None = None  # of `ended`; FailureKind.LOST means that another attempt may do better


class LiveFigure(StrictModel):
    """What a case in flight shows right now."""

    value: float
    unit: str = ""


class AttemptProgress(StrictModel):
    """What is going on right now; only for looking at, never kept."""

    case_index: int | None = None
    title: str = ""
    case_started_at: datetime | None = None
    phase: str = ""  # of the case: warming up, measuring, ...
    figures: dict[str, LiveFigure] = Field(default_factory=dict)  # by name: rate, p50, p99, failures, step_time, ...
    cases_done: int = 0
    cases: int = 0


class AttemptReport(StrictModel):
    """All that a follower has not been acknowledged for yet, of one attempt."""

    job_id: str
    attempt: int
    items: tuple[Item, ...] = ()
    progress: AttemptProgress = AttemptProgress()
    place: int = 0  # of the assignment
    meeting: Meeting | None = None  # where the first of the gang is waited for


class FollowerGone(Exception):
    """The follower did not answer; the message says what is known."""


class Engine(Protocol):
    """One way of having followers. Calls never block for longer than a second or two, whatever a follower does."""

    invitation: str  # the command that makes another machine a follower; empty where none can be

    def followers(self) -> Sequence[FollowerState]:
        """Who is there now; one that has gone is missing, a new one is new."""

    def begin(self, follower: str, assignment: Assignment) -> None:
        """Hand over an attempt. The same attempt again changes nothing. FollowerGone if nobody takes it."""

    def poll(self, follower: str, acknowledged: dict[AttemptKey, int]) -> Sequence[AttemptReport]:
        """Renew the leases of the attempts named here, whose items up to these numbers are in the store.

        Gives what else there is to report, also of attempts that are not named: those are forgotten by the leader or
        were begun before it restarted. An attempt that ended and is acknowledged to its end is dropped there.
        """

    def cancel(self, follower: str, job_id: str, attempt: int) -> None:
        """Stop an attempt; a later report has its end."""

    def close(self) -> None:
        """Let go of the followers; what they measured stays in their spools."""
