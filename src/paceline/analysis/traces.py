"""Where the time of traced cases went, and what to do about it: from the facts of their records, not from the files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.analysis.summary import Row
from paceline.core.subject import StepTrace
from paceline.core.time_spent import IDLE, TimeSpent

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
    return [_read(row, row.record.trace) for row in rows if row.record.trace is not None]


def _read(row: Row, trace: StepTrace) -> Traced:
    return Traced(
        row=row,
        spent=trace.spent,
        missing=trace.missing or ("" if trace.spent else "nothing was kept of it"),
        file=trace.file,
        no_file=trace.no_file,
        size=trace.bytes,
        slowdown=trace.slowdown,
    )


def advice(one: Traced) -> tuple[str, ...]:
    """What would make the step shorter, where the shares show it plainly."""
    if one.spent is None:
        return ()
    shares = one.spent.shares
    found = []
    if one.spent.on_device and shares.get(IDLE, 0.0) >= MUCH:
        switches = one.row.record.trace.switches if one.row.record.trace else ()
        ways = ["a larger batch", *switches]
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
