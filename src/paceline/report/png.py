"""The overview of a run as one picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paceline.analysis.summary import summarize_run
from paceline.core.errors import InputError
from paceline.core.files import write_atomic
from paceline.core.run import RunRecords
from paceline.report.charts import draw_png, overview


def render(records: RunRecords, *, primary: Mapping[str, str] | None = None) -> bytes:
    """The picture's bytes; a run without a result has none."""
    chart = overview(summarize_run(records, primary).measured)
    if chart is None:
        raise InputError(f"run '{records.run.id}' has no result to draw; see 'paceline report {records.run.id}'")
    return draw_png(chart)


def write(records: RunRecords, path: str | Path, *, primary: Mapping[str, str] | None = None) -> Path:
    """Write the picture."""
    return write_atomic(path, render(records, primary=primary))
