"""Sweeps as tables and charts: a row for each point, and lines over sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from paceline.analysis import serving
from paceline.analysis.heatmap import LEAST_VALUES
from paceline.analysis.summary import CaseRow, Sweep, leading_metric
from paceline.core.case import Category
from paceline.core.grouping import group_by
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement
from paceline.core.subject import REQUEST_GROUPS
from paceline.report.charts import (
    WIDTH,
    Chart,
    Spec,
    coloured,
    decades,
    framed,
    layer,
    parted,
    quantity,
)
from paceline.report.document import Cell, Table
from paceline.report.run.columns import interval_column
from paceline.report.text import (
    axis_scale,
    figure_interval,
    heading,
    humanize,
    one_line,
    show_at,
    show_coordinate,
    show_value,
    told_apart,
)

MOST_TICKS = 9
WIDE = 12.0  # from this ratio on, an axis from zero would press the smaller values to the ground

_SIZE_LABEL = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '~g') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '~g') + ' KiB' : format(datum.value, '~g') + ' B'"
)

_Series = tuple[CaseRow, Sweep, Metric]


def sweep_tables(row: CaseRow, *, every: bool = False) -> list[Table]:
    """The tables of one case: one for each of its sweeps.

    Served cases share theirs, and have their own only by kinds of requests, or where everything is wanted.
    """
    tables = []
    for sweep in row.sweeps:
        if row.case.category == Category.SERVING and not every and not {*sweep.axes} <= {*REQUEST_GROUPS}:
            continue
        if sweep.is_matrix and not every and len(sweep.points) >= LEAST_VALUES:
            continue  # a map over both ends has them
        tables.append(_list(sweep, leading_metric(row, sweep)))
    return tables


def stage_table(rows: Sequence[CaseRow]) -> Table | None:
    """Where the time of a request went: a line for each served case."""
    return _side_by_side("Where the time of a request goes, on average", rows, serving.stages)


def cold_start_table(rows: Sequence[CaseRow]) -> Table | None:
    """How long each server took to start: a line for each served case."""
    most = max((len(serving.cold_start(row)) for row in rows), default=0)  # answers may not become steady in time
    return _side_by_side("Cold start", rows, serving.cold_start, most)


def _side_by_side(
    title: str, rows: Sequence[CaseRow], parts: Callable[[CaseRow], Mapping[str, Measurement]], whole_from: int = 0
) -> Table | None:
    """A line for each case with its parts; their sum where it has at least `whole_from` of them."""
    served = [(row, figures) for row in rows if row.case.category == Category.SERVING and (figures := parts(row))]
    if not served:
        return None
    names = list(dict.fromkeys(name for _, figures in served for name in figures))
    headers = ("Case", *(one_line(heading(name)) for name in names), "Together")
    _, labels = told_apart([one_line(row.label) for row, _ in served])
    lines = []
    for label, (_, figures) in zip(labels, served, strict=True):
        times = [show_value(figures[name].value, "s") if name in figures else "" for name in names]
        whole = sum(figure.value for figure in figures.values())
        lines.append((label, *times, show_value(whole, "s") if len(figures) >= whole_from else ""))
    return Table.of_lines(headers, lines, 1, title)


def _list(sweep: Sweep, leading: Metric | None) -> Table:
    # A rate follows the time that it was computed from, with its interval next to it.
    metrics = sorted(sweep.metrics, key=lambda metric: metric.unit != "s")
    axes = tuple(one_line(heading(humanize(axis))) for axis in sweep.axes)
    headers = [*axes]
    led = [point.figure(leading.name) if leading else None for point in sweep.points]
    header, intervals = interval_column([Cell(figure_interval(figure) if figure else "") for figure in led])
    for metric in metrics:
        headers += [one_line(heading(humanize(metric.name)))] + ([header] if metric == leading else [])
    lines = []
    for point, interval in zip(sweep.points, intervals, strict=True):
        cells = [one_line(show_coordinate(axis, point.at[axis])) for axis in sweep.axes]
        for metric in metrics:
            figure = point.figure(metric.name)
            cells.append(show_value(figure.value, figure.unit) if figure else "")
            if metric == leading:
                cells.append(interval.text)
        lines.append(tuple(cells))
    count = f"{len(sweep.points)} {'point' if len(sweep.points) == 1 else 'points'}"
    title = f"Over {humanize(' and '.join(sweep.axes))}: {count}"
    return Table.of_lines(headers, lines, len(axes), one_line(title))


def sweep_charts(rows: Sequence[CaseRow]) -> list[Chart]:
    """Cases that may be read together share a chart: one operation's kind, one backend, one number of ranks."""
    measured = [
        (row, sweep, metric)
        for row in rows
        if row.case.category != Category.SERVING  # which has charts of its own
        for sweep in row.sweeps
        if (metric := leading_metric(row, sweep)) is not None
    ]

    def kind(series: _Series) -> tuple[object, ...]:
        row, sweep, metric = series
        engine = row.record.subject.engine
        return row.case.benchmark, engine, row.case.ranks, sweep.axes, metric.name, metric.unit

    together = group_by((series for series in measured if series[1].is_line), kind)
    drawn = [_lines(part, which) for series in together.values() for part, which in parted(series)]
    return [chart for chart in drawn if chart is not None]


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
    scale, unit = axis_scale(metric.unit, min(_tops(values)))
    scaled = ("value", "low", "high")  # a point that was seen once has no interval, and its line no shade there
    values = [value | {key: value[key] / scale for key in scaled if value[key] is not None} for value in values]
    place = {"x": _x(axis, values), "y": _y(metric, unit, values), "color": coloured(names, style={"labelLimit": 230})}
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
    style: Spec = {"values": ticks, "grid": False, "labelOverlap": "greedy", "labelFlush": False}
    labels = {"labelExpr": _SIZE_LABEL} if axis == "size" else {}
    return quantity("at", humanize(axis), scale | {"nice": False, "padding": 8}, **style, **labels)


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
    compared = [float(value["value"]) for value in values] if metric.unit == "s" else _tops(values)
    return max(compared) > WIDE * min(compared)


def _tops(values: Sequence[Spec]) -> list[float]:
    """The largest value of each line."""
    lines = group_by(values, lambda value: str(value["case"]))
    return [max(0.0, *(value["value"] for value in line)) for line in lines.values()]
