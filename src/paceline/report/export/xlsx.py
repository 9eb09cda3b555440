"""The results as a workbook for Excel and its like: the run, a row for each case, a row for each measurement."""

from __future__ import annotations

import io
import math
from typing import Any

from paceline.analysis.summary import headline_of, unique_labels
from paceline.core.errors import MissingDependency
from paceline.core.run import RunRecords
from paceline.report.export import Export
from paceline.report.export.csv import COLUMNS, interval_columns, measurement_rows
from paceline.report.export.tracking import about_run
from paceline.report.text import one_line

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


def new_workbook() -> Any:
    """An empty workbook, to be written row by row."""
    try:
        from openpyxl import Workbook
    except ImportError:
        raise MissingDependency("openpyxl, which writes workbooks,", "pip install '.[exports]'") from None
    return Workbook(write_only=True)


def saved(book: Any) -> bytes:
    """The workbook as a file."""
    written = io.BytesIO()
    book.save(written)
    return written.getvalue()


def add_sheet(book: Any, title: str, widths: tuple[int, ...]) -> Any:
    """A new sheet with columns of these widths."""
    from openpyxl.utils import get_column_letter

    sheet = book.create_sheet(title)
    for number, width in enumerate(widths, start=1):
        sheet.column_dimensions[get_column_letter(number)].width = width
    return sheet


def append_row(sheet: Any, values: tuple[object, ...], *, bad: bool = False, bold: bool = False) -> None:
    """One more row."""
    sheet.append([make_cell(sheet, value, bad=bad, bold=bold) for value in values])


def make_cell(sheet: Any, value: object, *, bad: bool = False, bold: bool = False) -> Any:
    """A number as it is, or a text that is never a formula."""
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Font, PatternFill

    cell = WriteOnlyCell(sheet)
    if isinstance(value, str):
        # Text stays text: a name that begins with '=' is not a formula.
        cell.value = one_line(value)[:32_000]
        cell.data_type = "s"
    elif isinstance(value, float):
        # As many digits as it takes: openpyxl would round to sixteen.
        cell.value = repr(value)
        cell.data_type = "n"
    else:
        cell.value = value
    if bad:
        cell.fill = PatternFill("solid", fgColor="FFFDECEA")
        cell.font = Font(color="FF9C0006", bold=bold)
    elif bold:
        cell.font = Font(bold=True)
    return cell
