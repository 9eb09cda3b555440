"""Charts of sweeps: lines over sizes, and a map of what pairs of devices reach."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.analysis.figures import Sweep
from paceline.analysis.summary import CaseRow
from paceline.core.case import Category
from paceline.core.metric import Better, Metric
from paceline.core.quantity import show_count
from paceline.report.charts import (
    ACCENT,
    GRID,
    INK,
    LINES,
    TEXT,
    WIDTH,
    Chart,
    Spec,
    coloured,
    decades,
    framed,
    layer,
    quantity,
)
from paceline.report.numbers import axis_scale, show_at, show_value
from paceline.report.run.sweeps import leading_metric
from paceline.report.text import heading, humanize, one_line, told_apart

MOST_TICKS = 9
MOST_NUMBERS = 16  # devices; in a larger matrix the numbers would not fit into their cells
WIDE = 12.0  # from this ratio on, an axis from zero would press the smaller values to the ground

_SIZE_LABEL = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '~g') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '~g') + ' KiB' : format(datum.value, '~g') + ' B'"
)

_Series = tuple[CaseRow, Sweep, Metric]


def sweep_charts(rows: Sequence[CaseRow]) -> list[Chart]:
    """Cases that may be read together share a chart: one operation's kind, one backend, one number of ranks."""
    together: dict[tuple[object, ...], list[_Series]] = {}
    maps: list[Chart] = []
    for row in rows:
        for sweep in row.sweeps if row.case.category != Category.SERVING else ():  # which has charts of its own
            metric = leading_metric(row, sweep)
            if metric is None:
                continue
            if sweep.is_matrix:
                maps.append(_map(row, sweep, metric))
            elif sweep.is_line:
                kind = (row.case.benchmark, row.record.subject.engine, row.case.ranks)
                key = (*kind, sweep.axes, metric.name, metric.unit)
                together.setdefault(key, []).append((row, sweep, metric))
    drawn: list[Chart | None] = []
    for series in together.values():
        parts = [series[start : start + len(LINES)] for start in range(0, len(series), len(LINES))]
        drawn += [
            _lines(part, f" ({number} of {len(parts)})" if len(parts) > 1 else "")
            for number, part in enumerate(parts, start=1)
        ]
    return [chart for chart in (*drawn, *maps) if chart is not None]


def _lines(series: Sequence[_Series], part: str) -> Chart | None:
    _, first, metric = series[0]
    axis = first.axes[0]
    common, names = told_apart([one_line(row.label) for row, _, _ in series])
    values: list[Spec] = []
    lines = []
    for name, (row, sweep, _) in zip(names, series, strict=True):
        for point in sorted(sweep.points, key=lambda point: float(point.at[axis])):
            figure = point.figure(metric.name)
            if figure is None or not math.isfinite(figure.value):
                continue
            low, high = (figure.interval.low, figure.interval.high) if figure.interval else (None, None)
            values.append({"at": point.at[axis], "value": figure.value, "low": low, "high": high, "case": name})
        best = row.headline
        value = f", {show_value(best.value, best.unit)}" if best else ""
        at = f" at {show_at(best.at)}" if best and best.at else ""
        lines.append(f"{one_line(row.label)}: {len(sweep.points)} points{value}{at}")
    if not values:
        return None
    scale, unit = axis_scale(metric.unit, min(_tops(values).values()))
    scaled = ("value", "low", "high")  # a point that was seen once has no interval, and its line no shade there
    values = [value | {key: value[key] / scale for key in scaled if value[key] is not None} for value in values]
    place = {
        "x": _x(axis, values),
        "y": _y(metric, unit, values),
        "color": coloured(names, style={"labelLimit": 230}),
    }
    interval = place | {"y": place["y"] | {"field": "low"}, "y2": {"field": "high"}}
    layers = [
        layer("area", interval, opacity=0.18, clip=True, invalid="break-paths-show-domains"),
        layer("line", place, strokeWidth=2, strokeJoin="round"),
        layer("point", place, filled=True, size=26, opacity=1),
    ]
    title = f"{heading(humanize(metric.name))} over {humanize(axis)}"
    better = f"{metric.better.value} is better" if metric.better is not Better.NEITHER else ""
    return Chart(
        spec=framed(f"{title}{part}", common, better, values=values, width=WIDTH, height=260, layer=layers),
        title=f"{title}: {common or names[0]}{part}",
        description="; ".join(lines),
    )


