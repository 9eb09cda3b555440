"""Charts of served language models: tokens in total against tokens for each user, latencies over load and over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.analysis.serving import (
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
from paceline.analysis.summary import CaseRow
from paceline.core.grouping import group_by
from paceline.core.quantity import show_count
from paceline.core.subject import LoadSeries
from paceline.report.charts import TEXT, Chart, coloured, framed, latency_scale, layer, quantity, slo_lines
from paceline.report.style import ACCENT, GRID, INK, LINES, MUTED, WIDTH, Spec
from paceline.report.text import MS, axis_scale, heading, humanize, one_line, show_value, told_apart

LATENCIES = {FIRST: "Time to first token", BETWEEN: "Time between tokens"}
_SERIES = {"server_running": "running", "server_queue": "waiting", "kv_cache_use": "KV cache"}
_SERIES |= {"accepted_drafts": "accepted drafts"}
_OVER_TIME = {  # panels, and the series that stand together in each
    "time to first token": ("time_to_first_token",),
    "time between tokens": ("inter_token_latency",),
    "requests in the server": ("server_running", "server_queue"),
    "": ("kv_cache_use", "accepted_drafts"),
}
_STROKES: Spec = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolSize": 160}


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
    known = {load.row.record.load.devices for curve in curves for load in curve if load.row.record.load}
    y_title = "tokens/s" if None in known else "tokens/s per GPU"
    hint = "further right and higher is better; the line joins the loads that no other load beats (the Pareto front)"
    return _over_users(curves, lambda load: load.per_device, "Throughput against speed for each user", y_title, hint)


def spent(curves: Sequence[TokenCurve], name: str) -> Chart | None:
    """Energy or money for tokens over how fast they come to a user."""
    title, y_title = ("Energy of a token", "J per token") if name == JOULES else ("Cost of tokens", "USD per million")
    return _over_users(curves, lambda load: load.value(name), title, y_title, "further right and lower is better")


def _over_users(
    curves: Sequence[TokenCurve], figure: Callable[[TokenLoad], float | None], title: str, y_title: str, hint: str
) -> Chart | None:
    names, shared = _names(curves)
    is_front = "Pareto" in hint
    values: list[Spec] = [
        {"user": user, "value": value, "drawn": load.on_front or not is_front, "case": name, "text": load.name}
        for name, curve in zip(names, curves, strict=True)
        for load in curve
        if (user := load.value(PER_USER)) is not None and (value := figure(load)) is not None
    ]
    if len(values) < 2:
        return None
    low, high = (pick(value["user"] for value in values) for pick in (min, max))
    span = max(high - low, 0.1 * high)  # with room for a name to the right
    scale: Spec = {"domain": [max(0.0, low - 0.1 * span), high + 0.1 * span], "nice": False}
    x = quantity("user", "tokens/s per user", scale, grid=False, tickCount=8)
    y = quantity("value", y_title, {"zero": True, "nice": True}, tickCount=5)
    place = {"x": x, "y": y, "color": coloured(names)}
    point = place | {"opacity": {"condition": {"test": "datum.drawn", "value": 1}, "value": 0.4}}
    label: Spec = {"align": "left", "baseline": "bottom", "dx": 7, "dy": -3, "color": INK, "fontSize": 12}
    layers = [
        layer("line", place | {"order": {"field": "user"}}, where="datum.drawn", strokeWidth=2, strokeJoin="round"),
        layer("point", point, filled=True, size=60),
        layer("text", {"x": x, "y": y, "text": TEXT}, _labelled(values), **label),
    ]
    height = 270 if is_front else 200
    return Chart(
        spec=framed(title, shared, hint, lines=True, values=values, width=WIDTH, height=height, layer=layers),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{value['case']} {value['text']}: {show_count(value['value'])} {y_title}, "
            f"{show_count(value['user'])} tokens/s per user{', not beaten' * (is_front and value['drawn'])}"
            for value in values
        ),
    )


def _labelled(values: Sequence[Spec]) -> list[Spec]:
    """The points that have room for their names: those too near to one that has its name go without."""
    wide, high = (max(value[name] for value in values) for name in ("user", "value"))
    named: list[Spec] = []
    for value in sorted(values, key=lambda value: (not value["drawn"], -value["value"])):
        is_free = all(
            abs(value["user"] - other["user"]) > 0.07 * wide or abs(value["value"] - other["value"]) > 0.06 * high
            for other in named
        )
        named += [value] if is_free else []
    return named


def over_load(curves: Sequence[TokenCurve], kind: str) -> Chart | None:
    """Median and tail of a latency over users or rate, with their intervals."""
    curves = [curve for curve in curves if len({load.amount for load in curve}) > 1]
    loads = [load for curve in curves for load in curve]
    if len({load.is_users for load in loads}) != 1:  # nothing, or users and rates, which one axis cannot hold
        return None
    names, shared = _names(curves)
    is_users, tail = loads[0].is_users, tail_of([load.row for load in loads], kind)
    values: list[Spec] = [
        {"load": load.amount, "latency": figure.value / MS, "percentile": percentile, "case": name, "text": load.name}
        | ({"low": figure.interval.low / MS, "high": figure.interval.high / MS} if figure.interval else {})
        for name, curve in zip(names, curves, strict=True)
        for load in curve
        for percentile in dict.fromkeys(("p50", tail))
        if (figure := load.row.figure(f"{kind}_{percentile}")) is not None
    ]
    if not values:
        return None
    limits = sorted({one.slo[kind] / MS for load in loads if (one := load.row.record.load) and kind in one.slo})
    scale = latency_scale([value["latency"] for value in values] + limits)
    amounts = sorted({value["load"] for value in values})
    axis: Spec = {"values": amounts, "labelOverlap": "greedy", "format": "~g"} if is_users else {}
    x_scale: Spec = {"type": "log", "base": 2, "nice": False, "padding": 12} if is_users else {"zero": True}
    x = quantity("load", "users" if is_users else "requests/s", x_scale, grid=False, **axis)
    y = quantity("latency", f"{LATENCIES[kind].lower()}, ms", scale["scale"], **{"tickCount": 5} | scale["axis"])
    place = {"x": x, "y": y, "color": coloured(names)}
    dash: Spec = {"condition": {"test": "datum.percentile == 'p50'", "value": [2, 3]}, "value": [1, 0]}
    line = place | {"strokeDash": dash, "detail": {"field": "percentile"}, "order": {"field": "load"}}
    interval = place | {"y": quantity("low"), "y2": {"field": "high"}}
    layers = [
        *slo_lines(limits, ""),
        layer("rule", interval, where="isValid(datum.low)", strokeWidth=7, opacity=0.3),
        layer("line", line, strokeWidth=2, strokeJoin="round"),
        layer("point", place, filled=True, size=40, opacity=1),
    ]
    words = f"solid {tail}, dotted p50; bars are intervals of 95 %" if tail != "p50" else "p50"
    title = f"{LATENCIES[kind]} over load"
    return Chart(
        spec=framed(title, shared, words, values=values, width=WIDTH, height=230, layer=layers),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{value['case']} {value['text']}: {value['percentile']} {show_value(value['latency'] * MS, 's')}"
            for value in values
        ),
    )


def over_time(row: CaseRow) -> Chart | None:
    """Latencies next to what the server reported of itself, below each other on one axis of time."""
    load = row.record.load
    by_name = group_by(load.series if load is not None else (), lambda one: one.name)
    if load is None or not by_name.keys() & set(_SERIES):  # latencies alone have their charts over load
        return None
    begins: list[Spec] = [
        {"second": one.begun, "text": load_name(one.at, is_users=load.sweep != "rate")} for one in load.loads
    ]
    end = max(second for one in load.series for second in one.seconds)
    parts = {title: {name: by_name[name] for name in names if name in by_name} for title, names in _OVER_TIME.items()}
    shown = [(title, series) for title, series in parts.items() if series]
    last = shown[-1][0]
    panels = [_panel(title, series, end, begins, is_last=title == last) for title, series in shown]
    title = "Latencies and the server over time"
    means = [
        f"{words} {show_value(figure.value, figure.unit)} on average"
        for name, words in _SERIES.items()
        if (figure := row.figure(name)) is not None
    ]
    about = "a line begins each load" if begins else ""
    return Chart(
        spec=framed(title, one_line(row.label), about, vconcat=panels, spacing=16),
        title=f"{title}: {one_line(row.label)}",
        description="; ".join(means),
    )


def _panel(
    title: str, series: dict[str, list[LoadSeries]], end: float, begins: Sequence[Spec], *, is_last: bool
) -> Spec:
    first = next(iter(series.values()))[0]
    scale, unit = axis_scale(first.unit, max(max(one.values) for parts in series.values() for one in parts))
    names = [_SERIES.get(name, humanize(name)) for name in series]
    values: list[Spec] = [
        {"second": second, "value": value / scale, "case": name, "part": part}
        for name, parts in zip(names, series.values(), strict=True)
        for part, one in enumerate(parts)
        for second, value in zip(one.seconds, one.values, strict=True)
    ]
    seconds: Spec = {"grid": False, "labels": is_last, "ticks": is_last, "domain": is_last}
    x = quantity("second", "seconds" if is_last else None, {"domain": [0, end], "nice": False}, **seconds)
    y = quantity("value", unit, {"zero": True, "nice": True}, tickCount=3)
    colour = coloured(names, (ACCENT, LINES[1]), style=_STROKES)
    line = {"x": x, "y": y, "color": colour, "detail": {"field": "part"}}
    steps = "monotone" if first.unit == "s" else "step-after"
    layers = [layer("rule", {"x": quantity("second")}, begins, color=GRID)] if begins else []
    layers.append(layer("line", line, values, strokeWidth=1.5, interpolate=steps, clip=True))
    if begins and first.name == "time_to_first_token":
        style: Spec = {"align": "left", "baseline": "top", "dx": 3, "color": MUTED, "fontSize": 11}
        layers.append(layer("text", {"x": quantity("second"), "y": {"value": 0}, "text": TEXT}, begins, **style))
    head = {"text": heading(title or " and ".join(names)), "anchor": "start", "fontSize": 12, "fontWeight": "normal"}
    resolve: Spec = {"scale": {"color": "independent"}}
    return {"title": head | {"offset": 4}, "width": WIDTH, "height": 70, "layer": layers, "resolve": resolve}


def _names(curves: Sequence[TokenCurve]) -> tuple[list[str], str]:
    """What tells the curves apart, and the words that they share."""
    words = [[one_line(load.row.label) for load in curve] for curve in curves]
    labels = [told_apart(one)[0] or one[0] for one in words]
    if len(set(labels)) < len(labels):
        labels = [f"{label} [{place}]" for place, label in enumerate(labels, start=1)]
    shared, names = told_apart(labels) if labels else ("", [])
    return names, shared
