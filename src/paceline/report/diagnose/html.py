"""A diagnosis as one HTML file that needs nothing else: the answer, the chart, the defects, the warning, the nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from paceline.analysis.diagnose.judge import Diagnosis, Judged, State
from paceline.report import charts
from paceline.report.diagnose.charts import strips
from paceline.report.diagnose.document import Line, answer, compared_with, line_of
from paceline.report.numbers import change, share, show_value
from paceline.report.render.html import render_page
from paceline.report.text import humanize, one_line
from paceline.version import VERSION

MOST_ROWS = 2000  # of a table; a page with more is slow


@dataclass(frozen=True)
class Row:
    """A finding with what its column sorts by."""

    line: Line
    change: float | None
    value: float | None
    baseline: float | None
    state: State


@dataclass(frozen=True)
class Small:
    """A plain table, as the macro of the pages takes it."""

    title: str
    headers: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    named: int


def render(diagnosis: Diagnosis) -> str:
    """The whole page."""
    chart = strips(diagnosis) if charts.available() else None
    rows = _rows(diagnosis)
    return render_page(
        "diagnosis.html",
        with_script=True,
        diagnosis=diagnosis,
        answer=answer(diagnosis),
        compared=compared_with(diagnosis),
        drawing={"svg": Markup(charts.draw_svg(chart, "strips")), "notes": chart.notes} if chart else None,
        charts_missing=bool(diagnosis.judged) and not charts.available(),
        rows=rows[:MOST_ROWS],
        left_out=max(0, len(rows) - MOST_ROWS),
        healthy=[verdict.node for verdict in diagnosis.verdicts if verdict.state is State.HEALTHY],
        references=_references(diagnosis),
        differences=_differences(diagnosis),
        rules=_rules(diagnosis),
        version=VERSION,
    )


def _rows(diagnosis: Diagnosis) -> list[Row]:
    found = []
    for verdict in diagnosis.verdicts:
        for finding in verdict.accusations or (verdict.findings if verdict.state is State.INCOMPLETE else ()):
            moved = finding.change if finding.change is None or math.isfinite(finding.change) else None
            line = line_of(verdict.node, finding)
            found.append(Row(line, moved, finding.value, finding.baseline, verdict.state))
    return found


def _references(diagnosis: Diagnosis) -> Small | None:
    """What the nodes were compared with, for every metric."""
    if not diagnosis.judged:
        return None
    lines = tuple(_reference(one) for one in diagnosis.judged[:MOST_ROWS])
    return Small("", ("Metric", "Better", "Baseline", "Spread", "Lowest", "Highest"), lines, 2)


def _reference(one: Judged) -> tuple[str, ...]:
    known = one.changes[~np.isnan(one.changes)]
    spread = share(one.spread) if math.isfinite(one.spread) else "–"
    return (
        one_line(one.column.name),
        one.column.better.value,
        show_value(one.baseline, one.column.unit),
        spread,
        change(float(known.min())) if known.size else "–",
        change(float(known.max())) if known.size else "–",
    )


def _differences(diagnosis: Diagnosis) -> Small | None:
    """What is not the same on all nodes, which a defect may come from."""
    lines = []
    for fact, of_nodes in diagnosis.table.differences().items():
        for value, nodes in sorted(of_nodes.items(), key=lambda item: -len(item[1])):
            shown = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
            lines.append((humanize(fact.replace(".", "_")), one_line(value), str(len(nodes)), one_line(shown)))
    return Small("", ("What", "Value", "Nodes", "Which"), tuple(lines), 4) if lines else None


def _rules(diagnosis: Diagnosis) -> Small:
    lines = tuple(
        (
            one_line(rule.name),
            rule.check,
            one_line(rule.category),
            one_line(rule.text) or "–",
            one_line(", ".join(selector.source for selector in rule.selectors)) or "what leads each case",
        )
        for rule in diagnosis.rules.rules
    )
    return Small("", ("Rule", "Check", "Category", "Condition", "Metrics"), lines, 5)
