"""Charts of served models: latency over load and of every request, what it is made of, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.analysis import serving
from paceline.analysis.serving import Curve, Load
from paceline.analysis.summary import Row
from paceline.core.quantity import show_count
from paceline.report.charts import (
    GRID,
    INK,
    LINES,
    MS,
    MUTED,
    WIDTH,
    Chart,
    Spec,
    coloured,
    framed,
    latency_scale,
    ticks,
)
from paceline.report.numbers import show_figure, show_value
from paceline.report.run import serving_bars
from paceline.report.text import one_line, told_apart

PERCENTILES = (50, 90, 99)
OTHERS = "others"
_STROKES: Spec = {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolSize": 160}


def glance(rows: Sequence[Row]) -> list[Chart]:
    """What to see first: how latency grows with the load."""
    return [chart for group in serving.by_model(rows) if (chart := over_load(group))]


def details(rows: Sequence[Row]) -> list[Chart]:
    """All other charts, those of one model after those of another."""
    found: list[Chart | None] = []
    for group in serving.by_model(rows):
        parts = [group[start : start + len(LINES)] for start in range(0, len(group), len(LINES))]
        found += [distributions(part, _part(place, len(parts))) for place, part in enumerate(parts, start=1)]
        found += [serving_bars.stages(group), serving_bars.batches(group), cost(group)]
    return [chart for chart in found if chart is not None]


def over_load(rows: Sequence[Row]) -> Chart | None:
    """Median and tail of the latency over throughput, a colour for each server, with the promise and the capacity."""
    curves = serving.curves(rows)[: len(LINES)]
    if not curves:
        return None
    promised = {name: limit for row in rows for name, limit in serving.promises(row).items()}
    tail = serving.shared_tail([load for curve in curves for load in curve.loads], list(reversed(promised)))
    shared, names = told_apart([_words_of(curve) for curve in curves])
    values = [
        point for name, curve in zip(names, curves, strict=True) for load in curve.loads
        for point in _points(name, load, tail, searched=curve.capacity is not None)
    ]  # fmt: skip
    bounds = sorted({limit for row in rows if (limit := serving.promises(row).get(tail))})
    scale = latency_scale([value["latency"] for value in values] + [limit / MS for limit in bounds])
    x: Spec = {
        "field": "throughput",
        "type": "quantitative",
        "scale": {"zero": True, "nice": True},
        "axis": {"title": "throughput, requests/s", "grid": False, "tickCount": 8},
    }
    y: Spec = {"field": "latency", "type": "quantitative", **scale}
    y["axis"] = {"title": "latency, ms", "tickCount": 5} | scale["axis"]
    colour = coloured(names)
    dash: Spec = {"condition": {"test": "datum.percentile == 'p50'", "value": [2, 3]}, "value": [1, 0]}
    layers: list[Spec] = [*_bounds(bounds, tail, across=True)]
    # The trials of a search crowd where it ends: a line through them is only to guide the eye.
    layers += [
        {
            "transform": [{"filter": f"{'' if guide else '!'}datum.searched"}],
            "mark": {"type": "line", "strokeJoin": "round", "strokeWidth": 1 if guide else 2,
                     "opacity": 0.5 if guide else 1},
            "encoding": {
                "x": x, "y": y, "color": colour, "strokeDash": dash, "detail": {"field": "percentile"},
                "order": {"field": "offered"},
            },
        }
        for guide in (True, False)
    ]  # fmt: skip
    layers += [
        {
            "mark": {"type": "point", "filled": True},
            "encoding": {
                "x": x, "y": y, "color": colour,
                "size": {"condition": {"test": "datum.trial", "value": 22}, "value": 40},
                "opacity": {"condition": {"test": "datum.percentile == 'p50'", "value": 0.55}, "value": 1},
            },
        },
        *_capacities(names, curves, tail, colour),
    ]  # fmt: skip
    title = "Latency over throughput"
    told = [f"solid {tail}, dotted p50" if tail != "p50" else "p50"]
    notes = []
    if any(value["trial"] for value in values):
        notes.append("Small points are trials of a search; a diamond is the capacity with its interval.")
    return Chart(
        spec=framed(title, "; ".join(part for part in (shared, *told) if part), {
            "data": {"values": values}, "width": WIDTH, "height": 270, "layer": layers,
        }),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(_told(name, curve, tail) for name, curve in zip(names, curves, strict=True)),
        notes=tuple(notes),
    )  # fmt: skip


def distributions(rows: Sequence[Row], part: str = "") -> Chart | None:
    """Which part of the requests was answered within which time."""
    told = [(row, found) for row in rows if (found := serving.distribution(row))]
    if not told:
        return None
    shared, names = told_apart([one_line(row.label) for row, _ in told])
    values: list[Spec] = []
    for name, (_, found) in zip(names, told, strict=True):
        pairs = zip(found.seconds, found.parts, strict=True)
        values += [{"latency": seconds / MS, "part": 100 * share, "case": name} for seconds, share in pairs]
    bounds = sorted({limit for row, _ in told for limit in list(serving.promises(row).values())[-1:]})
    spanned = [value["latency"] for value in values] + [limit / MS for limit in bounds]
    low, high = 0.9 * min(spanned), 1.1 * max(spanned)
    x: Spec = {
        "field": "latency",
        "type": "quantitative",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"title": "latency, ms", "grid": False, **ticks(low, high)},
    }
    y: Spec = {"field": "part", "type": "quantitative", "scale": {"domain": [0, 100]}}
    y["axis"] = {"title": "requests answered", "values": list(PERCENTILES), "labelExpr": "'p' + datum.value",
                 "labelPadding": 6, "gridDash": [3, 3], "gridColor": GRID}  # fmt: skip
    title = f"How long requests took{part}"
    return Chart(
        spec=framed(title, "; ".join(word for word in (shared, "further left is better") if word), {
            "width": WIDTH,
            "height": 250,
            "layer": [
                *_bounds(bounds, "", across=False),
                {
                    "data": {"values": values},
                    "mark": {"type": "line", "strokeWidth": 2, "interpolate": "step-after", "clip": True},
                    "encoding": {"x": x, "y": y, "color": coloured(names, style=_STROKES), "order": {"field": "part"}},
                },
            ],
        }),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{name}: " + ", ".join(f"{p} {show_value(f.value, 's')}" for p in ("p50", "p90", "p99")
                                    if (f := serving.percentile(row, p)))
            for name, (row, _) in zip(names, told, strict=True)
        ),
    )  # fmt: skip


def cost(rows: Sequence[Row]) -> Chart | None:
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
    told = f"further left and lower is better; coloured: none is better in {percentile}, throughput and cost together"
    return Chart(
        spec=framed(title, [part for part in (shared, told) if part], {
            "data": {"values": values},
            "width": WIDTH,
            "height": 230,
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {
                "x": {"field": "latency", "type": "quantitative", **scale,
                      "axis": {"title": f"{percentile} latency, ms", "grid": False, "tickCount": 8} | scale["axis"]},
                "y": {"field": "cost", "type": "quantitative", "scale": {"zero": True},
                      "axis": {"title": "USD for a thousand requests", "tickCount": 5, "format": "~g"}},
                "color": coloured(names, colours),
            },
        }),
        title=f"{title}: {shared or own[0]}",
        description="; ".join(
            f"{name}: {show_value(offer.latency, 's')}, {offer.cost:.3g} USD" + (", not beaten" * offer.on_front)
            for name, offer in zip(own, offers, strict=True)
        ),
        notes=() if is_named else (f"No other setting beats: {', '.join(front)}.",),
    )  # fmt: skip


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


def _bounds(limits: Iterable[float], percentile: str, *, across: bool) -> list[Spec]:
    """The promised latencies: lines across where latency is the height, else upright."""
    values = [
        {"limit": limit / MS, "text": f"{percentile} ≤ {show_value(limit, 's')}".removeprefix(" ≤ ")}
        for limit in limits
    ]
    if not values:
        return []
    place: Spec = {"field": "limit", "type": "quantitative"}
    rule = {
        "mark": {"type": "rule", "color": INK, "strokeDash": [5, 4], "opacity": 0.75},
        "encoding": {"y" if across else "x": place},
    }
    style = {"type": "text", "color": INK, "fontSize": 12, "align": "left"}
    text: Spec = {
        "mark": style
        | ({"baseline": "bottom", "dy": -4, "dx": 6} if across else {"baseline": "bottom", "dx": 5, "dy": -6}),
        "encoding": {
            "text": {"field": "text", "type": "nominal"},
            **({"y": place, "x": {"value": 0}} if across else {"x": place, "y": {"value": 250}}),
        },
    }
    return [{"data": {"values": values}} | rule, {"data": {"values": values}} | text]


def _capacities(names: Sequence[str], curves: Sequence[Curve], tail: str, colour: Spec) -> list[Spec]:
    """A diamond where each searched server meets its promise, with the interval of its capacity."""
    values: list[Spec] = []
    for name, curve in zip(names, curves, strict=True):
        limit = next((limit for row in curve.rows if (limit := serving.promises(row).get(tail))), None)
        figure = curve.capacity
        if figure is not None and limit is not None:
            low, high = (figure.interval.low, figure.interval.high) if figure.interval else (figure.value, figure.value)
            values.append({"case": name, "at": figure.value, "low": low, "high": high, "limit": limit / MS})
    if not values:
        return []
    y: Spec = {"field": "limit", "type": "quantitative"}
    return [
        {
            "data": {"values": values},
            "mark": {"type": "rule", "strokeWidth": 3},
            "encoding": {
                "x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}, "y": y, "color": colour
            },
        },
        {
            "data": {"values": values},
            "mark": {"type": "point", "shape": "diamond", "filled": True, "size": 150, "opacity": 1},
            "encoding": {"x": {"field": "at", "type": "quantitative"}, "y": y, "color": colour},
        },
    ]  # fmt: skip


def _words_of(curve: Curve) -> str:
    """The words that all cases of a curve share; its rates are on the axis."""
    labels = [one_line(row.label) for row in curve.rows]
    shared, _ = told_apart(labels)
    return shared or labels[0]


def _told(name: str, curve: Curve, tail: str) -> str:
    loads = ", ".join(
        f"{show_count(load.throughput)}/s {show_value(load.percentiles[tail], 's')}"
        for load in curve.loads
        if tail in load.percentiles
    )
    capacity = f", capacity {show_figure(curve.capacity)}" if curve.capacity else ""
    return f"{name}: {tail} at {loads}{capacity}"


def _part(place: int, of: int) -> str:
    return f" ({place} of {of})" if of > 1 else ""
