"""Every chart of a report as a picture, and next to it the data that it draws as comma-separated values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.analysis.roofline import KnownCeilings
from paceline.analysis.summary import RunSummary, sampled, summarize_run
from paceline.core.errors import InputError
from paceline.core.files import write_atomic
from paceline.core.run import RunRecords
from paceline.report.charts import Chart, captioned, draw_png
from paceline.report.document import Medium
from paceline.report.export.csv import csv_text
from paceline.report.run.document import detailed_rows, document, machine_line
from paceline.report.run.samples_chart import distribution
from paceline.report.text import one_line

LONGEST_NAME = 80

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ChartFile:
    """A chart with its name for files and the rows behind it."""

    name: str
    title: str
    chart: Chart
    rows: Rows


def write(records: RunRecords, folder: str | Path, *, ceilings: KnownCeilings | None = None) -> list[Path]:
    """Write all of them into the folder, which is made if need be; the paths, a picture before its data."""
    files = chart_files(records, ceilings=ceilings)
    machine = machine_line(summarize_run(records, ceilings))
    if not files:
        message = f"run '{records.run.id}' has no result to draw; see 'paceline report {records.run.id}'"
        raise InputError("nothing-to-draw", message, value=records.run.id)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for one in files:
        written.append(write_atomic(target / f"{one.name}.png", draw_png(captioned([one.chart], one.title, machine))))
        written.append(write_atomic(target / f"{one.name}.csv", to_csv(one.rows)))
    return written


def chart_files(records: RunRecords, *, ceilings: KnownCeilings | None = None) -> list[ChartFile]:
    """The charts in the order of the page; their names begin with their place, so that no two are the same."""
    page = document(records, Medium.HTML, ceilings=ceilings)
    # Samples are drawn anew, of more cases than a page shows and with their data.
    charts = [(chart, chart.title, _rows_of(chart)) for chart in page.charts if chart.rows or not chart.svg]
    charts += list(_of_samples(summarize_run(records, ceilings)))
    digits = len(str(len(charts)))
    return [
        ChartFile(f"{place:0{digits}d}-{_slug(title)}", f"{one_line(records.run.name)}: {title}", chart, rows)
        for place, (chart, title, rows) in enumerate(charts, start=1)
    ]


def to_csv(rows: Rows) -> str:
    """The rows under every name that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text(columns, ({name: _cell(value) for name, value in row.items()} for row in rows))


def _of_samples(summary: RunSummary) -> Iterator[tuple[Chart, str, Rows]]:
    for row in detailed_rows(summary):
        source = sampled(row.record, row.headline)
        if source is not None and (chart := distribution(source)):
            name, unit = source.metric.name, source.metric.unit
            samples = enumerate(source.samples, start=1)
            rows: Rows = [{"sample": place, name: value, "unit": unit} for place, value in samples]
            yield chart, f"{row.label} {name}", rows


def _rows_of(chart: Chart) -> Rows:
    """What the chart draws; of several sets of data each row tells its own."""
    if chart.rows:
        return list(chart.rows)
    sets = [rows for rows in _data_in(chart.spec) if rows]
    if len(sets) == 1:
        return sets[0]
    return [{"part": place, **row} for place, rows in enumerate(sets, start=1) for row in rows]


def _data_in(part: Any) -> Iterator[Rows]:
    if isinstance(part, Mapping):
        data = part.get("data")
        values = data.get("values") if isinstance(data, Mapping) else None
        if isinstance(values, list):
            yield [row for row in values if isinstance(row, dict) and any(cell is not None for cell in row.values())]
        for name, inner in part.items():
            if name != "data":
                yield from _data_in(inner)
    elif isinstance(part, Sequence) and not isinstance(part, str):
        for inner in part:
            yield from _data_in(inner)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _slug(title: str) -> str:
    """A title as the name of a file that every system takes."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower())[:LONGEST_NAME].strip("-") or "chart"
