"""A fleet in one table: a section for each category, and its rows for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from paceline.analysis.node_summary import SummaryLine, rounded
from paceline.core.grouping import group_by
from paceline.report.document import Block, Document, Section, Table
from paceline.report.export.xlsx import add_sheet, append_row, new_workbook, saved

HEADERS = ("metric", "statistics", "values", "unit")


def document(lines: Sequence[SummaryLine], digits: int, nodes: int, kind: str = "node") -> Document:
    """For people; the words of the headers are those of SuperBench's summaries."""
    sections = []
    for category, members in group_by(lines, lambda line: line.category).items():
        texts = [[line.metric, line.statistic, _text(line, digits), line.unit] for line in members]
        sections.append(Section(title=category, items=(Table.of_lines(HEADERS, texts, named=2, is_wide=True),)))
    return Document("Summary", (Block(f"{nodes} {kind}{'s' if nodes != 1 else ''}.", "", tuple(sections)),))


def rows(lines: Sequence[SummaryLine], digits: int) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {
            "category": line.category,
            "metric": line.metric,
            "statistic": line.statistic,
            "value": None if line.value is None else rounded(line.value, digits),
            "unit": line.unit,
        }
        for line in lines
    ]


def as_csv(lines: Sequence[SummaryLine], digits: int) -> str:
    """One row for each statistic."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ("category", "metric", "statistic", "value", "unit"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(lines, digits))
    return text.getvalue()


def as_xlsx(lines: Sequence[SummaryLine], digits: int) -> bytes:
    """The same as a workbook."""
    book = new_workbook()
    sheet = add_sheet(book, "Summary", (20, 60, 12, 16, 12))
    append_row(sheet, ("category", *HEADERS), bold=True)
    for row in rows(lines, digits):
        append_row(sheet, (row["category"], row["metric"], row["statistic"], row["value"], row["unit"]))
    return saved(book)


def _text(line: SummaryLine, digits: int) -> str:
    if line.value is None:
        return ""
    return f"{line.value:g}" if line.statistic == "count" else str(rounded(line.value, digits))
