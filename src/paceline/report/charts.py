"""Charts as Vega-Lite specifications, and their drawing into SVG and PNG without a browser or a network."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.analysis.figures import Figure
from paceline.analysis.summary import Row
from paceline.core.errors import MissingDependency
from paceline.core.metric import Better
from paceline.core.quantity import show_count
from paceline.core.record import Measurement
from paceline.core.stats import resolves
from paceline.report.text import (
    axis_scale,
    clean,
    heading,
    humanize,
    one_line,
    show_at,
    show_figure,
    show_relative,
    show_value,
)

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


def overview(cases: Sequence[Row]) -> Chart | None:
    """Every headline with its interval; one panel for each metric and unit, since others cannot be compared."""
    panels: dict[tuple[str, str, Better], list[Row]] = {}
    for row in cases:
        if row.headline and math.isfinite(row.headline.value):
            metric = row.headline.metric
            panels.setdefault((metric.name, metric.unit, metric.better), []).append(row)
    if not panels:
        return None
    specs = [_panel(name, unit, better, rows) for (name, unit, better), rows in panels.items()]
    told = [f"{one_line(row.label)}: {show_figure(row.headline)}" for row in cases if row.headline]
    return Chart(
        spec={"vconcat": specs, "spacing": 26, "config": CONFIG},
        title="Result of each case with its interval",
        description="; ".join(told),
    )


def _panel(name: str, unit: str, better: Better, rows: Sequence[Row]) -> Spec:
    figures = [row.headline for row in rows if row.headline]
    scale, label = axis_scale(unit, max(abs(figure.value) for figure in figures))
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
            "labelLimit": 250,
            "labelPadding": 10,
            "minExtent": 190,
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
        "width": 540,
        "height": {"step": 30},
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


def _bar_text(row: Row, figure: Figure, scale: float) -> str:
    kinds = ", ".join(dict.fromkeys(one_line(doubt.kind) for doubt in row.doubts))
    parts = [show_count(figure.value / scale), show_relative(figure.relative), f"· {kinds}" if kinds else ""]
    return " ".join(part for part in parts if part)


def distribution(measurement: Measurement) -> Chart | None:
    """The samples in the order they were taken, and beside them how often each size came."""
    samples = np.asarray(measurement.samples, dtype=np.float64)
    if samples.size < 2 or not np.isfinite(samples).all():
        return None
    metric, summary = measurement.metric, measurement.summary
    scale, label = axis_scale(metric.unit, summary.median)
    values = samples / scale
    low, high = _domain(values)
    clipped = int(((values < low) | (values > high)).sum())
    places = thinned(values)
    dots: list[Spec] = []
    for place in places:
        # A gap after every sample: a line of isolated points is one small path, where points would be one path each.
        dots += [{"at": int(place) + 1, "value": float(np.clip(values[place], low, high))}, {"at": None, "value": None}]
    where = f" at {show_at(measurement.at)}" if measurement.at else ""
    title = humanize(metric.name) + where + (f", {label}" if label else "")
    y_scale = {"domain": [low, high], "nice": False, "zero": False}
    y: Spec = {"type": "quantitative", "scale": y_scale}
    left: Spec = {
        "width": 560,
        "height": 190,
        "layer": [
            *_interval_band(measurement, scale, y),
            {
                "data": {"values": dots},
                "mark": {
                    "type": "line",
                    "strokeCap": "round",
                    "strokeWidth": 5 if len(places) < 60 else 3 if len(places) < 600 else 2,
                    "color": ACCENT,
                    "opacity": 0.75,
                    "invalid": "break-paths-show-domains",
                },
                "encoding": {
                    "x": {
                        "field": "at",
                        "type": "quantitative",
                        "scale": {"domain": [0, int(samples.size) + 1], "nice": False},
                        "axis": {
                            "title": "sample, in the order taken",
                            "grid": False,
                            "tickCount": 8,
                            "tickMinStep": 1,
                        },
                    },
                    "y": {"field": "value", "axis": {"title": title, "tickCount": 5}, **y},
                    "order": {"value": None},
                },
            },
        ],
    }
    notes = []
    if len(places) < samples.size:
        notes.append(
            f"{len(places):,} of {samples.size:,} samples are drawn over time: "
            "the lowest and the highest of each stretch."
        )
    if clipped:
        notes.append(
            f"{clipped} {'sample lies' if clipped == 1 else 'samples lie'} beyond the axis, drawn at its edge."
        )
    return Chart(
        spec={
            "hconcat": [left, _histogram(values, low, high, measurement, scale, y_scale)],
            "spacing": 14,
            "config": CONFIG,
        },
        title=f"{heading(humanize(metric.name))}{where} over time, and its distribution",
        description=(
            f"{summary.count} samples; median {show_value(summary.median, metric.unit)}, "
            f"from {show_value(summary.minimum, metric.unit)} to {show_value(summary.maximum, metric.unit)}"
        ),
        notes=tuple(notes),
    )


def _interval_band(measurement: Measurement, scale: float, y: Spec) -> list[Spec]:
    summary = measurement.summary
    middle: Spec = {
        "data": {"values": [{"value": summary.median / scale}]},
        "mark": {"type": "rule", "color": INK, "strokeDash": [4, 3], "opacity": 0.7},
        "encoding": {"y": {"field": "value", **y}},
    }
    if summary.median_interval is None:
        return [middle]
    edges = {"low": summary.median_interval.low / scale, "high": summary.median_interval.high / scale}
    band = {
        "data": {"values": [edges]},
        "mark": {"type": "rect", "color": ACCENT, "opacity": 0.16},
        "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}},
    }
    return [band, middle]


def _histogram(
    values: np.ndarray[Any, np.dtype[np.float64]],
    low: float,
    high: float,
    measurement: Measurement,
    scale: float,
    y_scale: Spec,
) -> Spec:
    counts, edges = np.histogram(np.clip(values, low, high), bins=min(40, max(8, values.size // 4)), range=(low, high))
    gap = (edges[1] - edges[0]) * 0.08
    bars = [
        {"from": float(edge + gap), "to": float(edges[index + 1] - gap), "count": int(counts[index])}
        for index, edge in enumerate(edges[:-1])
        if counts[index]
    ]
    summary = measurement.summary
    lines: list[Spec] = [
        {"name": f"p{name}", "value": summary.percentiles[name] / scale}
        for name in ("50", "99")
        if name in summary.percentiles and resolves(summary.count, float(name))
    ]
    if len(lines) == 2 and lines[1]["value"] - lines[0]["value"] < 0.07 * (high - low):
        lines.pop()  # their names would cover each other
    y: Spec = {"type": "quantitative", "scale": y_scale, "axis": None}
    return {
        "width": 170,
        "height": 190,
        "layer": [
            {
                "data": {"values": bars},
                "mark": {"type": "rect", "color": ACCENT, "opacity": 0.75},
                "encoding": {
                    "y": {"field": "from", **y},
                    "y2": {"field": "to"},
                    "x": {
                        "field": "count",
                        "type": "quantitative",
                        "axis": {"title": "samples", "grid": False, "tickCount": 3, "tickMinStep": 1},
                    },
                    "x2": {"datum": 0},
                },
            },
            {
                "data": {"values": lines},
                "mark": {"type": "rule", "color": INK, "strokeDash": [4, 3], "opacity": 0.7},
                "encoding": {"y": {"field": "value", **y}},
            },
            {
                "data": {"values": lines},
                "mark": {"type": "text", "align": "left", "dx": 5, "color": INK, "fontSize": 12},
                "encoding": {
                    "y": {"field": "value", **y},
                    "x": {"value": 170},
                    "text": {"field": "name", "type": "nominal"},
                },
            },
        ],
    }


def thinned(values: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]], limit: int = PLOTTED) -> list[int]:
    """Places of the samples to draw: all, or the lowest and highest of each stretch so that no spike is lost."""
    series = np.asarray(values, dtype=np.float64)
    if series.size <= limit:
        return list(range(series.size))
    places: set[int] = set()
    for stretch in np.array_split(np.arange(series.size), limit // 2):
        places |= {int(stretch[series[stretch].argmin()]), int(stretch[series[stretch].argmax()])}
    return sorted(places)


def _domain(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    """What the axis spans: all of it, unless a few far outliers would flatten everything else."""
    low, high = float(values.min()), float(values.max())
    inner_low, inner_high = (float(edge) for edge in np.percentile(values, (1, 99)))
    reach = 4.0 * (inner_high - inner_low)
    if reach > 0:
        low, high = max(low, inner_low - reach), min(high, inner_high + reach)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad


def available() -> bool:
    """Whether charts can be drawn here."""
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        return False
    return True


def draw_svg(chart: Chart, name: str) -> str:
    """The chart for a page: no address of anything outside, and a name for what it has inside."""
    drawn: str = _converter().vegalite_to_svg(_cleaned(chart.spec))
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
    spec = {**chart.spec, "config": {**CONFIG, "background": PAPER}, "padding": 18}
    drawn: bytes = _converter().vegalite_to_png(_cleaned(spec), scale=scale)
    return drawn


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
