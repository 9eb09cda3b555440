"""The bars of a run: every case's headline with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.analysis.figures import Reading
from paceline.analysis.summary import CaseRow
from paceline.core.grouping import group_by
from paceline.core.metric import Better
from paceline.core.quantity import show_count
from paceline.core.record import Measurement
from paceline.report.bars import Bar, Panel, panels
from paceline.report.charts import Chart
from paceline.report.numbers import axis_scale, show_figure
from paceline.report.style import ACCENT, WARNING
from paceline.report.text import heading, humanize, one_line

BARS = 60  # of one metric at most; nobody reads more


def overview(cases: Sequence[CaseRow]) -> Chart | None:
    """Every headline with its interval; one panel for each metric and unit, since others cannot be compared."""
    known = [(row, row.headline) for row in cases if row.headline and math.isfinite(row.headline.value)]
    groups = group_by(known, lambda pair: (pair[1].name, pair[1].unit, pair[1].metric.better))
    if not groups:
        return None
    notes = []
    names = [name for name, _, _ in groups]
    for (name, unit, better), rows in groups.items():
        if len(rows) > BARS:
            metric_name = humanize(name) + (f" in {unit}" if unit and names.count(name) > 1 else "")
            notes.append(f"The {BARS} best of {len(rows):,} cases by {metric_name} are drawn.")
            rows.sort(key=lambda pair: pair[1].value, reverse=better is not Better.LOWER)
            del rows[BARS:]
    return panels("Result of each case with its interval", [_panel(*key, rows) for key, rows in groups.items()], notes)


def _panel(name: str, unit: str, better: Better, rows: Sequence[tuple[CaseRow, Measurement]]) -> Panel:
    scale, label = axis_scale(unit, max(abs(figure.value) for _, figure in rows))
    title = heading(humanize(name)) + (f", {label}" if label else "")
    about = [f"{better.value} is better"] if better is not Better.NEITHER else []
    about += ["orange: with warnings"] if any(row.warnings for row, _ in rows) else []
    return Panel(title, "; ".join(about), [_bar(row, figure, scale) for row, figure in rows])


def _bar(row: CaseRow, figure: Measurement, scale: float) -> Bar:
    kinds = ", ".join(dict.fromkeys(one_line(warning.kind) for warning in row.warnings))
    parts = [show_figure(figure, lambda value: show_count(value / scale)), f"· {kinds}" if kinds else ""]
    interval = figure.interval
    reading = Reading(
        figure.value / scale, interval.low / scale if interval else None, interval.high / scale if interval else None
    )
    text = " ".join(part for part in parts if part)
    return Bar(one_line(row.label), reading, text, WARNING if row.warnings else ACCENT)
