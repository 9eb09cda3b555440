"""The results as a workbook for Excel and its like: the run, a row for each case, a row for each measurement."""

from __future__ import annotations

import math
from typing import Any

from paceline.analysis.figures import unique_labels
from paceline.analysis.summary import headline_of
from paceline.core.run import RunRecords
from paceline.report.export import Export
from paceline.report.export.csv import COLUMNS, interval_columns, measurement_rows
from paceline.report.export.tracking import about_run
from paceline.report.workbook import add_sheet, append_row, new_workbook, saved

_OF_CASES = (
    *("Case", "Benchmark", "Target", "Outcome", "Metric", "Value", "Low", "High", "Confidence", "Unit", "Better"),
    *("Warnings", "Cause"),
)


def render(records: RunRecords) -> bytes:
    """The whole workbook; numbers are numbers, as exact as they were measured."""
    book = new_workbook()
    sheet = add_sheet(book, "Run", (16, 100))
    for name, value in about_run(records.run).items():
        append_row(sheet, (name, value))
    _case_sheet(book, records)
    sheet = add_sheet(book, "Measurements", (24, 6, 14, 32, *(14 for _ in COLUMNS[4:])))
    append_row(sheet, COLUMNS, bold=True)
    for row in measurement_rows(records):
        append_row(sheet, tuple(_plain(row.get(name)) for name in COLUMNS))
    return saved(book)


def _case_sheet(book: Any, records: RunRecords) -> None:
    sheet = add_sheet(book, "Cases", (44, 14, 10, 14, 20, *(14 for _ in range(6)), 24, 60))
    append_row(sheet, _OF_CASES, bold=True)
    ordered = sorted(records.records, key=lambda record: record.case.index)
    for record, label in zip(ordered, unique_labels([record.case for record in ordered]), strict=True):
        headline = headline_of(record)
        figures: tuple[object, ...] = (None,) * 7
        if headline is not None:
            metric, ends = headline.metric, interval_columns(headline.interval).values()
            figures = (metric.name, headline.value, *ends, metric.unit, metric.better.value)
        warnings = ", ".join(dict.fromkeys(warning.kind for warning in record.warnings))
        cells = (label, record.case.benchmark, record.case.target, record.outcome.value, *figures, warnings)
        cells = (*cells, record.cause.message if record.cause else None)
        append_row(sheet, tuple(map(_plain, cells)), bad=not record.is_success)


def _plain(value: object) -> object:
    """What a cell can hold: a spreadsheet has neither NaN nor infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


EXPORT = Export(
    "xlsx",
    "a workbook for Excel: the run, its cases, every measurement",
    render,
    suffixes=(".xlsx",),
    file="paceline-report-{run}.xlsx",
    order=35,
)
