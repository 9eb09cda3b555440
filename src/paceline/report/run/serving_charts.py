"""Charts of served models: latency over load and of every request, what it is made of, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap

from paceline.analysis import serving
from paceline.analysis.serving import Curve, Load
from paceline.analysis.summary import CaseRow
from paceline.core.quantity import show_count
from paceline.core.subject import REQUEST_STAGES
from paceline.report.charts import (
    ACCENT,
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
    names_axis,
    ticks,
    words_beside,
)
from paceline.report.numbers import axis_scale, show_figure, show_value
from paceline.report.numbers import share as share_of
from paceline.report.text import one_line, told_apart

PANEL, PANELS_ABREAST, MOST_PANELS = 204, 3, 12

# Waiting is warm, computing is the accent, the client's own part is grey.
_STAGE_COLOURS = dict(
    zip(
        REQUEST_STAGES,
        (LINES[7], MUTED, LINES[5], LINES[3], LINES[6], LINES[1], LINES[4], ACCENT, LINES[2], LINES[7]),
        strict=True,
    )
)


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
    ends = [{"case": name, "total": total / scale, "text": show_value(total, "s")}
            for name, total in zip(names, totals, strict=True)]  # fmt: skip
    y = names_axis()
    colours = [_STAGE_COLOURS.get(kind, LINES[7]) for kind in kinds]
    title = "Where the time of a request goes"
    return Chart(
        spec=framed(title, "; ".join(word for word in (shared, f"mean, {unit}") if word), {
            "width": 540,
            "height": {"step": 28},
            "layer": [
                {
                    "data": {"values": values},
                    "mark": {"type": "bar", "height": 16},
                    "encoding": {
                        "y": y,
                        "x": {"field": "value", "type": "quantitative", "stack": "zero", "axis": None},
                        "order": {"field": "place"},
                        "color": coloured(kinds, colours, field="stage"),
                    },
                },
                {"data": {"values": ends}}
                | words_beside(y, {"field": "total", "type": "quantitative", "axis": None}),
            ],
        }),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{name}: " + ", ".join(f"{stage} {show_value(figure.value, 's')}" for stage, figure in times.items())
            for name, (_, times) in zip(names, cases, strict=True)
        ),
    )  # fmt: skip


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
    return Chart(
        spec=framed(title, "; ".join(word for word in (shared, "part of the batches, %, by their size") if word), {
            "concat": panels, "columns": PANELS_ABREAST, "spacing": {"column": 24, "row": 18},
        }),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(
            f"{name}: " + ", ".join(f"{share_of(share / 100)} of {size}" for size, share in shares.items())
            for name, (_, shares) in zip(names, served, strict=True)
        ),
        notes=(f"{left} more {'case has' if left == 1 else 'cases have'} theirs below, in full.",) if left > 0 else (),
    )  # fmt: skip


def _panel(name: str, shares: Mapping[int, float], largest: int, highest: float, *, first: bool) -> Spec:
    return {
        "title": {
            "text": wrap(name, 32)[:2] or "",
            "anchor": "start",
            "fontSize": 12,
            "fontWeight": "normal",
            "limit": PANEL,
            "offset": 6,
        },
        "width": PANEL,
        "height": 84,
        "data": {
            "values": [{"from": size - 0.42, "to": size + 0.42, "share": share} for size, share in shares.items()]
        },
        "mark": {"type": "rect", "color": ACCENT},
        "encoding": {
            "x": {
                "field": "from",
                "type": "quantitative",
                "scale": {"domain": [0.4, largest + 0.6], "nice": False},
                "axis": {"title": None, "grid": False, "tickMinStep": 1, "tickCount": 8, "format": "d"},
            },
            "x2": {"field": "to"},
            "y": {
                "field": "share",
                "type": "quantitative",
                "scale": {
                    "domain": [0, 1.15 * highest],
                    "nice": False,
                },  # room, so that no label stands as high as the title
                "axis": {"title": None, "tickCount": 3, "labels": first, "ticks": first, "domain": False},
            },
            "y2": {"datum": 0},
        },
    }


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
    return [chart for group in serving.by_model(rows) if (chart := over_load(group))]


def details(rows: Sequence[CaseRow]) -> list[Chart]:
    """All other charts, those of one model after those of another."""
    found: list[Chart | None] = []
    for group in serving.by_model(rows):
        parts = [group[start : start + len(LINES)] for start in range(0, len(group), len(LINES))]
        found += [distributions(part, _part(place, len(parts))) for place, part in enumerate(parts, start=1)]
        found += [stages(group), batches(group), cost(group)]
    return [chart for chart in found if chart is not None]


def over_load(rows: Sequence[CaseRow]) -> Chart | None:
    """Median and tail of the latency over throughput, a colour for each server, with the SLO and the capacity."""
    curves = serving.curves(rows)[: len(LINES)]
    if not curves:
        return None
    slos = {name: limit for row in rows for name, limit in serving.slo(row).items()}
    tail = serving.shared_tail([load for curve in curves for load in curve.loads], list(reversed(slos)))
    shared, names = told_apart([_words_of(curve) for curve in curves])
    values = [
        point for name, curve in zip(names, curves, strict=True) for load in curve.loads
        for point in _points(name, load, tail, searched=curve.capacity is not None)
    ]  # fmt: skip
    bounds = sorted({limit for row in rows if (limit := serving.slo(row).get(tail))})
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
    lines = f"solid {tail}, dotted p50" if tail != "p50" else "p50"
    notes = []
    if any(value["trial"] for value in values):
        notes.append("Small points are trials of a search; a diamond is the capacity with its interval.")
    return Chart(
        spec=framed(title, "; ".join(part for part in (shared, lines) if part), {
            "data": {"values": values}, "width": WIDTH, "height": 270, "layer": layers,
        }),
        title=f"{title}: {shared or names[0]}",
        description="; ".join(_describe(name, curve, tail) for name, curve in zip(names, curves, strict=True)),
        notes=tuple(notes),
    )  # fmt: skip


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
                                    if (f := row.figure(f"latency_{p}")))
            for name, (row, _) in zip(names, cases, strict=True)
        ),
    )  # fmt: skip


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
    return Chart(
        spec=framed(title, [part for part in (shared, hint) if part], {
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
    """The latencies of the SLO: lines across where latency is the height, otherwise upright."""
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


def _describe(name: str, curve: Curve, tail: str) -> str:
    loads = ", ".join(
        f"{show_count(load.throughput)}/s {show_value(load.percentiles[tail], 's')}"
        for load in curve.loads
        if tail in load.percentiles
    )
    capacity = f", capacity {show_figure(curve.capacity)}" if curve.capacity else ""
    return f"{name}: {tail} at {loads}{capacity}"


def _part(place: int, of: int) -> str:
    return f" ({place} of {of})" if of > 1 else ""
