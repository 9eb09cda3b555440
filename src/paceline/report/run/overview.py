"""The bars of a run: every case's headline with its interval."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from textwrap import wrap

from paceline.analysis.summary import CaseRow
from paceline.core.grouping import group_by
from paceline.core.metric import Better
from paceline.core.quantity import show_count
from paceline.core.record import Measurement
from paceline.report.charts import Chart, interval_bars, names_axis
from paceline.report.numbers import axis_scale, figure_width, show_figure
from paceline.report.style import ACCENT, CONFIG, WARNING, Spec
from paceline.report.text import heading, humanize, one_line

BARS = 60  # of one metric at most; nobody reads more
BARS_WIDTH = 540
ROOM, MOST_ROOM = 250, 380  # beside the bars, for the names of cases
_LETTER = 6.4  # pixels that a letter of a name takes, on average
_LINE, _MOST_LINES = int(MOST_ROOM / _LETTER), 3  # letters of a long name on a line, and its lines
_LINE_HEIGHT = 14
# Letters that are no wider than this in any font of a page; of others, each may take twice as much.
_NARROW, _NARROW_LETTERS = 7.9, frozenset("abcdefghijklnopqrstuvxyz0123456789_ .,:;/-[]()")


def overview(cases: Sequence[CaseRow]) -> Chart | None:
    """Every headline with its interval; one panel for each metric and unit, since others cannot be compared."""
    known = [(row, row.headline) for row in cases if row.headline and math.isfinite(row.headline.value)]
    panels = group_by(known, lambda pair: (pair[1].name, pair[1].unit, pair[1].metric.better))
    if not panels:
        return None
    notes = []
    names = [name for name, _, _ in panels]
    for (name, unit, better), rows in panels.items():
        if len(rows) > BARS:
            metric_name = humanize(name) + (f" in {unit}" if unit and names.count(name) > 1 else "")
            notes.append(f"The {BARS} best of {len(rows):,} cases by {metric_name} are drawn.")
            rows.sort(key=lambda pair: pair[1].value, reverse=better is not Better.LOWER)
            del rows[BARS:]
    shown = [(one_line(row.label), figure) for rows in panels.values() for row, figure in rows]
    # Layouts and generated models have long names that differ at their ends: they take room from the bars.
    room = min(MOST_ROOM, max(ROOM, _LETTER * max(len(label) for label, _ in shown)))
    specs = [_panel(name, unit, better, rows, room) for (name, unit, better), rows in panels.items()]
    return Chart(
        spec={"vconcat": specs, "spacing": 26, "config": CONFIG},
        title="Result of each case with its interval",
        description="; ".join(f"{label}: {show_figure(figure)}" for label, figure in shown),
        notes=tuple(notes),
    )


def _panel(name: str, unit: str, better: Better, rows: Sequence[tuple[CaseRow, Measurement]], room: float) -> Spec:
    scale, label = axis_scale(unit, max(abs(figure.value) for _, figure in rows))
    # What tells a name from the others is often at its end: a long one has several lines.
    broken = {
        label: wrap(label, _LINE, break_on_hyphens=False, max_lines=_MOST_LINES, placeholder=" …") or [label]
        for label in (one_line(row.label) for row, _ in rows)
    }
    most = max(len(lines) for lines in broken.values())
    values = [
        {
            "case": one_line(row.label),
            "value": figure.value / scale,
            "low": (figure.interval.low if figure.interval else figure.value) / scale,
            "high": (figure.interval.high if figure.interval else figure.value) / scale,
            "text": _bar_text(row, figure, scale),
            "warning": bool(row.warnings),
        }
        for row, figure in rows
    ]
    colour = {"condition": {"test": "datum.warning", "value": WARNING}, "value": ACCENT}
    limit = _limit(list(broken), room) if most == 1 else room
    y = names_axis(labelLimit=limit, minExtent=190, **(_broken(broken) if most > 1 else {}))
    title = heading(humanize(name)) + (f", {label}" if label else "")
    subtitle = f"{better.value} is better" if better is not Better.NEITHER else ""
    return {
        "title": {"text": title, "subtitle": subtitle, "anchor": "start", "frame": "group", "offset": 8},
        "data": {"values": values},
        "width": BARS_WIDTH - (room - ROOM),
        "height": {"step": max(30, _LINE_HEIGHT * most + 8)},
        "layer": interval_bars(y, colour),  # every bar tells its value
    }


def _broken(lines: Mapping[str, list[str]]) -> Spec:
    """Each name on its lines, which are next to its bar together."""
    raised = {name: -_LINE_HEIGHT / 2 * (len(parts) - 1) for name, parts in lines.items()}
    return {
        "labelExpr": f"{json.dumps(lines)}[datum.label]",
        "labelOffset": {"expr": f"{json.dumps(raised)}[datum.value]"},
        "labelLineHeight": _LINE_HEIGHT,
    }


def _limit(names: Sequence[str], room: float) -> float | Spec:
    """The limit of names that may need one: to measure a name takes milliseconds, and most are short beyond warning."""
    widest = {name: sum(_NARROW if letter in _NARROW_LETTERS else 2 * _NARROW for letter in name) for name in names}
    long = [len(name) for name, width in widest.items() if width > room]
    return {"expr": f"length(datum.label) < {min(long)} ? 0 : {room}"} if long else 0


def _bar_text(row: CaseRow, figure: Measurement, scale: float) -> str:
    kinds = ", ".join(dict.fromkeys(one_line(warning.kind) for warning in row.warnings))
    parts = [show_count(figure.value / scale), figure_width(figure), f"· {kinds}" if kinds else ""]
    return " ".join(part for part in parts if part)
