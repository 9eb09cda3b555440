"""A diagnosis for programs and spreadsheets: JSON, JSON lines, CSV, Excel, and its chart as PNG."""

from __future__ import annotations

import io
import json
import math
import textwrap
from dataclasses import replace
from typing import Any

from paceline.analysis.diagnose.judge import Diagnosis, NodeVerdict, State
from paceline.core.errors import InputError, MissingDependency
from paceline.report.charts import draw_png
from paceline.report.diagnose.charts import accused_in, limit_of, strips
from paceline.report.diagnose.document import answer, describe, reasons
from paceline.report.export.csv import csv_text
from paceline.report.numbers import change as show_change
from paceline.report.text import one_line

MOST_REASONS = 10  # for each node in the first sheet
MOST_CELLS = 200_000  # of values in a workbook; more take minutes to write and to open


def as_jsonl(diagnosis: Diagnosis) -> str:
    """One object for each node, defective ones first."""
    return "".join(json.dumps(_verdict(verdict), allow_nan=False) + "\n" for verdict in diagnosis.verdicts)


def as_json(diagnosis: Diagnosis) -> str:
    """The whole diagnosis as one object."""
    document = {
        "answer": answer(diagnosis),
        "rules": diagnosis.rules.name,
        "compared_with": "the other nodes" if diagnosis.baseline is None else "a baseline",
        "nodes": len(diagnosis.verdicts),
        "defective": [verdict.node for verdict in diagnosis.defective],
        "incomplete": [verdict.node for verdict in diagnosis.verdicts if verdict.state is State.INCOMPLETE],
        "metrics_compared": len(diagnosis.judged),
        "verdicts": [_verdict(verdict) for verdict in diagnosis.verdicts],
        "caveats": [vars(caveat) for caveat in diagnosis.caveats],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _verdict(verdict: NodeVerdict) -> dict[str, Any]:
    # A change from zero has no number; `from_zero` says so.
    findings = [
        vars(finding) | {"change": None, "from_zero": True}
        if finding.change is not None and math.isinf(finding.change)
        else vars(finding)
        for finding in verdict.findings
    ]
    return {
        "node": verdict.node,
        "verdict": verdict.state.value,
        "categories": list(verdict.categories),
        "findings": findings,
    }


def as_png(diagnosis: Diagnosis) -> bytes:
    """The page's chart as a picture, with the answer above it, since no page stands around it."""
    chart = strips(diagnosis)
    if chart is None:
        message = "there is nothing to draw: no metric was compared with a baseline; see --md for the verdicts"
        raise InputError("nothing-to-draw", message)
    title = {"text": textwrap.wrap(answer(diagnosis), 84), "subtitle": textwrap.wrap(chart.notes[0], 108)}
    return draw_png(replace(chart, spec={**chart.spec, "title": {**title, "anchor": "start", "offset": 16}}))


def as_csv(diagnosis: Diagnosis) -> str:
    """What the chart draws, of all metrics that were compared and all nodes that measured them: a row each."""
    header = ("metric", "unit", "better", "baseline", "spread", "limit", "node", "value", "change", "defective")
    rows = []
    accused = accused_in(diagnosis)
    indexes = {column.name: index for index, column in enumerate(diagnosis.table.columns)}
    for one in diagnosis.judged:
        column, bad = one.column, accused.get(one.column.name, set())
        shared = (column.name, column.unit, column.better.value, one.baseline, one.spread, limit_of(one))
        values = diagnosis.table.values[:, indexes[column.name]].tolist()
        for node, (value, change) in enumerate(zip(values, one.changes.tolist(), strict=True)):
            if not math.isnan(value):
                cells = (*shared, diagnosis.table.nodes[node], value, change, "yes" if node in bad else "no")
                finite = [None if isinstance(cell, float) and not math.isfinite(cell) else cell for cell in cells]
                rows.append(dict(zip(header, finite, strict=True)))
    return csv_text(header, rows)


def as_xlsx(diagnosis: Diagnosis) -> bytes:
    """A workbook: the verdict on each node, every finding, and the values behind them."""
    try:
        from openpyxl import Workbook
    except ImportError:
        raise MissingDependency("openpyxl, which writes workbooks,", "pip install 'paceline[exports]'") from None
    book = Workbook(write_only=True)
    _verdict_sheet(book, diagnosis)
    _finding_sheet(book, diagnosis)
    _value_sheet(book, diagnosis)
    written = io.BytesIO()
    book.save(written)
    return written.getvalue()


def _verdict_sheet(book: Any, diagnosis: Diagnosis) -> None:
    sheet = _sheet(book, "Verdicts", (18, 14, 26, 10, 90))
    _append(sheet, (answer(diagnosis),), bold=True)
    sheet.append([])
    _append(sheet, ("Node", "Verdict", "Categories", "Findings", "Why"), bold=True)
    for verdict in diagnosis.verdicts:
        findings = reasons(verdict)
        why = [f"{describe(finding)} {show_change(finding.change)}".rstrip() for finding in findings[:MOST_REASONS]]
        if len(findings) > MOST_REASONS:
            why.append(f"and {len(findings) - MOST_REASONS} more")
        categories = ", ".join(verdict.categories)
        cells = (verdict.node, _shout(verdict.state), categories, len(verdict.accusations), "; ".join(why))
        _append(sheet, cells, bad=verdict.state is State.DEFECTIVE)


def _finding_sheet(book: Any, diagnosis: Diagnosis) -> None:
    sheet = _sheet(book, "Findings", (18, 14, 18, 18, 12, 56, 14, 12, 14, 12, 34))
    names = ("Node", "Verdict", "Rule", "Category", "Kind", "Metric")
    _append(sheet, (*names, "Value", "Unit", "Baseline", "Change", "Condition"), bold=True)
    for verdict in diagnosis.verdicts:
        for finding in verdict.findings:
            change = finding.change if finding.change is not None and math.isfinite(finding.change) else None
            texts = (verdict.node, _shout(verdict.state), finding.rule, finding.category, finding.kind, finding.metric)
            row = [_cell(sheet, text, bad=finding.accuses) for text in texts]
            row += [_cell(sheet, value) for value in (finding.value, finding.unit, finding.baseline)]
            row += [_cell(sheet, change, form="0.0%"), _cell(sheet, finding.text)]
            sheet.append(row)


def _value_sheet(book: Any, diagnosis: Diagnosis) -> None:
    table = diagnosis.table
    accused = {(verdict.node, finding.metric) for verdict in diagnosis.verdicts for finding in verdict.accusations}
    columns = list(range(len(table.columns)))
    note = ""
    if len(columns) * len(table.nodes) > MOST_CELLS:
        metrics = {metric for _, metric in accused}
        columns = [index for index in columns if table.columns[index].name in metrics][: MOST_CELLS // len(table.nodes)]
        note = "Only metrics with findings; the results themselves have all."
    sheet = _sheet(book, "Values", (18, 14, *(16 for _ in columns)))
    if note:
        _append(sheet, (note,))
    units = {index: f" [{table.columns[index].unit}]" if table.columns[index].unit else "" for index in columns}
    _append(sheet, ("Node", "Verdict", *(f"{table.columns[index].name}{units[index]}" for index in columns)), bold=True)
    rows = dict(zip(table.nodes, table.values, strict=True))
    for verdict in diagnosis.verdicts:
        values = rows[verdict.node]
        row = [_cell(sheet, verdict.node), _cell(sheet, _shout(verdict.state), bad=verdict.state is State.DEFECTIVE)]
        for index in columns:
            value = float(values[index])
            bad = (verdict.node, table.columns[index].name) in accused
            row.append(_cell(sheet, None if math.isnan(value) else value, bad=bad))
        sheet.append(row)


def _sheet(book: Any, title: str, widths: tuple[int, ...]) -> Any:
    from openpyxl.utils import get_column_letter

    sheet = book.create_sheet(title)
    for number, width in enumerate(widths, start=1):
        sheet.column_dimensions[get_column_letter(number)].width = width
    return sheet


def _append(sheet: Any, values: tuple[object, ...], *, bad: bool = False, bold: bool = False) -> None:
    sheet.append([_cell(sheet, value, bad=bad, bold=bold) for value in values])


def _cell(sheet: Any, value: object, *, bad: bool = False, bold: bool = False, form: str = "") -> Any:
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Font, PatternFill

    cell = WriteOnlyCell(sheet)
    if isinstance(value, str):
        # Text stays text: a name that begins with '=' is not a formula.
        cell.value = one_line(value)[:32_000]
        cell.data_type = "s"
    else:
        cell.value = value
    if bad:
        cell.fill = PatternFill("solid", fgColor="FFFDECEA")
        cell.font = Font(color="FF9C0006", bold=bold)
    elif bold:
        cell.font = Font(bold=True)
    if form:
        cell.number_format = form
    return cell


def _shout(state: State) -> str:
    return state.value.upper() if state is State.DEFECTIVE else state.value
