"""Charts of served language models: tokens in total against tokens for each user, latencies over load and over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.analysis.summary import CaseRow
from paceline.analysis.token_loads import (
    BETWEEN,
    FIRST,
    JOULES,
    PER_USER,
    USD,
    TokenCurve,
    TokenLoad,
    load_name,
    tail_of,
    token_curves,
)
from paceline.core.grouping import group_by
from paceline.core.quantity import show_count
from paceline.core.subject import LoadSeries
from paceline.report.charts import TEXT, Chart, coloured, framed, latency_scale, layer, quantity, slo_lines
from paceline.report.numbers import MS, axis_scale, show_value
from paceline.report.style import ACCENT, GRID, INK, LINES, MUTED, WIDTH, Spec
from paceline.report.text import heading, humanize, one_line, told_apart

HEIGHT = 270
LATENCIES = {FIRST: "Time to first token", BETWEEN: "Time between tokens"}
_OVER_TIME = (  # panels: title, and the series that stand together in it
    ("time to first token", ("time_to_first_token",)),
    ("time between tokens", ("inter_token_latency",)),
    ("requests in the server", ("server_running", "server_queue")),
    ("", ("kv_cache_use", "accepted_drafts")),
)
_SERIES = {"server_running": "running", "server_queue": "waiting", "kv_cache_use": "KV cache",
           "accepted_drafts": "accepted drafts"}  # fmt: skip


def glance(rows: Sequence[CaseRow]) -> list[Chart]:
    """What to see first: the trade-off, and the latencies over load."""
    curves = token_curves(rows)[: len(LINES)]
    drawn = [trade_off(curves), *(over_load(curves, kind) for kind in LATENCIES)]
    return [chart for chart in drawn if chart is not None]


def details(rows: Sequence[CaseRow]) -> list[Chart]:
    """What the tokens took, and how each case went over time."""
    curves = token_curves(rows)[: len(LINES)]
    drawn = [spent(curves, JOULES), spent(curves, USD), *(over_time(row) for row in rows)]
    return [chart for chart in drawn if chart is not None]


def trade_off(curves: Sequence[TokenCurve]) -> Chart | None:
    """Tokens/s of a device over tokens/s of a user, a point for each load, with the loads that none beats."""
    names, shared = _names(curves)
    values: list[Spec] = [
        {"user": user, "total": total, "front": load.on_front, "case": name, "text": load.name, "load": load.amount}
        for name, curve in zip(names, curves, strict=True)
        for load in curve.loads
        if (user := load.value(PER_USER)) is not None and (total := load.per_device) is not None
    ]
    if len(values) < 2:
        return None
    y_title = _per_device(curves)
    x, y = _user_axis(values), quantity("total", y_title, {"zero": True, "nice": True}, tickCount=5)
    place = {"x": x, "y": y, "color": coloured(names)}
    point = place | {"opacity": {"condition": {"test": "datum.front", "value": 1}, "value": 0.4}}
    order = {"order": {"field": "user", "type": "quantitative"}}
    label: Spec = {"align": "left", "baseline": "bottom", "dx": 7, "dy": -3, "color": INK, "fontSize": 12}
    layers = [
        layer("line", place | order, where="datum.front", strokeWidth=2, strokeJoin="round"),
        layer("point", point, filled=True, size=60),
        layer("text", {"x": x, "y": y, "text": TEXT}, _labelled(values), **label),
    ]
    title = "Throughput against speed for each user"
    hint = "further right and higher is better; the line joins the loads that no other load beats (the Pareto front)"
    return Chart(
        spec=framed(title, shared, hint, lines=True, values=values, width=WIDTH, height=HEIGHT, layer=layers),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{value['case']} {value['text']}: {show_count(value['total'])} {y_title}, {show_count(value['user'])} "
            "tokens/s per user" + ", not beaten" * value["front"]
            for value in values
        ),
    )


def _user_axis(values: Sequence[Spec]) -> Spec:
    """From the slowest to the fastest, with room for a name to the right."""
    low, high = (pick(value["user"] for value in values) for pick in (min, max))
    span = max(high - low, 0.1 * high)
    scale: Spec = {"domain": [max(0.0, low - 0.1 * span), high + 0.1 * span], "nice": False}
    return quantity("user", "tokens/s per user", scale, grid=False, tickCount=8)


def _labelled(values: Sequence[Spec]) -> list[Spec]:
    """The points that have room for their names: those too near to one that has its name go without."""
    wide, high = max(value["user"] for value in values), max(value["total"] for value in values)
    named: list[Spec] = []
    for value in sorted(values, key=lambda value: (not value["front"], -value["total"])):
        is_free = all(
            abs(value["user"] - other["user"]) / wide > 0.07 or abs(value["total"] - other["total"]) / high > 0.06
            for other in named
        )
        named += [value] if is_free else []
    return named


def over_load(curves: Sequence[TokenCurve], kind: str) -> Chart | None:
    """Median and tail of a latency over users or rate, with their intervals."""
    curves = [curve for curve in curves if len({load.amount for load in curve.loads}) > 1]
    names, shared = _names(curves)
    if not curves:
        return None
    is_users = all(load.is_users for curve in curves for load in curve.loads)
    if not is_users and any(load.is_users for curve in curves for load in curve.loads):
        return None  # one axis cannot hold both
    tail = tail_of([row for curve in curves for row in curve.rows], kind)
    values = [
        value
        for name, curve in zip(names, curves, strict=True)
        for load in curve.loads
        for percentile in dict.fromkeys(("p50", tail))
        for value in _point(name, load, kind, percentile)
    ]
    if not values:
        return None
    limits = sorted({limit / MS for curve in curves for row in curve.rows if (limit := _slo(row, kind))})
    scale = latency_scale([value["latency"] for value in values] + limits)
    amounts = sorted({value["load"] for value in values})
    wide = is_users and amounts[-1] >= 8 * amounts[0]
    axis: Spec = {"grid": False, "values": amounts, "labelOverlap": "greedy", "format": "~g"} if is_users else {}
    x_scale: Spec = {"type": "log", "base": 2, "nice": False, "padding": 12} if wide else {"zero": not is_users}
    x = quantity("load", "users" if is_users else "requests/s", x_scale, **{"grid": False} | axis)
    y = quantity("latency", f"{LATENCIES[kind].lower()}, ms", scale["scale"], **{"tickCount": 5} | scale["axis"])
    place = {"x": x, "y": y, "color": coloured(names)}
    dash: Spec = {"condition": {"test": "datum.percentile == 'p50'", "value": [2, 3]}, "value": [1, 0]}
    line = place | {"strokeDash": dash, "detail": {"field": "percentile"}, "order": {"field": "load"}}
    bar = place | {"y": quantity("low"), "y2": {"field": "high"}}
    layers = [
        *slo_lines(limits, ""),
        layer("rule", bar, where="isValid(datum.low)", strokeWidth=7, opacity=0.3),
        layer("line", line, strokeWidth=2, strokeJoin="round"),
        layer("point", place, filled=True, size=40, opacity=1),
    ]
    words = f"solid {tail}, dotted p50; bars are intervals of 95 %" if tail != "p50" else "p50"
    title = f"{LATENCIES[kind]} over load"
    return Chart(
        spec=framed(title, shared, words, values=values, width=WIDTH, height=HEIGHT - 40, layer=layers),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{value['case']} {value['text']}: {value['percentile']} {show_value(value['latency'] * MS, 's')}"
            for value in values
        ),
    )


def _point(name: str, load: TokenLoad, kind: str, percentile: str) -> Iterator[Spec]:
    figure = load.row.figure(f"{kind}_{percentile}")
    if figure is None:
        return
    ends = {"low": figure.interval.low / MS, "high": figure.interval.high / MS} if figure.interval else {}
    yield {"load": load.amount, "latency": figure.value / MS, "percentile": percentile, "case": name, "text": load.name,
           **ends}  # fmt: skip


def _slo(row: CaseRow, kind: str) -> float | None:
    return row.record.load.slo.get(kind) if row.record.load is not None else None


def spent(curves: Sequence[TokenCurve], name: str) -> Chart | None:
    """Energy or money for tokens over how fast they come to a user."""
    names, shared = _names(curves)
    points = [
        (case, load, user, used)
        for case, curve in zip(names, curves, strict=True)
        for load in curve.loads
        if (user := load.value(PER_USER)) is not None and (used := load.value(name)) is not None
    ]
    if len(points) < 2:
        return None
    is_energy = name == JOULES
    unit_scale, unit = axis_scale("J", max(used for *_, used in points)) if is_energy else (1.0, "USD")
    values: list[Spec] = [
        {"user": user, "total": used / unit_scale, "case": case, "text": load.name, "front": True}
        for case, load, user, used in points
    ]
    x = _user_axis(values)
    y_title = f"{unit} per token" if is_energy else "USD per million tokens"
    y = quantity("total", y_title, {"zero": True, "nice": True}, tickCount=5, format="~g")
    place = {"x": x, "y": y, "color": coloured(names)}
    label: Spec = {"align": "left", "baseline": "bottom", "dx": 7, "dy": -3, "color": INK, "fontSize": 12}
    layers = [
        layer("line", place | {"order": {"field": "user"}}, strokeWidth=1.5, opacity=0.5),
        layer("point", place, filled=True, size=60, opacity=1),
        layer("text", {"x": x, "y": y, "text": TEXT}, _labelled(values), **label),
    ]
    title = "Energy of a token" if is_energy else "Cost of tokens"
    return Chart(
        spec=framed(
            title, shared, "further right and lower is better", values=values, width=WIDTH, height=200, layer=layers
        ),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(f"{value['case']} {value['text']}: {value['total']:.3g} {y_title}" for value in values),
    )


def over_time(row: CaseRow) -> Chart | None:
    """Latencies next to what the server reported of itself, below each other on one axis of time."""
    load = row.record.load
    if load is None or not load.series:
        return None
    by_name = group_by(load.series, lambda one: one.name)
    if not by_name.keys() & set(_SERIES):  # latencies alone have their charts over load
        return None
    begins = [one.begun for one in load.loads]
    end = max(second for one in load.series for second in one.seconds)
    shown = [(title, [name for name in names if name in by_name]) for title, names in _OVER_TIME]
    shown = [(title, names) for title, names in shown if names]
    panels = [
        _panel(title, {name: by_name[name] for name in names}, end, row, is_last=place == len(shown) - 1)
        for place, (title, names) in enumerate(shown)
    ]
    title = "Latencies and the server over time"
    about = "a line begins each load" if begins else ""
    means = [
        f"{_SERIES[name]} {show_value(figure.value, figure.unit)} on average"
        for name in _SERIES
        if (figure := row.figure(name)) is not None
    ]
    return Chart(
        spec=framed(title, one_line(row.label), about, vconcat=panels, spacing=16),
        title=f"{title}: {one_line(row.label)}",
        description="; ".join(means),
    )


def _panel(title: str, series: dict[str, list[LoadSeries]], end: float, row: CaseRow, *, is_last: bool) -> Spec:
    first = next(iter(series.values()))[0]
    scale, unit = axis_scale(first.unit, max(max(one.values) for parts in series.values() for one in parts))
    names = [_SERIES.get(name, humanize(name)) for name in series]
    values: list[Spec] = [
        {"second": second, "value": value / scale, "case": name, "part": part}
        for name, parts in zip(names, series.values(), strict=True)
        for part, one in enumerate(parts)
        for second, value in zip(one.seconds, one.values, strict=True)
    ]
    x = quantity("second", "seconds" if is_last else None, {"domain": [0, end], "nice": False},
                 grid=False, labels=is_last, ticks=is_last, domain=is_last)  # fmt: skip
    y = quantity("value", unit, {"zero": True, "nice": True}, tickCount=3)
    strokes: Spec = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolSize": 160}
    colour = coloured(names, (ACCENT, LINES[1]), style=strokes)
    line = {"x": x, "y": y, "color": colour, "detail": {"field": "part"}}
    load = row.record.load
    begins: list[Spec] = [
        {"second": one.begun, "text": load_name(one.at, is_users=load.sweep != "rate")}
        for one in (load.loads if load is not None else ())
    ]
    layers = [layer("rule", {"x": quantity("second")}, begins, color=GRID)] if begins else []
    steps = "monotone" if first.unit == "s" else "step-after"
    layers.append(layer("line", line, values, strokeWidth=1.5, interpolate=steps, clip=True))
    if begins and title == _OVER_TIME[0][0]:
        style: Spec = {"align": "left", "baseline": "top", "dx": 3, "color": MUTED, "fontSize": 11}
        layers.append(layer("text", {"x": quantity("second"), "y": {"value": 0}, "text": TEXT}, begins, **style))
    head = {
        "text": heading(title or " and ".join(names)),
        "anchor": "start",
        "fontSize": 12,
        "fontWeight": "normal",
        "offset": 4,
    }
    return {
        "title": head,
        "width": WIDTH,
        "height": 70,
        "layer": layers,
        "resolve": {"scale": {"color": "independent"}},
    }


def _names(curves: Sequence[TokenCurve]) -> tuple[list[str], str]:
    """What tells the curves apart, and the words that they share."""
    labels = []
    for curve in curves:
        words = [one_line(row.label) for row in curve.rows]
        shared, _ = told_apart(words)
        labels.append(shared or words[0])
    if len(set(labels)) < len(labels):
        labels = [f"{label} [{place}]" for place, label in enumerate(labels, start=1)]
    shared, names = told_apart(labels) if labels else ("", [])
    return names, shared


def _per_device(curves: Sequence[TokenCurve]) -> str:
    known = {load.row.record.load.devices for curve in curves for load in curve.loads if load.row.record.load}
    return "tokens/s per GPU" if known and None not in known else "tokens/s"
