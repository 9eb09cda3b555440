"""A run: one execution of a suite, with the environment it was taken in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
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
