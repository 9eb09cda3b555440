"""The chart of a series over runs: values with their intervals, levels, and changes marked by shape and words."""

from __future__ import annotations

import json
from collections.abc import Sequence

from paceline.analysis.trend import Series
from paceline.core.metric import Better
from paceline.report.charts import ACCENT, INK, MUTED, Chart, Spec, framed
from paceline.report.numbers import axis_scale, show_value
from paceline.report.text import heading, humanize, one_line
from paceline.report.trend.words import block_answer, commit_of, name_of, short_change, verdict_word

WIDTH = 880
WORSE, BETTER = "#b4451f", "#1d7a4a"  # the style sheet has both for a dark page
MOST_TICKS = 7
_COLOURS = {"regression": WORSE, "improvement": BETTER, "change": INK}


def chart_of(series: Series) -> Chart:
    """Runs from left to right, the same distance apart: what changed lies between two runs, not at a time."""
    scale, label = axis_scale(series.metric.unit, series.levels[-1])
    values = _values(series, scale)
    marks = _marks(series)
    spanned = [value[key] for value in values for key in ("value", "low", "high") if value[key] is not None]
    low, high = min(spanned), max(spanned)
    rows = 1 + max((mark["row"] for mark in marks), default=-1)
    room = (0.08 + 0.14 * rows) * (high - low)
    bottom, top = low - 0.06 * (high - low), high + (room or 0.05 * abs(high) or 1.0)
    x: Spec = {
        "field": "place",
        "type": "quantitative",
        "scale": {"domain": [0.3, len(values) + 0.7], "nice": False},
        "axis": _dates(series),
    }
    y: Spec = {
        "field": "value",
        "type": "quantitative",
        "scale": {"domain": [bottom, top], "nice": False, "zero": False},
        "axis": {"title": humanize(series.metric.name) + (f", {label}" if label else ""), "tickCount": 5},
    }
    for mark in marks:
        mark |= {"top": top - (0.07 + 0.085 * mark["row"]) * (top - bottom), "bottom": bottom}
    better = f"{series.metric.better.value} is better" if series.metric.better is not Better.NEITHER else ""
    layers = [*_points(x, y, len(values)), *_changes(marks, x, y)]
    notes = ["An empty circle is an outlier, which no level follows."] if any(series.outliers) else []
    return Chart(
        spec=framed(
            name_of(series),
            "; ".join(part for part in (one_line(series.machine), better) if part),
            {"data": {"values": values}, "width": WIDTH, "height": 230, "layer": layers},
        ),
        title=f"{heading(humanize(series.metric.name))} over runs: {name_of(series)}, {one_line(series.machine)}",
        description=f"{block_answer(series)}; {len(values)} runs, now {show_value(series.value, series.metric.unit)}",
        notes=tuple(notes),
    )


def _values(series: Series, scale: float) -> list[Spec]:
    found: list[Spec] = []
    steps = [shift.change.at for shift in series.shifts if shift.change.kind == "step"]
    for place, (point, level) in enumerate(zip(series.points, series.levels, strict=True)):
        interval = point.interval
        found.append(
            {
                "place": place + 1,
                "run": point.run_id,
                "started": point.started_at.isoformat(),
                "commit": commit_of(point),
                "value": point.value / scale,
                "low": interval.low / scale if interval else None,
                "high": interval.high / scale if interval else None,
                "level": level / scale,
                "segment": sum(step <= place for step in steps),  # a drift does not interrupt the line
                "outlier": series.outliers[place],
            }
        )
    return found


def _marks(series: Series) -> list[Spec]:
    found: list[Spec] = []
    taken: list[float] = []  # how far the words of each row reach to the right
    for shift in series.shifts:
        place, count = shift.change.at + 0.5, len(series.points)
        drift = " drift" if shift.change.kind == "drift" else ""
        text = f"{verdict_word(shift)}{drift} {short_change(shift)}".replace("-", "−")
        wide, here = 8.0 * len(text) + 24.0, WIDTH * place / count
        flipped = here + wide > WIDTH  # near the right edge the words stand on the other side
        left, right = (here - wide, here + 12.0) if flipped else (here - 12.0, here + wide)
        row = next((place for place, end in enumerate(taken) if end < left), len(taken))
        taken[row : row + 1] = [right]
        found.append(
            {
                "place": place,
                "text": text,
                "verdict": shift.verdict,
                "rising": shift.change.difference > 0,
                "row": row,
                "flipped": flipped,
            }
        )
    return found


def _dates(series: Series) -> Spec:
    count = len(series.points)
    step = max(1, -(-count // MOST_TICKS))
    places = list(range(1, count + 1, step))
    days = {place: series.points[place - 1].started_at.strftime("%Y-%m-%d") for place in places}
    words = {str(place): f"{place}" for place in places} | {
        str(place): f"{place}  {day}" for place, day in days.items()
    }
    return {
        "title": "run, and its date",
        "values": places,
        "labelExpr": f"split({json.dumps(words)}[datum.value], '  ')",
        "grid": False,
        "labelFlush": False,
        "tickMinStep": 1,
    }


def _points(x: Spec, y: Spec, count: int) -> list[Spec]:
    size = 34 if count <= 60 else 20 if count <= 200 else 10
    return [
        {
            "mark": {"type": "rule", "color": ACCENT, "opacity": 0.45, "strokeWidth": 1.5},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            "transform": [{"filter": "datum.low !== null"}],
        },
        {
            "mark": {"type": "line", "color": MUTED, "opacity": 0.35, "strokeWidth": 1},
            "encoding": {"x": x, "y": y},
            "transform": [{"filter": "!datum.outlier"}],
        },
        {
            "mark": {"type": "line", "color": INK, "strokeWidth": 2.5, "opacity": 0.85},
            "encoding": {"x": x, "y": {**y, "field": "level"}, "detail": {"field": "segment"}},
        },
        {
            "mark": {"type": "point", "filled": True, "color": ACCENT, "size": size, "opacity": 1},
            "encoding": {"x": x, "y": y},
            "transform": [{"filter": "!datum.outlier"}],
        },
        {
            "mark": {"type": "point", "filled": False, "color": ACCENT, "size": size + 16, "strokeWidth": 1.5},
            "encoding": {"x": x, "y": y},
            "transform": [{"filter": "datum.outlier"}],
        },
    ]


def _changes(marks: Sequence[Spec], x: Spec, y: Spec) -> list[Spec]:
    """A dashed line before the first run of the new level, a triangle that points where it went, and words."""
    if not marks:
        return []
    layers: list[Spec] = []
    for mark in marks:
        colour = _COLOURS[mark["verdict"]]
        here: Spec = {"data": {"values": [mark]}}
        side: Spec = {"align": "right", "dx": -10} if mark["flipped"] else {"align": "left", "dx": 10}
        top = {**y, "field": "top"}
        layers += [
            {**here, "mark": {"type": "rule", "color": colour, "strokeDash": [5, 3], "strokeWidth": 1.5},
             "encoding": {"x": x, "y": top, "y2": {"field": "bottom"}}},
            {**here, "mark": {"type": "point", "shape": "triangle-up" if mark["rising"] else "triangle-down",
                              "filled": True, "color": colour, "size": 110, "opacity": 1},
             "encoding": {"x": x, "y": top}},
            {**here, "mark": {"type": "text", "color": colour, "fontSize": 13, "fontWeight": 600,
                              "baseline": "middle", **side},
             "encoding": {"x": x, "y": top, "text": {"field": "text", "type": "nominal"}}},
        ]  # fmt: skip
    return layers
