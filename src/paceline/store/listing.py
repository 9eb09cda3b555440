"""One line of the list of past runs."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from paceline.core.run import RunStatus


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

    @property
    def missing(self) -> int:
        """Cases without a record."""
        return self.cases - self.ok - self.not_ok
