"""Charts of served models: latency over load and of every request, what it is made of, and what it costs.

Of language models tokens in total against tokens for each user, latencies over load and over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap

from paceline.analysis import serving
from paceline.analysis.serving import (
    BETWEEN,
    FIRST,
    JOULES,
    PER_USER,
    USD,
    Curve,
    Load,
    TokenCurve,
    TokenLoad,
    each_load,
    load_name,
    makes_tokens,
    tail_of,
    token_curves,
)
from paceline.analysis.summary import CaseRow
from paceline.core.grouping import group_by
from paceline.core.quantity import show_count
from paceline.core.subject import REQUEST_STAGES, LoadSeries
from paceline.report.charts import (
    ACCENT,
    GRID,
    INK,
    LINES,
    MUTED,
    TEXT,
    WIDTH,
    Chart,
    Spec,
    coloured,
    framed,
    latency_scale,
    layer,
    parted,
    plane_beside,
    quantity,
    slo_lines,
    stacked_bars,
    ticks,
)
from paceline.report.text import MS, axis_scale, heading, humanize, one_line, show_figure, show_value, told_apart
from paceline.report.text import share as share_of

PANEL, PANELS_ABREAST, MOST_PANELS = 300, 3, 12

# Waiting is warm, computing is the accent, the client's own part is grey.
_COLOURS = (LINES[7], MUTED, LINES[5], LINES[3], LINES[6], LINES[1], LINES[4], ACCENT, LINES[2], LINES[7])
_STAGE_COLOURS = dict(zip(REQUEST_STAGES, _COLOURS, strict=True))


def stages(rows: Sequence[CaseRow]) -> Chart | None:
    """The mean time of a request, cut into its parts."""
    cases = [(row, times) for row in rows if (times := serving.stages(row))]
    if not cases:
        return None
    shared, names = _named([row for row, _ in cases])
    totals = [sum(figure.value for figure in times.values()) for _, times in cases]
    scale, unit = axis_scale("s", max(totals))
    kinds = sorted({kind for _, times in cases for kind in times}, key=_stage_place)
    values: list[Spec] = [
        {"case": name, "stage": stage, "place": _stage_place(stage)[0], "value": figure.value / scale}
        for name, (_, times) in zip(names, cases, strict=True)
        for stage, figure in times.items()
    ]
    ends = [
        {"case": name, "end": total / scale, "text": show_value(total, "s")}
        for name, total in zip(names, totals, strict=True)
    ]
    colour = coloured(kinds, [_STAGE_COLOURS.get(kind, LINES[7]) for kind in kinds], field="stage")
    layers = stacked_bars(values, ends, {}, colour, is_named=True)
    title = "Where the time of a request goes"
    width = plane_beside(names, [show_value(total, "s") for total in totals])
    return Chart(
        spec=framed(
            title,
            shared,
            f"mean, {unit}",
            width=width,
            height={"step": 28},
            layer=layers,
        ),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{name}: " + ", ".join(f"{stage} {show_value(figure.value, 's')}" for stage, figure in times.items())
            for name, (_, times) in zip(names, cases, strict=True)
        ),
    )


def batches(rows: Sequence[CaseRow]) -> Chart | None:
    """The sizes of the batches that formed, a panel for each case; where each has one size, there is nothing to see."""
    served = [(row, shares) for row in rows if (shares := serving.batches(row))]
    if not any(len(shares) > 1 for _, shares in served):
        return None
    shared, names = _named([row for row, _ in served])
    largest = max(size for _, shares in served for size in shares)
    highest = max(share for _, shares in served for share in shares.values())
    panels = [
        _panel(name, shares, largest, highest, first=place % PANELS_ABREAST == 0)
        for place, (name, (_, shares)) in enumerate(zip(names[:MOST_PANELS], served, strict=False))
    ]
    left = len(served) - len(panels)
    title = "Batches that formed"
    about = (shared, "part of the batches, %, by their size")
    return Chart(
        spec=framed(title, *about, concat=panels, columns=PANELS_ABREAST, spacing={"column": 24, "row": 18}),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{name}: " + ", ".join(f"{share_of(share / 100)} of {size}" for size, share in shares.items())
            for name, (_, shares) in zip(names, served, strict=True)
        ),
        notes=(f"{left} more {'case has' if left == 1 else 'cases have'} theirs below, in full.",) if left > 0 else (),
    )


def _panel(name: str, shares: Mapping[int, float], largest: int, highest: float, *, first: bool) -> Spec:
    style = {"anchor": "start", "fontSize": 12, "fontWeight": "normal", "limit": PANEL, "offset": 6}
    width: Spec = {"domain": [0.4, largest + 0.6], "nice": False}
    height: Spec = {"domain": [0, 1.15 * highest], "nice": False}  # room, so that no label stands as high as the title
    encoding = {
        "x": quantity("from", None, width, grid=False, tickMinStep=1, tickCount=8, format="d"),
        "x2": {"field": "to"},
        "y": quantity("share", None, height, tickCount=3, labels=first, ticks=first, domain=False),
        "y2": {"datum": 0},
    }
    values = [{"from": size - 0.42, "to": size + 0.42, "share": share} for size, share in shares.items()]
    title = {"text": wrap(name, 32)[:2] or "", **style}
    return {"title": title, "width": PANEL, "height": 84} | layer("rect", encoding, values, color=ACCENT)


def _named(rows: Sequence[CaseRow]) -> tuple[str, list[str]]:
    """The labels next to bars: the words that only one case has, or nothing where there is one case."""
    shared, names = told_apart([one_line(row.label) for row in rows])
    return (shared, [""]) if len(names) == 1 else (shared, names)


def _stage_place(stage: str) -> tuple[int, str]:
    return (REQUEST_STAGES.index(stage), "") if stage in REQUEST_STAGES else (len(REQUEST_STAGES), stage)


PERCENTILES = (50, 90, 99)
OTHERS = "others"
_STROKES: Spec = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolSize": 160}


def glance(rows: Sequence[CaseRow]) -> list[Chart]:
    """What to see first: how latency grows with the load."""
    charts: list[Chart | None] = []
    for group in serving.by_model(rows):
        charts += token_glance(group) if any(map(makes_tokens, group)) else [over_load(group)]
    return [chart for chart in charts if chart is not None]


def details(rows: Sequence[CaseRow]) -> list[Chart]:
    """All other charts, those of one model after those of another."""
    charts: list[Chart | None] = []
    for group in serving.by_model(rows):
        charts += [distributions(part, which) for part, which in parted(each_load(group))]
        if any(map(makes_tokens, group)):
            charts += token_details(group)
        else:
            charts += [stages(group), batches(group), cost(group)]
    return [chart for chart in charts if chart is not None]


def over_load(rows: Sequence[CaseRow]) -> Chart | None:
    """Median and tail of the latency over throughput, a colour for each server, with the SLO and the capacity."""
    curves = serving.curves(rows)[: len(LINES)]
    if not curves:
        return None
    slos = {name: limit for row in rows for name, limit in serving.slo(row).items()}
    tail = serving.shared_tail([load for curve in curves for load in curve.loads], list(reversed(slos)))
    shared, names = told_apart([_words_of(curve) for curve in curves])
    values = [
        point
        for name, curve in zip(names, curves, strict=True)
        for load in curve.loads
        for point in _points(name, load, tail, searched=curve.capacity is not None)
    ]
    bounds = sorted({limit for row in rows if (limit := serving.slo(row).get(tail))})
    scale = latency_scale([value["latency"] for value in values] + [limit / MS for limit in bounds])
    x = quantity("throughput", "throughput, requests/s", {"zero": True, "nice": True}, grid=False, tickCount=8)
    y = quantity("latency", "latency, ms", scale["scale"], **{"tickCount": 5} | scale["axis"])
    place = {"x": x, "y": y, "color": coloured(names)}
    dash: Spec = {"condition": {"test": "datum.percentile == 'p50'", "value": [2, 3]}, "value": [1, 0]}
    line = place | {"strokeDash": dash, "detail": {"field": "percentile"}, "order": {"field": "offered"}}
    point = place | {
        "size": {"condition": {"test": "datum.trial", "value": 22}, "value": 40},
        "opacity": {"condition": {"test": "datum.percentile == 'p50'", "value": 0.55}, "value": 1},
    }
    layers = [
        *slo_lines([limit / MS for limit in bounds], tail),
        # The trials of a search crowd where it ends: a line through them is only to guide the eye.
        layer("line", line, where="datum.searched", strokeJoin="round", strokeWidth=1, opacity=0.5),
        layer("line", line, where="!datum.searched", strokeJoin="round", strokeWidth=2, opacity=1),
        layer("point", point, filled=True),
        *_capacities(names, curves, tail, place["color"]),
    ]
    title = "Latency over throughput"
    lines = f"solid {tail}, dotted p50" if tail != "p50" else "p50"
    note = "Small points are trials of a search; a diamond is the capacity with its interval."
    return Chart(
        spec=framed(title, shared, lines, values=values, width=WIDTH, height=270, layer=layers),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(_describe(name, curve, tail) for name, curve in zip(names, curves, strict=True)),
        notes=(note,) if any(value["trial"] for value in values) else (),
    )


def distributions(rows: Sequence[CaseRow], part: str = "") -> Chart | None:
    """Which part of the requests was answered within which time."""
    cases = [(row, curve) for row in rows if (curve := serving.distribution(row))]
    if not cases:
        return None
    shared, names = told_apart([one_line(row.label) for row, _ in cases])
    values: list[Spec] = []
    for name, (_, curve) in zip(names, cases, strict=True):
        pairs = zip(curve.seconds, curve.parts, strict=True)
        values += [{"latency": seconds / MS, "part": 100 * share, "case": name} for seconds, share in pairs]
    bounds = sorted({limit for row, _ in cases for limit in list(serving.slo(row).values())[-1:]})
    spanned = [value["latency"] for value in values] + [limit / MS for limit in bounds]
    low, high = 0.9 * min(spanned), 1.1 * max(spanned)
    scale: Spec = {"type": "log", "domain": [low, high], "nice": False}
    x = quantity("latency", "latency, ms", scale, grid=False, **ticks(low, high))
    style = {"labelExpr": "'p' + datum.value", "labelPadding": 6, "gridDash": [3, 3], "gridColor": GRID}
    y = quantity("part", "requests answered", {"domain": [0, 100]}, values=list(PERCENTILES), **style)
    line = {"x": x, "y": y, "color": coloured(names, style=_STROKES), "order": {"field": "part"}}
    layers = [
        *slo_lines([limit / MS for limit in bounds], "", upright_at=250),
        layer("line", line, values, strokeWidth=2, interpolate="step-after", clip=True),
    ]
    title = f"How long requests took{part}"
    return Chart(
        spec=framed(title, shared, "further left is better", width=WIDTH, height=250, layer=layers),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{name}: "
            + ", ".join(
                f"p{percentile} {show_value(figure.value, 's')}"
                for percentile in PERCENTILES
                if (figure := row.figure(f"latency_p{percentile}"))
            )
            for name, (row, _) in zip(names, cases, strict=True)
        ),
    )


def cost(rows: Sequence[CaseRow]) -> Chart | None:
    """What a thousand requests cost over their latency; settings that no other one beats have a colour."""
    percentile, offers = serving.offers(rows)
    if not offers:
        return None
    shared, own = told_apart([one_line(offer.row.label) for offer in offers])
    front = [name for name, offer in zip(own, offers, strict=True) if offer.on_front]
    is_named = len(front) <= len(LINES)
    values: list[Spec] = [
        {"latency": offer.latency / MS, "cost": offer.cost, "front": offer.on_front,
         "case": (name if is_named else "not beaten") if offer.on_front else OTHERS}
        for name, offer in zip(own, offers, strict=True)
    ]  # fmt: skip
    names = list(dict.fromkeys(value["case"] for value in sorted(values, key=lambda value: not value["front"])))
    colours = [MUTED if name == OTHERS else LINES[place] for place, name in enumerate(names)]
    scale = latency_scale([value["latency"] for value in values])
    title = "Cost over latency"
    hint = f"further left and lower is better; coloured: none is better in {percentile}, throughput and cost together"
    axis: Spec = {"grid": False, "tickCount": 8} | scale["axis"]
    x = quantity("latency", f"{percentile} latency, ms", scale["scale"], **axis)
    y = quantity("cost", "USD for a thousand requests", {"zero": True}, tickCount=5, format="~g")
    place = {"x": x, "y": y, "color": coloured(names, colours)}
    points = layer("point", place, values, filled=True, size=90, opacity=1)
    return Chart(
        spec=framed(title, shared, hint, lines=True, width=WIDTH, height=230, **points),
        title=f"{title}: {shared or own[0]}",
        description="; ".join(
            f"{name}: {show_value(offer.latency, 's')}, {offer.cost:.3g} USD" + (", not beaten" * offer.on_front)
            for name, offer in zip(own, offers, strict=True)
        ),
        notes=() if is_named else (f"No other setting beats: {', '.join(front)}.",),
    )


def _points(name: str, load: Load, tail: str, *, searched: bool) -> list[Spec]:
    return [
        {
            "throughput": load.throughput,
            "offered": load.offered,
            "latency": load.percentiles[percentile] / MS,
            "percentile": percentile,
            "trial": load.is_trial,
            "searched": searched,
            "case": name,
        }
        for percentile in dict.fromkeys(("p50", tail))
        if percentile in load.percentiles
    ]


def _capacities(names: Sequence[str], curves: Sequence[Curve], tail: str, colour: Spec) -> list[Spec]:
    """A diamond where each searched server meets its SLO, with the interval of its capacity."""
    values: list[Spec] = []
    for name, curve in zip(names, curves, strict=True):
        limit = next((limit for row in curve.rows if (limit := serving.slo(row).get(tail))), None)
        figure = curve.capacity
        if figure is not None and limit is not None:
            low, high = (figure.interval.low, figure.interval.high) if figure.interval else (figure.value, figure.value)
            values.append({"case": name, "at": figure.value, "low": low, "high": high, "limit": limit / MS})
    if not values:
        return []
    place = {"y": quantity("limit"), "color": colour}
    return [
        layer("rule", place | {"x": quantity("low"), "x2": {"field": "high"}}, values, strokeWidth=3),
        layer("point", place | {"x": quantity("at")}, values, shape="diamond", filled=True, size=150, opacity=1),
    ]


def _words_of(curve: Curve) -> str:
    """The words that all cases of a curve share; its rates are on the axis."""
    labels = [one_line(row.label) for row in curve.rows]
    shared, _ = told_apart(labels)
    return shared or labels[0]


def _describe(name: str, curve: Curve, tail: str) -> str:
    loads = ", ".join(
        f"{show_count(load.throughput)}/s {show_value(load.percentiles[tail], 's')}"
        for load in curve.loads
        if tail in load.percentiles
    )
    capacity = f", capacity {show_figure(curve.capacity)}" if curve.capacity else ""
    return f"{name}: {tail} at {loads}{capacity}"


LATENCIES = {FIRST: "Time to first token", BETWEEN: "Time between tokens"}
_SERIES = {"server_running": "running", "server_queue": "waiting", "kv_cache_use": "KV cache"}
_SERIES |= {"accepted_drafts": "accepted drafts"}
_OVER_TIME = {  # panels, and the series that stand together in each
    "time to first token": ("time_to_first_token",),
    "time between tokens": ("inter_token_latency",),
    "requests in the server": ("server_running", "server_queue"),
    "": ("kv_cache_use", "accepted_drafts"),
}


def token_glance(rows: Sequence[CaseRow]) -> list[Chart]:
    """What to see first: the trade-off, and the latencies over load."""
    curves = token_curves(rows)[: len(LINES)]
    drawn = [trade_off(curves), *(wait_over_load(curves, kind) for kind in LATENCIES)]
    return [chart for chart in drawn if chart is not None]


def token_details(rows: Sequence[CaseRow]) -> list[Chart]:
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


def wait_over_load(curves: Sequence[TokenCurve], kind: str) -> Chart | None:
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
    panels = [_time_panel(title, series, end, begins, is_last=title == last) for title, series in shown]
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


def _time_panel(
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
