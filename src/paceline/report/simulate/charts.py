"""Charts of a simulation: how much sooner tasks are completed, and how late the latest are."""

from __future__ import annotations

from typing import Any

from paceline.analysis.simulation import BASELINE, OURS, Study, StudyCell
from paceline.report.charts import (
    CONFIG,
    INK,
    LEGEND,
    LINES,
    MUTED,
    WIDTH,
    Chart,
    Spec,
    decades,
    framed,
    layer,
    quantity,
)
from paceline.report.numbers import percent
from paceline.report.simulate.document import POLICIES, over_clairvoyant, show_seconds
from paceline.report.text import one_line

# Colour and form tell them apart, so that either alone does; two-tier is the accent.
_COLOURS = dict(zip(POLICIES, (MUTED, LINES[4], LINES[1], LINES[0], INK), strict=True))
_LARGE_DIAMOND, _UPRIGHT = "M0,-1.7L1.7,0L0,1.7L-1.7,0Z", "M-0.12,-1L0.12,-1L0.12,1L-0.12,1Z"
_FORMS = dict(zip(POLICIES, ("square", "triangle-up", _LARGE_DIAMOND, "circle", _UPRIGHT), strict=True))
_TAIL = {"p50": "median", "p95": "p95", "p99": "p99", "longest": "longest"}
_LABELS = 150
_LEGEND = {key: value for key, value in LEGEND.items() if key != "symbolType"}


def charts(study: Study) -> list[Chart]:
    """All of them, the most telling first."""
    return [gains(study), tails(study)]


def gains(study: Study) -> Chart:
    """Mean completion time of each policy in each cell: against round-robin's, or in seconds if that was left out."""
    against = all(cell.line(BASELINE) for cell in study.cells)
    policies = [line.policy for line in study.cells[0].lines if not (against and line.policy == BASELINE)]
    policies = policies or [BASELINE]
    values: list[Spec] = []
    for cell in study.cells:
        for policy in policies:
            line = cell.line(policy)
            estimate = cell.gain(policy) if against else line.estimate("mean") if line else None
            if estimate is not None:
                low, high = (estimate.interval.low, estimate.interval.high) if estimate.interval else (None, None)
                values.append(_named(cell) | {"policy": policy, "value": estimate.value, "low": low, "high": high})
    title = "How many times sooner than round-robin with FCFS" if against else "Mean completion time, s"
    x = quantity("value", None, {"zero": not against, "nice": True}, tickCount=7, format="~g")
    y = _rows("cell", [_named(cell)["cell"] for cell in study.cells], grid=True, gridDash=[2, 3])
    interval = {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}}
    pale: Spec = {"color": LINES[0], "strokeWidth": 7, "opacity": 0.22, "strokeCap": "round"}
    # Forms show where one mark covers another; the one to reach is an upright line.
    kind: Spec = {"field": "policy", "type": "nominal", "sort": policies, "legend": _LEGEND}
    point = {
        "x": x,
        "y": y,
        "color": kind | {"scale": {"domain": policies, "range": [_COLOURS[policy] for policy in policies]}},
        "shape": kind | {"scale": {"domain": policies, "range": [_FORMS[policy] for policy in policies]}},
    }
    layers = [
        layer("rule", interval, where=f"datum.policy == '{OURS}' && isValid(datum.low)", **pale),
        layer("point", point, filled=True, size=95, opacity=1),
    ]
    if against:
        layers.insert(0, layer("rule", {"x": quantity("at")}, [{"at": 1}], color=MUTED, strokeDash=[4, 3]))
    better = "further right is better" if against else "further left is better"
    return Chart(
        spec=framed(
            title,
            "mean completion time",
            better,
            values=values,
            width=WIDTH - _LABELS,
            height=max(60, 28 * len(study.cells)),
            layer=layers,
        ),
        title=title,
        description="; ".join(
            f"{cell.workload} at load {cell.load:.3g}: {', '.join(_figures(cell, against))}" for cell in study.cells
        ),
        notes=("The pale bar is where the figure of two-tier lies with 95 % confidence.",)
        if any(value["low"] is not None and value["policy"] == OURS for value in values)
        else (),
    )


