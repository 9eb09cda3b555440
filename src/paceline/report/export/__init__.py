"""Data for other tools: one file per format or tool, each an `Export` or a `Tracker` that the registry finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


@dataclass(frozen=True)
class Tracker:
    """A service that keeps runs; `paceline report --NAME PLACE` sends one there, through the service's own client."""

    name: str
    summary: str  # for the help of its flag
    place: str  # what its flag takes, such as URI; in brackets where it may be left out
    send: Callable[[RunRecords, str, Mapping[str, str]], str]  # the run, the place, files by name; where it is now


EXPORTS: Kind[Export] = Kind("export", "report.export", Export, others_folder="exports")
TRACKERS: Kind[Tracker] = Kind("tracker", "report.export", Tracker, others_folder="exports")
