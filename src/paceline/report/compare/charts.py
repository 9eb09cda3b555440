"""The chart of a comparison: every ratio with its interval, beside the line that stands for no change."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.analysis.compare import Pairing, Row, Verdict
from paceline.report.charts import ACCENT, CONFIG, DOUBT, GRID, INK, MUTED, Chart, Spec, names_axis, words_beside
from paceline.report.compare.words import change_words, metric_words, ordered, verdict_words
from paceline.report.numbers import between, ratio
from paceline.report.text import one_line

MOST_ROWS = 40
_COLOURS = {Verdict.BETTER: ACCENT, Verdict.WORSE: DOUBT}


def forest(pairing: Pairing) -> Chart | None:
    """Gains of the cases, those that changed first: right of the line is better."""
    drawable = [row for row in ordered(pairing.rows) if row.gain is not None]
    rows = drawable[:MOST_ROWS]
    if not rows:
        return None
    alone = len({row.label for row in rows}) == len(rows)
    values = [_value(row, alone) for row in rows]
    edges = [value[key] for value in values for key in ("low", "high")]
    low, high = min(*edges, 1.0), max(*edges, 1.0)
    pad = (high / low) ** 0.06
    is_wide = high / low > 3
    scale: Spec = {"type": "log" if is_wide else "linear", "domain": [low / pad, high * pad], "nice": False}
    notes = []
    if len(drawable) > len(rows):
        notes.append(f"The {len(rows)} of {len(drawable)} ratios that changed the most are drawn.")
    told = [
        f"{value['case']}: {verdict_words(row)}, {ratio(value['gain'])}"
        for value, row in zip(values, rows, strict=True)
    ]
    return Chart(
        spec={
            "data": {"values": values},
            "width": 430,
            "height": {"step": 26},
            "layer": _layers(scale, is_wide=is_wide),
            "config": CONFIG,
        },
        title=f"How {one_line(pairing.new.name)} stands to {one_line(pairing.reference.name)}, with intervals",
        description="; ".join(told),
        notes=tuple(notes),
    )


def _value(row: Row, alone: bool) -> Spec:
    gain = row.gain or 1.0
    interval = row.ratio.interval
    ends = (interval.low, interval.high) if interval else (row.ratio.value or 1.0,) * 2
    is_turned = row.ratio.value is not None and gain != row.ratio.value
    low, high = (1 / ends[1], 1 / ends[0]) if is_turned else ends
    return {
        "case": one_line(row.label if alone else f"{row.label}, {metric_words(row)}"),
        "gain": gain,
        "low": low,
        "high": high,
        "text": change_words(row) if row.is_change else verdict_words(row),
        "colour": _COLOURS.get(row.verdict, MUTED),
        "interval": between(interval),
    }


def _layers(scale: Spec, *, is_wide: bool) -> Sequence[Spec]:
    axis = {
        "title": "times as good as the reference; right of the line is better",
        "format": ".3~g" if is_wide else ".3~f",
        "tickCount": 6,
    }
    y = names_axis(domain=False, labelLimit=250, minExtent=190)
    x: Spec = {"type": "quantitative", "scale": scale}
    colours = [ACCENT, DOUBT, MUTED]
    colour = {"field": "colour", "type": "nominal", "scale": {"domain": colours, "range": colours}, "legend": None}
    return [
        {
            "data": {"values": [{"one": 1.0}]},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
            "encoding": {"x": {"field": "one", "axis": {**axis, "gridColor": GRID}, **x}},
        },
        {
            "mark": {"type": "rule", "color": INK, "size": 1.5},
            "encoding": {"y": y, "x": {"field": "low", **x}, "x2": {"field": "high"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {"y": y, "x": {"field": "gain", **x}, "color": colour},
        },
        words_beside(y, {"value": 430}, dx=10),
    ]