def tails(study: Study) -> Chart:
    """Median, tail and longest completion time at the highest load of each workload."""
    highest = [
        max((cell for cell in study.cells if cell.workload == name), key=lambda cell: cell.load)
        for name in dict.fromkeys(cell.workload for cell in study.cells)
    ]
    policies = [line.policy for line in highest[0].lines]
    values: list[Spec] = [
        {
            "workload": f"{one_line(cell.workload)}, load {cell.load:.3g}",
            "policy": line.policy,
            "what": word,
            "value": line.estimate(name).value,
        }
        for cell in highest
        for line in cell.lines
        for name, word in _TAIL.items()
    ]
    low, high = 0.8 * min(value["value"] for value in values), 1.25 * max(value["value"] for value in values)
    scale: Spec = {"type": "log", "domain": [low, high], "nice": False}
    ticks = [tick for tick in decades(low, high) if low <= tick <= high]
    x = quantity("value", "completion time, s", scale, format="~s", grid=True, values=ticks)
    y = _rows("policy", policies)
    words = list(_TAIL.values())
    shape: Spec = {"field": "what", "type": "nominal", "sort": words, "legend": _LEGEND | {"symbolFillColor": INK}}
    shape["scale"] = {"domain": words, "range": ["circle", "square", "triangle-up", "diamond"]}
    colour: Spec = {"condition": {"test": f"datum.policy == '{OURS}'", "value": LINES[0]}, "value": MUTED}
    place: Spec = {"x": x, "y": y, "color": colour}
    layers = [
        layer("line", place | {"detail": {"field": "policy"}}, strokeWidth=2, opacity=0.45),
        layer("point", place | {"shape": shape}, filled=True, size=75, opacity=1),
    ]
    panels = [
        {
            "title": {"text": name, "anchor": "start", "frame": "group", "offset": 6, "fontSize": 12},
            "transform": [{"filter": {"field": "workload", "equal": name}}],
            "width": WIDTH - _LABELS,
            "height": {"step": 22},
            "layer": layers,
        }
        for name in dict.fromkeys(value["workload"] for value in values)
    ]
    title = "Completion times from the median to the longest"
    head = {"text": title, "subtitle": "further left is better", "anchor": "start", "offset": 12}
    return Chart(
        spec={"vconcat": panels, "spacing": 18, "data": {"values": values}, "config": CONFIG, "title": head},
        title=title,
        description="; ".join(
            f"{cell.workload} at load {cell.load:.3g}, {line.policy}: "
            + ", ".join(f"{word} {show_seconds(line.estimate(name).value)}" for name, word in _TAIL.items())
            for cell in highest
            for line in cell.lines
        ),
    )


def _rows(field: str, order: list[str], **style: Any) -> Spec:
    """A row for each, with its name to the left."""
    axis = {"title": None, "ticks": False, "domain": False, "labelColor": INK, "labelPadding": 10, **style}
    return {"field": field, "type": "nominal", "sort": order, "axis": axis | {"minExtent": _LABELS}}


def _named(cell: StudyCell) -> Spec:
    return {"cell": f"{one_line(cell.workload)}, load {cell.load:.3g}"}


def _figures(cell: StudyCell, against: bool) -> list[str]:
    figures = []
    for line in cell.lines:
        gain = cell.gain(line.policy)
        value = f"{gain.value:.2f} times" if against and gain else show_seconds(line.estimate("mean").value)
        figures.append(f"{line.policy} {value}")
    loss = over_clairvoyant(cell)
    return [*figures, f"two-tier {percent(loss, signed=True)} above clairvoyant"] if loss is not None else figures
