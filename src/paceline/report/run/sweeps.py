"""Sweeps as tables and charts: a row for each point and lines over sizes, or a matrix where the points are pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from paceline.analysis import serving
from paceline.analysis.summary import CaseRow, Sweep
from paceline.core.case import Category
from paceline.core.grouping import group_by
from paceline.core.metric import Better, Metric
from paceline.core.quantity import show_count
from paceline.core.record import Measurement
from paceline.core.subject import REQUEST_GROUPS
from paceline.report.charts import (
    ACCENT,
    GRID,
    INK,
    TEXT,
    WIDTH,
    Chart,
    Spec,
    coloured,
    decades,
    framed,
    layer,
    matrix_places,
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
MOST_NUMBERS = 16  # devices; in a larger matrix the numbers would not fit into their cells
WIDE = 12.0  # from this ratio on, an axis from zero would press the smaller values to the ground

_SIZE_LABEL = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '~g') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '~g') + ' KiB' : format(datum.value, '~g') + ' B'"
)

_Series = tuple[CaseRow, Sweep, Metric]


def sweep_tables(row: CaseRow, *, every: bool = False) -> list[Table]:
    """The tables of one case: one for each of its sweeps, of pairs what leads or `every` metric.

    Served cases share theirs, and have their own only by kinds of requests, or where everything is wanted.
    """
    tables = []
    for sweep in row.sweeps:
        if row.case.category == Category.SERVING and not every and not {*sweep.axes} <= {*REQUEST_GROUPS}:
            continue
        leading = leading_metric(row, sweep)
        if sweep.is_matrix:
            tables += [_matrix(sweep, metric) for metric in sweep.metrics if every or metric == leading]
        else:
            tables.append(_list(sweep, leading))
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


def leading_metric(row: CaseRow, sweep: Sweep) -> Metric | None:
    """The metric that a sweep is about: the headline's, otherwise the first rate, or the first with a direction."""
    name = row.headline.name if row.headline else ""
    directed = [metric for metric in sweep.metrics if metric.better is not Better.NEITHER]
    rates = [metric for metric in directed if metric.unit.endswith("/s")]
    headlines = [metric for metric in directed if metric.name == name]
    return next(iter((*headlines, *rates, *directed)), None)


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
    title = f"Over {humanize(' and '.join(sweep.axes))}: {_count(sweep)}"
    return Table.of_lines(headers, lines, len(axes), one_line(title))


def _matrix(sweep: Sweep, metric: Metric) -> Table:
    sources, targets = (sorted({point.at[end] for point in sweep.points}, key=_natural) for end in ("from", "to"))
    figures = {(point.at["from"], point.at["to"]): point.figure(metric.name) for point in sweep.points}
    lines = []
    for source in sources:
        row = [figures.get((source, target)) for target in targets]
        texts = (show_value(figure.value, figure.unit) if figure else "" for figure in row)
        lines.append((one_line(f"from {source}"), *texts))
    title = f"{heading(humanize(metric.name))} from one to another: {_count(sweep)}"
    headers = ("", *(one_line(f"to {target}") for target in targets))
    return Table.of_lines(headers, lines, 1, one_line(title))


def _natural(value: float | str) -> tuple[bool, float, str]:
    """Numbers in their order, then names in theirs."""
    name = str(value)
    return (False, float(name), "") if name.replace(".", "", 1).isdigit() else (True, 0.0, name)


def _count(sweep: Sweep) -> str:
    return f"{len(sweep.points)} {'point' if len(sweep.points) == 1 else 'points'}"


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
    maps = [_map(*series) for series in measured if series[1].is_matrix]
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


def _map(row: CaseRow, sweep: Sweep, metric: Metric) -> Chart:
    measured = [
        (point.at, figure.value)
        for point in sweep.points
        if (figure := point.figure(metric.name)) is not None and math.isfinite(figure.value)
    ]
    largest = max((abs(value) for _, value in measured), default=0.0)
    scale, unit = axis_scale(metric.unit, largest)
    values: list[Spec] = [
        {"from": str(at["from"]), "to": str(at["to"]), "value": value / scale, "text": show_count(value / scale)}
        for at, value in measured
    ]
    order = sorted({value[end] for value in values for end in ("from", "to")}, key=_natural)
    places = len(order)
    step = 62 if places <= 8 else 46 if places <= MOST_NUMBERS else max(8, 640 // places)
    place = matrix_places("to", "from", order, order, titles=("to", "from"))
    # Shades of one colour, so that a style sheet can give it another; never so strong that a number on it is lost.
    shade = quantity("value", scale={"domain": [0, largest / scale], "range": [0.04, 0.5]}) | {"legend": None}
    layers = [layer("rect", place | {"fillOpacity": shade}, color=ACCENT, stroke=GRID, strokeOpacity=1)]
    if places <= MOST_NUMBERS:
        layers.append(layer("text", place | {"text": TEXT}, color=INK, fontSize=12 if places <= 8 else 10))
    title = f"{heading(humanize(metric.name))} from one to another"
    extremes = sorted(values, key=lambda value: value["value"])
    ends = (("lowest", extremes[0]), ("highest", extremes[-1])) if extremes else ()
    description = "; ".join(
        f"{name} {value['text']} {unit} from {value['from']} to {value['to']}" for name, value in ends
    )
    size: Spec = {"width": {"step": step}, "height": {"step": step if places > MOST_NUMBERS else step * 0.6}}
    head = (title + (f", {unit}" if unit else ""), one_line(row.label))
    return Chart(
        spec=framed(*head, values=values, layer=layers, **size),
        title=f"{title}: {one_line(row.label)}",
        description=description,
        notes=(f"{heading(description)}.",) if description else (),
    )
