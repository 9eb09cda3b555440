"""Where every node stands in each metric: a strip of dots around the baseline, defective nodes named."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.diagnose.judge import Diagnosis, Judged
from paceline.report.charts import TEXT, Chart, layer, quantity
from paceline.report.style import ACCENT, COLUMN, CONFIG, GRID, INK, MUTED, Spec
from paceline.report.text import change, one_line, show_value

STRIPS = 12  # metrics that one chart shows
AT_LEAST = 6  # metrics that it shows for comparison, where fewer have defects
LONGEST_NAME = 64  # signs of a metric's name; its middle is left out
DOTS = 120  # healthy nodes that one strip shows
NAMES = 3  # defective nodes that one strip names
BAND = 2.0  # deviations on each side of the baseline
FARTHEST = 0.6  # change beyond which a dot is drawn at the edge
BAD = "#b4451f"  # the page's second line colour


def strips(diagnosis: Diagnosis) -> Chart | None:
    """The metrics with defects, the worst first; without any, those in which nodes differ most."""
    accused = accused_in(diagnosis)
    chosen = _chosen(diagnosis, accused)
    if not chosen:
        return None
    edges = _edges(chosen)
    rows = _names(chosen)
    bands, limits, dots, marks, texts = [], [], [], [], []
    thinned = 0
    for one, row in zip(chosen, rows, strict=True):
        spread = BAND * one.spread if math.isfinite(one.spread) else 0.0
        bands.append({"row": row, "low": _at(-spread, edges), "high": _at(spread, edges)})
        if one.limit is not None and edges[0] <= one.limit <= edges[1]:
            limits.append({"row": row, "at": 100 * one.limit})
        bad = accused.get(one.column.name, set())
        healthy, left_out = _thinned(one.changes, bad)
        thinned += left_out
        dots += [{"row": row, "at": _at(float(one.changes[place]), edges)} for place in healthy]
        named = _named(one, bad, edges)
        for place in sorted(bad):
            at = _at(float(one.changes[place]), edges)
            marks.append({"row": row, "at": at})
            if place in named:
                label = f"{one_line(diagnosis.table.nodes[place])[:28]} {change(float(one.changes[place]))}"
                texts.append({"row": row, "at": at, "text": label, "right": at > 50 * (edges[0] + edges[1])})
    notes = [
        "Each dot is a node, a cross a defective one. The band spans two robust deviations of all nodes on each side "
        "of the baseline" + (", the upright mark is the rule's limit." if limits else ".")
    ]
    if thinned:
        notes.append("Of many healthy nodes, the lowest, the highest and some between are drawn in each metric.")
    if len(chosen) < len(diagnosis.judged):
        notes.append(f"{len(chosen)} of {len(diagnosis.judged)} metrics are drawn.")
    defects = "; ".join(f"{item['row']}: {item['text']}" for item in texts)
    return Chart(
        spec=_spec(rows, edges, bands, limits, dots, marks, texts),
        title="Each node's change from the baseline, by metric",
        description=defects or "No node is defective in these metrics.",
        notes=tuple(notes),
    )


def accused_in(diagnosis: Diagnosis) -> dict[str, set[int]]:
    """By metric, the places of the nodes that it makes defective."""
    places = {node: place for place, node in enumerate(diagnosis.table.nodes)}
    accused: dict[str, set[int]] = {}
    for verdict in diagnosis.defective:
        for finding in verdict.accusations:
            if finding.kind in ("variance", "value", "group"):
                for metric in finding.metrics or (finding.metric,):
                    accused.setdefault(metric, set()).add(places[verdict.node])
    return accused


def _chosen(diagnosis: Diagnosis, accused: dict[str, set[int]]) -> list[Judged]:
    known = [one for one in diagnosis.judged if np.isfinite(one.changes).any()]

    def weight(one: Judged) -> tuple[int, float]:
        finite = one.changes[np.isfinite(one.changes)]
        return len(accused.get(one.column.name, ())), float(np.abs(finite).max())

    wanted = min(STRIPS, max(AT_LEAST, sum(one.column.name in accused for one in known)))
    return sorted(known, key=weight, reverse=True)[:wanted]


def _edges(chosen: Sequence[Judged]) -> tuple[float, float]:
    """What the axis spans: every dot and limit, but not so far that dots near the baseline become one."""
    finite = np.concatenate([one.changes[np.isfinite(one.changes)] for one in chosen])
    limits = [one.limit for one in chosen if one.limit is not None]
    low = min([float(finite.min()), 0.0, *(1.25 * limit for limit in limits)])
    high = max([float(finite.max()), 0.0, *(1.25 * limit for limit in limits)])
    low, high = max(low, -FARTHEST), min(high, FARTHEST)
    pad = max(0.04 * (high - low), 0.002)
    return low - pad, high + pad


def _at(change: float, edges: tuple[float, float]) -> float:
    """Where on the axis, in percent; what lies beyond is drawn at the edge."""
    return 100 * min(max(change, edges[0]), edges[1])


def _thinned(changes: NDArray[np.float64], bad: set[int]) -> tuple[list[int], int]:
    known = [place for place in np.flatnonzero(~np.isnan(changes)).tolist() if place not in bad]
    if len(known) <= DOTS:
        return known, 0
    ordered = sorted(known, key=lambda place: float(changes[place]))
    picked = {ordered[round(step * (len(ordered) - 1) / (DOTS - 1))] for step in range(DOTS)}
    return sorted(picked), len(known) - len(picked)


def _named(one: Judged, bad: set[int], edges: tuple[float, float]) -> set[int]:
    """The worst nodes whose names do not cover each other."""
    apart = 0.35 * 100 * (edges[1] - edges[0])
    chosen: dict[int, float] = {}
    for place in sorted(bad, key=lambda place: -abs(float(one.changes[place]))):
        at = _at(float(one.changes[place]), edges)
        if len(chosen) < NAMES and all(abs(at - other) > apart for other in chosen.values()):
            chosen[place] = at
    return set(chosen)


def _names(chosen: Sequence[Judged]) -> list[str]:
    """A name with the baseline for each strip; of a long one the middle is left out, unless two would then be one."""
    full = [one_line(one.column.name) for one in chosen]
    half = LONGEST_NAME // 2 - 1
    short = [name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}" for name in full]
    names = short if len(set(short)) == len(short) else full
    return [f"{name} ({show_value(one.baseline, one.column.unit)})" for name, one in zip(names, chosen, strict=True)]


def _spec(
    rows: list[str],
    edges: tuple[float, float],
    bands: list[Spec],
    limits: list[Spec],
    dots: list[Spec],
    marks: list[Spec],
    texts: list[Spec],
) -> Spec:
    scale: Spec = {"domain": [100 * edges[0], 100 * edges[1]], "nice": False}
    x = quantity("at", "change from the baseline, %", scale, tickCount=7)
    y: Spec = {"field": "row", "type": "nominal", "sort": rows, "scale": {"domain": rows}, "axis": None}
    place: Spec = {"x": x, "y": y}
    name = {"x": {"value": 0}, "y": y, "text": {"field": "row", "type": "nominal"}}
    band = place | {"x": x | {"field": "low"}, "x2": {"field": "high"}}
    left = [item for item in texts if not item["right"]]
    right = [item for item in texts if item["right"]]
    label = place | {"text": TEXT}
    style: Spec = {"fontSize": 12, "color": INK, "baseline": "middle"}
    layers = [
        layer("text", name, [{"row": row} for row in rows], align="left", dy=-21, **style),
        layer("bar", band, bands, height=22, color=ACCENT, opacity=0.16),
        layer("rule", {"x": x}, [{"at": 0}], color=MUTED, opacity=0.6),
        layer("tick", place, limits, color=MUTED, thickness=1.5, size=26),
        layer("point", place, dots, filled=True, size=42, color=ACCENT, opacity=0.7),
        layer("point", place, marks, shape="cross", filled=True, size=120, color=BAD, opacity=1),
        layer("text", label, left, align="left", dx=-5, dy=16, **style),
        layer("text", label, right, align="right", dx=5, dy=16, **style),
    ]
    return {
        "width": COLUMN - 20,
        "height": {"step": 62},
        "layer": [one for one in layers if one["data"]["values"]],
        "config": {**CONFIG, "axisX": {"gridColor": GRID}, "axisY": {"grid": False}},
    }
