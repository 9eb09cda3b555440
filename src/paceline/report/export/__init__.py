"""Data for other tools: one file per format, each an `Export` that the registry finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.core.registry import Kind
from paceline.core.run import RunRecords


@dataclass(frozen=True)
class Export:
    """A format that the records of a run can be written in; `paceline report --NAME` writes it."""

    name: str
    summary: str  # for the help of its flag
    render: Callable[[RunRecords], str | bytes]
    suffixes: tuple[str, ...] = ()  # of files that are written in it where no format was named
    file: str = "-"  # where it goes where nobody says: a name with {run} in it; - is standard output
    order: int = 100


EXPORTS: Kind[Export] = Kind("export", "report.export", Export, others_folder="exports")
