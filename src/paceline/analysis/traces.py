"""Where the time of traced cases went, and what to do about it: from the facts of their records, not from the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from paceline.analysis.summary import Row
from paceline.core.time_spent import IDLE, TimeSpent

FACT = "trace"
MUCH = 0.2  # of a step: worth doing something about
MOST = 0.5
SLOWED = 1.1  # from this ratio on, tracing itself is to be seen in the shares


@dataclass(frozen=True)
class Traced:
    """One case that was to be traced."""

    row: Row
    spent: TimeSpent | None  # None if there is no trace, or one that tells nothing
    missing: str  # why not
    file: str  # where the trace is kept; empty if it is not
    no_file: str  # why not
    size: int | None  # of the file, in bytes
    slowdown: float | None  # a traced step over a measured one

    @property
    def is_slowed(self) -> bool:
        """Whether tracing made the steps so much longer that the shares show it."""
        return self.slowdown is not None and self.slowdown > SLOWED


def traced(rows: Iterable[Row]) -> list[Traced]:
    """The cases that were to be traced."""
    return [
        _read(row, facts)
        for row in rows
        if isinstance(facts := row.record.facts.get(FACT), Mapping) and facts.keys() & {"spent", "missing", "file"}
    ]


def _read(row: Row, facts: Mapping[str, Any]) -> Traced:
    spent, missing = None, str(facts.get("missing") or "")
    if "cut_short" in row.record.facts:
        missing = f"{missing}: {row.record.facts['cut_short']}"
    try:
        spent = TimeSpent.model_validate(facts["spent"]) if "spent" in facts else None
    except ValidationError:
        missing = "another version of Paceline took it; the file may still be there"
    size, slowdown = facts.get("bytes"), facts.get("slowdown")
    return Traced(
        row=row,
        spent=spent,
        missing=missing or ("" if spent else "nothing was kept of it"),
        file=str(facts.get("file") or ""),
        no_file=str(facts.get("no_file") or ""),
        size=size if isinstance(size, int) else None,
        slowdown=float(slowdown) if isinstance(slowdown, int | float) else None,
    )


def advice(one: Traced) -> tuple[str, ...]:
    """What would make the step shorter, where the shares show it plainly."""
    if one.spent is None:
        return ()
    shares, parameters = one.spent.shares, one.row.case.parameters
    found = []
    if one.spent.on_device and shares.get(IDLE, 0.0) >= MUCH:
        ways = ["a larger batch"]
        ways += ["--compile on"] if not one.row.record.facts.get("compiled") and "compile" in parameters else []
        ways += ["--graph"] if parameters.get("graph") is False else []
        found.append(f"the device waits for the host: give it more at once with {' or '.join(ways)}")
    if shares.get("communication", 0.0) >= MUCH:
        found.append(
            "communication is waited for: larger batches for each rank, or another layout (paceline plan), hide it"
        )
    if shares.get("memory", 0.0) >= MOST:
        found.append(
            "moving numbers takes longer than computing with them: a narrower precision moves fewer bytes, and "
            "--compile on moves them fewer times"
        )
    return tuple(found)
