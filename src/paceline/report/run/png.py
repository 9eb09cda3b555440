"""What a run shows at a glance as one picture: its overview, and the charts of what it says beyond its cases."""

from __future__ import annotations

from pathlib import Path

from paceline.analysis.roofline import KnownCeilings
from paceline.analysis.summary import summarize_run
from paceline.core.errors import InputError
from paceline.core.files import write_atomic
from paceline.core.run import RunRecords
from paceline.report.charts import draw_png, stacked
from paceline.report.run.overview import overview
from paceline.report.run.section import charts_of, report_sections


def render(records: RunRecords, *, ceilings: KnownCeilings | None = None) -> bytes:
    """The picture's bytes; a run without a result has none."""
    summary = summarize_run(records, ceilings)
    first = overview(summary.measured)
    if first is None:
        message = f"run '{records.run.id}' has no result to draw; see 'paceline report {records.run.id}'"
        raise InputError("nothing-to-draw", message, value=records.run.id)
    return draw_png(stacked([first, *charts_of(report_sections(summary))]))


def write(
    records: RunRecords,
    path: str | Path,
    *,
    ceilings: KnownCeilings | None = None,
) -> Path:
    """Write the picture."""
    return write_atomic(path, render(records, ceilings=ceilings))
