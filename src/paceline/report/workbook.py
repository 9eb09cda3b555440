"""Workbooks for spreadsheets: typed cells, and text that stays text."""

from __future__ import annotations

import io
from typing import Any

from paceline.core.errors import MissingDependency
from paceline.report.text import one_line


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
