"""What a report says beyond its cases: a sentence that is an answer, the chart that shows it, and its table."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.report.charts import Chart
from paceline.report.run.sweeps import SweepTable

MOST_LINES = 100  # of a table; the cases themselves are all in the report


@dataclass(frozen=True)
class Part:
    """One answer with what stands behind it."""

    sentence: str
    chart: Chart | None = None
    table: SweepTable | None = None
    folded: bool = False  # whether the chart shows all that the table has
    todo: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()  # a few words for each case, for a terminal
    source: str = ""  # where its yardstick is from, with the doubts of that; every report tells it


@dataclass(frozen=True)
class Insight:
    """All answers of one kind."""

    key: str
    title: str
    parts: tuple[Part, ...]
