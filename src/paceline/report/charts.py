"""Charts, most as Vega-Lite specifications, and their drawing into SVG and PNG without a browser or a network."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np

from paceline.analysis.figures import Figure
from paceline.analysis.summary import Row
from paceline.core.errors import MissingDependency
from paceline.core.metric import Better
from paceline.core.quantity import show_count
from paceline.report.text import (
    axis_scale,
    clean,
    heading,
    humanize,
    one_line,
    show_figure,
    show_relative,
)

BARS = 60  # of one metric at most; nobody reads more
BARS_WIDTH = 540
ROOM, MOST_ROOM = 250, 380  # beside the bars, for the names of cases
_LETTER = 6.4  # pixels that a letter of a name takes, on average
_LINE, _MOST_LINES = int(MOST_ROOM / _LETTER), 3  # letters of a long name on a line, and its lines
_LINE_HEIGHT = 14
# Letters that are no wider than this in any font of a page; of others, each may take twice as much.
_NARROW, _NARROW_LETTERS = 7.9, frozenset("abcdefghijklnopqrstuvxyz0123456789_ .,:;/-[]()")
PLOTTED = 2000  # samples at most; more would only make the file larger

# Each role has a colour of its own, so that a style sheet can give it another one for a dark page.
INK, MUTED, GRID, ACCENT, DOUBT, PAPER = "#1c2430", "#5b6675", "#e3e7ec", "#2a66c8", "#b45f06", "#ffffff"
FONT = "-apple-system, BlinkMacSystemFont, Segoe UI, Roboto, Helvetica Neue, Arial, Noto Sans, sans-serif"

Spec = dict[str, Any]

CONFIG: Spec = {
    "background": None,
    "font": FONT,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "gridColor": GRID,
        "domainColor": GRID,
        "tickColor": GRID,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "title": {"color": INK, "fontSize": 13, "fontWeight": 600, "subtitleColor": MUTED, "subtitleFontSize": 12},
}


@dataclass(frozen=True)
class Chart:
    """A chart with what it shows in words, and what a reader must know about the drawing."""

    spec: Spec
    title: str
    description: str
    notes: tuple[str, ...] = ()
    svg: str = ""  # the drawing itself, of a chart that needs no specification


def overview(cases: Sequence[Row]) -> Chart | None:
    """Every headline with its interval; one panel for each metric and unit, since others cannot be compared."""
    panels: dict[tuple[str, str, Better], list[Row]] = {}
    for row in cases:
        if row.headline and math.isfinite(row.headline.value):
            metric = row.headline.metric
            panels.setdefault((metric.name, metric.unit, metric.better), []).append(row)
    if not panels:
        return None
    notes = []
    names = [name for name, _, _ in panels]
    for (name, unit, better), rows in panels.items():
        if len(rows) > BARS:
            metric_name = humanize(name) + (f" in {unit}" if unit and names.count(name) > 1 else "")
            notes.append(f"The {BARS} best of {len(rows):,} cases by {metric_name} are drawn.")
            rows.sort(key=lambda row: row.headline.value if row.headline else 0.0, reverse=better is not Better.LOWER)
            del rows[BARS:]
    shown = [row for rows in panels.values() for row in rows]
    # Layouts and generated models have long names that differ at their ends: they take room from the bars.
    room = min(MOST_ROOM, max(ROOM, _LETTER * max(len(one_line(row.label)) for row in shown)))
    specs = [_panel(name, unit, better, rows, room) for (name, unit, better), rows in panels.items()]
    return Chart(
        spec={"vconcat": specs, "spacing": 26, "config": CONFIG},
        title="Result of each case with its interval",
        description="; ".join(f"{one_line(row.label)}: {show_figure(row.headline)}" for row in shown if row.headline),
        notes=tuple(notes),
    )


def _panel(name: str, unit: str, better: Better, rows: Sequence[Row], room: float) -> Spec:
    figures = [row.headline for row in rows if row.headline]
    scale, label = axis_scale(unit, max(abs(figure.value) for figure in figures))
    broken = {label: _lines(label) for label in (one_line(row.label) for row in rows)}
    most = max(len(lines) for lines in broken.values())
    values = []
    for row, figure in zip(rows, figures, strict=True):
        interval = figure.interval
        values.append(
            {
                "case": one_line(row.label),
                "value": figure.value / scale,
                "low": (interval.low if interval else figure.value) / scale,
                "high": (interval.high if interval else figure.value) / scale,
                "text": _bar_text(row, figure, scale),
                "doubt": bool(row.doubts),
            }
        )
    colour = {"condition": {"test": "datum.doubt", "value": DOUBT}, "value": ACCENT}
    y = {
        "field": "case",
        "type": "nominal",
        "sort": None,
        "axis": {
            "title": None,
            "domainColor": MUTED,
            "ticks": False,
            "labelColor": INK,
            "labelLimit": _limit(list(broken), room) if most == 1 else room,
            "labelPadding": 10,
            "minExtent": 190,
            **(_broken(broken) if most > 1 else {}),
        },
    }
    x = {
        "field": "value",
        "type": "quantitative",
        "scale": {"zero": True},
        "axis": None,  # every bar tells its value
    }
    title = heading(humanize(name)) + (f", {label}" if label else "")
    return {
        "title": {
            "text": title,
            "subtitle": f"{better.value} is better" if better is not Better.NEITHER else "",
            "anchor": "start",
            "frame": "group",
            "offset": 8,
        },
        "data": {"values": values},
        "width": BARS_WIDTH - (room - ROOM),
        "height": {"step": max(30, _LINE_HEIGHT * most + 8)},
        "layer": [
            {
                "mark": {"type": "bar", "height": 15, "cornerRadiusEnd": 2},
                "encoding": {"y": y, "x": x, "color": colour},
            },
            {
                "mark": {"type": "errorbar", "ticks": {"color": INK, "size": 9}, "rule": {"color": INK, "size": 1.5}},
                "encoding": {
                    "y": y,
                    "x": {"field": "low", "type": "quantitative", "axis": None},
                    "x2": {"field": "high"},
                },
            },
            {
                "mark": {"type": "text", "align": "left", "baseline": "middle", "dx": 8, "color": INK, "fontSize": 12},
                "encoding": {
                    "y": y,
                    "x": {"field": "high", "type": "quantitative", "axis": None},
                    "text": {"field": "text", "type": "nominal"},
                },
            },
        ],
    }


def _lines(name: str) -> list[str]:
    """A name on as many lines as it needs: what tells it from the others is often at its end."""
    return wrap(name, _LINE, break_on_hyphens=False, max_lines=_MOST_LINES, placeholder=" …") or [name]


def _broken(lines: Mapping[str, list[str]]) -> Spec:
    """Each name on its lines, which stand beside its bar together."""
    raised = {name: -_LINE_HEIGHT / 2 * (len(parts) - 1) for name, parts in lines.items()}
    return {
        "labelExpr": f"{json.dumps(lines)}[datum.label]",
        "labelOffset": {"expr": f"{json.dumps(raised)}[datum.value]"},
        "labelLineHeight": _LINE_HEIGHT,
    }


def _limit(names: Sequence[str], room: float) -> float | Spec:
    """The limit of names that may need one: to measure a name takes milliseconds, and most are short beyond doubt."""
    long = [len(name) for name in names if _most_width(name) > room]
    return {"expr": f"length(datum.label) < {min(long)} ? 0 : {room}"} if long else 0


def _most_width(name: str) -> float:
    return sum(_NARROW if letter in _NARROW_LETTERS else 2 * _NARROW for letter in name)


def _bar_text(row: Row, figure: Figure, scale: float) -> str:
    kinds = ", ".join(dict.fromkeys(one_line(doubt.kind) for doubt in row.doubts))
    parts = [show_count(figure.value / scale), show_relative(figure.relative), f"· {kinds}" if kinds else ""]
    return " ".join(part for part in parts if part)


def thinned(values: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]], limit: int = PLOTTED) -> list[int]:
    """Places of the samples to draw: all, or the lowest and highest of each stretch so that no spike is lost."""
    series = np.asarray(values, dtype=np.float64)
    if series.size <= limit:
        return list(range(series.size))
    places: set[int] = set()
    for stretch in np.array_split(np.arange(series.size), limit // 2):
        places |= {int(stretch[series[stretch].argmin()]), int(stretch[series[stretch].argmax()])}
    return sorted(places)


def available() -> bool:
    """Whether charts can be drawn here."""
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        return False
    return True


def draw_svg(chart: Chart, name: str) -> str:
    """The chart for a page: no address of anything outside, and a name for what it has inside."""
    drawn: str = chart.svg or _converter().vegalite_to_svg(_cleaned(chart.spec))
    drawn = re.sub(r'\s(?:xmlns(?::xlink)?|version)="[^"]*"', "", drawn, count=3)  # of the outermost element
    drawn = re.sub(r'\sclass="(?:mark|background|foreground)[^"]*"', "", drawn)
    drawn = re.sub(r'\bid="(clip\d+)"', rf'id="{name}-\1"', drawn)
    drawn = re.sub(r"url\(#(clip\d+)\)", rf"url(#{name}-\1)", drawn)
    head = (
        f'<svg class="chart" role="img" aria-labelledby="{name}-title {name}-text"'
        f'><title id="{name}-title">{html.escape(chart.title)}</title>'
        f'<desc id="{name}-text">{html.escape(chart.description)}</desc>'
    )
    size = re.match(r"<svg([^>]*)>", drawn)
    if size is None:
        raise ValueError("the chart could not be drawn: it is not an SVG picture")
    return head.replace("<svg ", f"<svg{size.group(1)} ", 1) + drawn[size.end() :]


def draw_png(chart: Chart, scale: float = 2.0) -> bytes:
    """The chart as a picture on white."""
    if chart.svg:
        return bytes(_converter().svg_to_png(_on_paper(chart.svg), scale=scale))
    spec = {**chart.spec, "config": {**CONFIG, **chart.spec.get("config", {}), "background": PAPER}, "padding": 18}
    drawn: bytes = _converter().vegalite_to_png(_cleaned(spec), scale=scale)
    return drawn


def _on_paper(svg: str) -> str:
    """The picture as a file of its own, on white."""
    named = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return re.sub(r"(<svg[^>]*>)", rf'\1<rect width="100%" height="100%" fill="{PAPER}"/>', named, count=1)


def _cleaned(part: Any) -> Any:
    """The same without control characters: one of them in any text makes the library abort the whole process."""
    if isinstance(part, str):
        return clean(part)
    if isinstance(part, dict):
        return {key: _cleaned(value) for key, value in part.items()}
    return [_cleaned(item) for item in part] if isinstance(part, list) else part


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise MissingDependency("vl-convert, which draws charts,", "pip install 'paceline[charts]'") from None
    return vl_convert
