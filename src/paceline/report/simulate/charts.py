"""Charts of a simulation: how much sooner tasks are completed, and how late the latest are."""

from __future__ import annotations

from paceline.analysis.simulation import BASELINE, OURS, Study, StudyCell
from paceline.report.charts import CONFIG, INK, LEGEND, LINES, MUTED, WIDTH, Chart, Spec, decades, framed
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
    x: Spec = {"type": "quantitative", "scale": {"zero": not against, "nice": True},
               "axis": {"title": None, "tickCount": 7, "format": "~g"}}  # fmt: skip
    own = {"filter": f"datum.policy == '{OURS}' && isValid(datum.low)"}
    rule = {"mark": {"type": "rule", "color": LINES[0], "strokeWidth": 7, "opacity": 0.22, "strokeCap": "round"},
            "transform": [own],
            "encoding": {"y": _rows(study), "x": {"field": "low", **x}, "x2": {"field": "high"}}}  # fmt: skip
    reference = [_reference()] if against else []
    told = [f"{cell.workload} at load {cell.load:.3g}: " + ", ".join(_told(cell, against)) for cell in study.cells]
    better = "further right is better" if against else "further left is better"
    return Chart(
        spec=framed(
            title,
            f"mean completion time; {better}",
            {
                "data": {"values": values},
                "width": WIDTH - _LABELS,
                "height": max(60, 28 * len(study.cells)),
                "layer": [*reference, rule, *_marks(policies, study, x)],
            },
        ),
        title=title,
        description="; ".join(told),
        notes=("The pale bar is where the figure of two-tier lies with 95 % confidence.",)
        if any(value["low"] is not None and value["policy"] == OURS for value in values)
        else (),
    )


def tails(study: Study) -> Chart:
    """Median, tail and longest completion time at the highest load of each workload."""
    highest = [max((cell for cell in study.cells if cell.workload == name), key=lambda cell: cell.load)
               for name in dict.fromkeys(cell.workload for cell in study.cells)]  # fmt: skip
    policies = [line.policy for line in highest[0].lines]
    values: list[Spec] = [
        {"workload": f"{one_line(cell.workload)}, load {cell.load:.3g}", "policy": line.policy, "what": word,
         "value": line.estimate(name).value}
        for cell in highest for line in cell.lines for name, word in _TAIL.items()
    ]  # fmt: skip
    low, high = 0.8 * min(value["value"] for value in values), 1.25 * max(value["value"] for value in values)
    x: Spec = {
        "field": "value", "type": "quantitative",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"title": "completion time, s", "format": "~s", "grid": True,
                 "values": [tick for tick in decades(low, high) if low <= tick <= high]},
    }  # fmt: skip
    y: Spec = {"field": "policy", "type": "nominal", "sort": policies,
               "axis": {"title": None, "ticks": False, "domain": False, "labelColor": INK, "labelPadding": 10,
                        "minExtent": _LABELS}}  # fmt: skip
    words = list(_TAIL.values())
    shape: Spec = {"field": "what", "type": "nominal", "sort": words, "legend": _LEGEND | {"symbolFillColor": INK},
                   "scale": {"domain": words, "range": ["circle", "square", "triangle-up", "diamond"]}}  # fmt: skip
    colour: Spec = {"condition": {"test": f"datum.policy == '{OURS}'", "value": LINES[0]}, "value": MUTED}
    panels = [
        {
            "title": {"text": name, "anchor": "start", "frame": "group", "offset": 6, "fontSize": 12},
            "transform": [{"filter": {"field": "workload", "equal": name}}],
            "width": WIDTH - _LABELS,
            "height": {"step": 22},
            "layer": [
                {"mark": {"type": "line", "strokeWidth": 2, "opacity": 0.45},
                 "encoding": {"x": x, "y": y, "detail": {"field": "policy"}, "color": colour}},
                {"mark": {"type": "point", "filled": True, "size": 75, "opacity": 1},
                 "encoding": {"x": x, "y": y, "shape": shape, "color": colour}},
            ],
        }
        for name in dict.fromkeys(value["workload"] for value in values)
    ]  # fmt: skip
    told = [
        f"{cell.workload} at load {cell.load:.3g}, {line.policy}: "
        + ", ".join(f"{word} {show_seconds(line.estimate(name).value)}" for name, word in _TAIL.items())
        for cell in highest
        for line in cell.lines
    ]
    title = "Completion times from the median to the longest"
    head = {"text": title, "subtitle": "further left is better", "anchor": "start", "offset": 12}
    spec = {"vconcat": panels, "spacing": 18, "data": {"values": values}, "config": CONFIG, "title": head}
    return Chart(spec=spec, title=title, description="; ".join(told))


def _rows(study: Study) -> Spec:
    order = [_named(cell)["cell"] for cell in study.cells]
    axis = {"title": None, "ticks": False, "domain": False, "labelColor": INK, "labelPadding": 10, "minExtent": _LABELS,
            "grid": True, "gridDash": [2, 3]}  # fmt: skip
    return {"field": "cell", "type": "nominal", "sort": order, "axis": axis}


def _marks(policies: list[str], study: Study, x: Spec) -> list[Spec]:
    """One mark for each policy, in forms that show when one covers another; the one to reach is an upright line."""
    scale: Spec = {"domain": policies, "range": [_COLOURS[policy] for policy in policies]}
    forms: Spec = {"domain": policies, "range": [_FORMS[policy] for policy in policies]}
    place: Spec = {"y": _rows(study), "x": {"field": "value", **x}}
    return [
        {
            "mark": {"type": "point", "filled": True, "size": 95, "opacity": 1},
            "encoding": place
            | {
                "color": {"field": "policy", "type": "nominal", "sort": policies, "scale": scale, "legend": _LEGEND},
                "shape": {"field": "policy", "type": "nominal", "sort": policies, "scale": forms, "legend": _LEGEND},
            },
        }
    ]


def _reference() -> Spec:
    return {
        "data": {"values": [{"at": 1}]},
        "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
        "encoding": {"x": {"field": "at", "type": "quantitative"}},
    }


def _named(cell: StudyCell) -> Spec:
    return {"cell": f"{one_line(cell.workload)}, load {cell.load:.3g}"}


def _told(cell: StudyCell, against: bool) -> list[str]:
    told = []
    for line in cell.lines:
        gain = cell.gain(line.policy)
        value = f"{gain.value:.2f} times" if against and gain else show_seconds(line.estimate("mean").value)
        told.append(f"{line.policy} {value}")
    loss = over_clairvoyant(cell)
    return [*told, f"two-tier {percent(loss, signed=True)} above clairvoyant"] if loss is not None else told
