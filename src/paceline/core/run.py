"""A run: one execution of a suite, with the environment it was taken in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.record import Outcome, Record

RunStatus = Literal["running", "finished", "interrupted"]


class Run(BaseModel):
    """One execution of a suite."""

    model_config = ConfigDict(extra="forbid")

    id: str
    name: str  # of the suite
    status: RunStatus = "running"
    started_at: datetime
    ended_at: datetime | None = None
    version: str  # of Paceline
    session: str = ""  # runs of one machine in a row share it; empty until the run is stored
    command: list[str] = Field(default_factory=list)
    tags: list[str] = Field(default_factory=list)  # names that people gave it; several runs may share one
    environment: Environment = Environment()
    cases: list[Case] = Field(default_factory=list)

    @field_validator("environment", mode="before")
    @classmethod
    def _of_any_version(cls, value: object) -> object:
        return Environment.read(value) if isinstance(value, Mapping) else value


class RunRecords(BaseModel):
    """A run with the last attempt at each of its cases: what analysis and reports take."""

    run: Run
    records: list[Record]

    def with_latest(self, records: Iterable[Record]) -> RunRecords:
        """The same with these attempts, each in place of an earlier one at its case."""
        latest = {record.case.index: record for record in (*self.records, *records)}
        return self.model_copy(update={"records": [latest[index] for index in sorted(latest)]})

    @property
    def missing(self) -> list[Case]:
        """Cases that have no final record yet."""
        done = {record.case.index for record in self.records if record.is_final}
        return [case for case in self.run.cases if case.index not in done]

    @property
    def all_ok(self) -> bool:
        """Whether every case is done and none failed; a run that could measure nothing at all is not a success."""
        measured = any(record.outcome is Outcome.OK for record in self.records)
        return not self.missing and measured and all(record.is_success for record in self.records)


class RunRow(BaseModel):
    """A run as a list shows it; the counts are of the last attempt at each case."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    status: RunStatus  # interrupted also when the runner's process is gone
    started_at: datetime
    ended_at: datetime | None
    cases: int
    ok: int
    not_ok: int
    tags: tuple[str, ...] = ()
    pinned: bool = False
    note: str = ""

    @property
    def missing(self) -> int:
        """Cases without a record."""
        return self.cases - self.ok - self.not_ok


GAP = timedelta(hours=1)  # between the end of one run and the start of the next


def machine_key(environment: Environment) -> str:
    """The same for all runs of one machine; empty where that is unknown."""
    # A GPU is one of a kind wherever it is; a container's name is a new one each time.
    gpus = sorted(gpu.uuid for gpu in environment.gpus if gpu.uuid)
    return " ".join(gpus) if gpus else "; ".join(filter(None, (environment.host, environment.cpu.model)))


def continues(earlier: Run, later: Run) -> bool:
    """Whether the later run belongs to the session of the earlier one."""
    gap = later.started_at - (earlier.ended_at or earlier.started_at)
    if gap >= GAP or earlier.started_at > later.started_at:
        return False
    machine = machine_key(later.environment)
    before, after = _settings(earlier.environment), _settings(later.environment)
    is_same = all(one == other or None in (one, other) for one, other in zip(before, after, strict=True))
    return bool(machine) and machine == machine_key(earlier.environment) and is_same


def session_of(run: Run, earlier: Iterable[Run]) -> str:
    """The session of a run, which is named after its first one; `earlier` ones come the newest first."""
    return next((one.session or one.id for one in earlier if continues(one, run)), run.id)


def sessions_of(runs: Iterable[Run]) -> dict[str, str]:
    """The session of each run by its id; runs that were stored without one get theirs from the others."""
    assigned: list[Run] = []
    for run in sorted(runs, key=lambda run: run.started_at):
        session = run.session or session_of(run, reversed(assigned))
        assigned.append(run if run.session else run.model_copy(update={"session": session}))
    return {run.id: run.session for run in assigned}


def _settings(of: Environment) -> tuple[object, ...]:
    """What a session has one value of; None is unknown."""
    clocks = sorted(
        (gpu.uuid or "", str(gpu.power_limit_watts), str(gpu.sm_clock_max_mhz), str(gpu.memory_clock_max_mhz))
        for gpu in of.gpus
    )
    return of.boot, of.driver and of.driver.version, clocks or None, of.cpu.governor, of.cpu.boost