def _x(axis: str, values: Sequence[Spec]) -> Spec:
    places = sorted({float(value["at"]) for value in values})
    logarithmic = places[0] > 0 and places[-1] >= 16 * places[0]
    step = math.ceil(len(places) / MOST_TICKS)
    ticks = places[::-1][::step][::-1]  # the largest, which most headlines are from, has its tick
    scale: Spec = {"type": "log", "base": 2} if logarithmic else {"zero": False}
    labels = {"labelExpr": _SIZE_LABEL} if axis == "size" else {}
    return quantity(
        "at",
        humanize(axis),
        scale | {"nice": False, "padding": 8},
        values=ticks,
        grid=False,
        labelOverlap="greedy",
        labelFlush=False,
        **labels,
    )


def _y(metric: Metric, unit: str, values: Sequence[Spec]) -> Spec:
    axis: Spec = {"tickCount": 5}
    scale: Spec = {"zero": True}
    spanned = [value[key] for value in values for key in ("value", "low", "high") if value[key] is not None]
    smallest, largest = min(spanned), max(spanned)
    if smallest > 0 and _is_wide(metric, values):
        scale = {"type": "log", "nice": False, "padding": 6}
        axis |= {"values": decades(smallest, largest), "format": "~g"}
    return quantity("value", humanize(metric.name) + (f", {unit}" if unit else ""), scale, **axis)


def _is_wide(metric: Metric, values: Sequence[Spec]) -> bool:
    """Whether an axis from zero would press what matters to the ground: a short time, or all of a slower line."""
    if metric.unit == "s":
        return bool(max(value["value"] for value in values) > WIDE * min(value["value"] for value in values))
    tops = _tops(values).values()
    return max(tops) > WIDE * min(tops)


def _tops(values: Sequence[Spec]) -> dict[str, float]:
    """The largest value of each line."""
    tops: dict[str, float] = {}
    for value in values:
        tops[value["case"]] = max(tops.get(value["case"], 0.0), value["value"])
    return tops


def _map(row: CaseRow, sweep: Sweep, metric: Metric) -> Chart:
    values: list[Spec] = []
    for point in sweep.points:
        figure = point.figure(metric.name)
        if figure is not None and math.isfinite(figure.value):
            values.append({"from": str(point.at["from"]), "to": str(point.at["to"]), "value": figure.value})
    largest = max((abs(value["value"]) for value in values), default=0.0)
    scale, unit = axis_scale(metric.unit, largest)
    values = [value | {"value": value["value"] / scale, "text": show_count(value["value"] / scale)} for value in values]
    places = len({value["from"] for value in values} | {value["to"] for value in values})
    step = 62 if places <= 8 else 46 if places <= MOST_NUMBERS else max(8, 640 // places)
    order = sorted({value[end] for value in values for end in ("from", "to")}, key=_natural)
    edge: Spec = {"type": "ordinal", "sort": order, "scale": {"domain": order}}
    lines: Spec = {"labelAngle": 0, "labelPadding": 8, "domain": False, "ticks": False, "labelOverlap": "greedy"}
    x = {"field": "to", "axis": {"title": "to", "orient": "top", **lines}, **edge}
    y = {"field": "from", "axis": {"title": "from", **lines}, **edge}
    # Shades of one colour, so that a style sheet can give it another; never so strong that a number on it is lost.
    shade = quantity("value", scale={"domain": [0, largest / scale], "range": [0.04, 0.5]}) | {"legend": None}
    place: Spec = {"x": x, "y": y}
    layers = [layer("rect", place | {"fillOpacity": shade}, color=ACCENT, stroke=GRID, strokeOpacity=1)]
    if places <= MOST_NUMBERS:
        layers.append(layer("text", place | {"text": TEXT}, color=INK, fontSize=12 if places <= 8 else 10))
    title = f"{heading(humanize(metric.name))} from one to another"
    extremes = sorted(values, key=lambda value: value["value"])
    ends = (("lowest", extremes[0]), ("highest", extremes[-1])) if extremes else ()
    description = "; ".join(
        f"{name} {value['text']} {unit} from {value['from']} to {value['to']}" for name, value in ends
    )
    return Chart(
        spec=framed(
            title + (f", {unit}" if unit else ""),
            one_line(row.label),
            values=values,
            width={"step": step},
            height={"step": step if places > MOST_NUMBERS else step * 0.6},
            layer=layers,
        ),
        title=f"{title}: {one_line(row.label)}",
        description=description,
        notes=(f"{heading(description)}.",) if description else (),
    )


def _natural(name: str) -> tuple[bool, float, str]:
    return (False, float(name), "") if name.replace(".", "", 1).isdigit() else (True, 0.0, name)
