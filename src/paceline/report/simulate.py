"""What a simulation found, in sentences, tables and charts that every form of its report shows."""

from __future__ import annotations

import json
from typing import Any

from paceline.analysis.simulation import BASELINE, CLAIRVOYANT, OURS, Estimate, Study, StudyCell
from paceline.core.grouping import group_by
from paceline.core.quantity import show_count, show_interval, with_interval
from paceline.report.charts import (
    CONFIG,
    INK,
    LEGEND,
    LINES,
    MUTED,
    WIDTH,
    Chart,
    Spec,
    decades_within,
    framed,
    layer,
    names_axis,
    quantity,
)
from paceline.report.document import Block, Card, Document, Lines, Pairs, Section, Table, Tone
from paceline.report.export.csv import csv_text
from paceline.report.text import half_width, heading, one_line, percent, share

POLICIES = {
    BASELINE: "one follower after the other, each first come, first served",
    "least-loaded": "the follower predicted to be done first, each first come, first served",
    "sjf": "one shared queue, the shortest predicted first, without ageing",
    OURS: "Paceline's scheduler",
    CLAIRVOYANT: "one shared queue, the shortest first, by true durations",
}
FIGURES = ("mean", "p50", "p95", "p99", "longest", "slowdown", "fairness", "utilisation", "worst_wait")
WIDE = 0.1  # of a figure: from this half-width on, the answer says that more seeds are needed

# Colour and form tell them apart, so that either alone does; two-tier is the accent.
_COLOURS = dict(zip(POLICIES, (MUTED, LINES[4], LINES[1], LINES[0], INK), strict=True))
_LARGE_DIAMOND, _UPRIGHT = "M0,-1.7L1.7,0L0,1.7L-1.7,0Z", "M-0.12,-1L0.12,-1L0.12,1L-0.12,1Z"
_FORMS = dict(zip(POLICIES, ("square", "triangle-up", _LARGE_DIAMOND, "circle", _UPRIGHT), strict=True))
_TAIL = {"p50": "median", "p95": "p95", "p99": "p99", "longest": "longest"}
_LABELS = 150
_ROWS: Spec = {"domain": False, "labelLimit": 180, "minExtent": _LABELS}
_LEGEND = {key: value for key, value in LEGEND.items() if key != "symbolType"}


def answer(study: Study) -> str:
    """The one sentence that leads every report."""
    gains = [gain.value for cell in study.cells if (gain := cell.gain(OURS))]
    losses = [loss for cell in study.cells if (loss := over_clairvoyant(cell)) is not None]
    parts = []
    if gains:
        low, high = f"{min(gains):.2f}", f"{max(gains):.2f}"
        times = low if low == high else f"{low} to {high}"
        parts.append(f"two-tier completes tasks {times} times sooner on average than round-robin with FCFS")
    if losses:
        worst = max(losses)
        distance = f"at most {percent(worst)} above" if worst >= 0.0005 else "no worse than"
        parts.append(f"{distance} one shared queue that knows true durations")
    if parts:
        return one_line(heading("; ".join(parts)) + ".")
    best = min((line for cell in study.cells for line in cell.lines), key=lambda line: line.estimate("mean").value)
    return f"{heading(best.policy)}: mean completion time {show_seconds(best.estimate('mean').value)}."


def document(study: Study) -> Document:
    """How policies compare, then every figure of each, and what it assumes."""
    settings = study.settings
    seeds, devices, jobs = settings["seeds"], settings["devices"], settings["jobs"]
    seed_range = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    sections = [
        Section("At a glance", (gains(study), tails(study)), key="glance"),
        *_gains(study),
        _figures(study),
        Section("The policies", (Pairs({line.policy: POLICIES[line.policy] for line in study.cells[0].lines}),)),
        Section("What to know before believing it", (Lines(tuple(assumptions(study))),), Tone.BASIS, "warnings"),
        Section("Settings", (Pairs(settings | {"seeds": seed_range}),)),
    ]
    parts = [f"{settings['followers']:,} followers" + (f" with {devices} devices each" if devices > 1 else "")]
    parts += [f"{jobs:,} tasks"] if jobs else []
    parts.append(f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}; took {study.seconds:.1f} s")
    what = "sooner than round-robin, two-tier"
    cards = tuple(
        Card(f"{gain.value:.2f}", "times", _interval(gain), what, _named(cell))
        for cell in _highest(study)
        if (gain := cell.gain(OURS))
    )
    return Document("Simulation", (Block(answer(study), ", ".join(parts), tuple(sections)),), cards=cards)


def _highest(study: Study) -> list[StudyCell]:
    """Each workload at its highest load."""
    workloads = group_by(study.cells, lambda cell: cell.workload)
    return [max(cells, key=lambda cell: cell.load) for cells in workloads.values()]


def over_clairvoyant(cell: StudyCell) -> float | None:
    """By what part the mean completion time exceeds that of one shared queue with true durations."""
    gain = cell.gain(OURS, CLAIRVOYANT)
    return 1 / gain.value - 1 if gain else None


def assumptions(study: Study) -> list[str]:
    """What to know before believing it."""
    settings = study.settings
    lines = [
        "This is arithmetic, not a measurement: tasks start at once where they are placed, none fails, and no follower "
        "is lost. The cluster is empty when the first task comes.",
        f"Predicted durations are the true ones times a log-normal factor with deviation {settings['error']:g}; "
        "clairvoyant alone knows the true ones. Every policy gets the same tasks.",
        f"two-tier lets nothing overtake a task that has waited {settings['stretch']:g} times its predicted duration.",
    ]
    widths = [gain.relative or 0.0 for cell in study.cells if (gain := cell.gain(OURS))]
    if len(settings["seeds"]) < 2:
        lines.append("One seed gives no interval: ask for more with --seeds.")
    elif widths and max(widths) >= WIDE:
        lines.append(f"Intervals reach {half_width(max(widths))}: ask for more jobs or seeds to narrow them.")
    return lines


def show_seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def to_csv(study: Study) -> str:
    """One row for each policy in each cell; intervals are those of the mean over seeds."""
    ends = [f"{name}_{end}" for name in ("mean", "gain") for end in ("low", "high")]
    columns = ["workload", "load", "policy", *FIGURES, "gain", *ends, "lowest_possible_mean"]
    rows = []
    for cell in study.cells:
        for line in cell.lines:
            row: dict[str, Any] = {"workload": cell.workload, "load": f"{cell.load:g}", "policy": line.policy}
            row |= {name: line.estimate(name).value for name in FIGURES}
            for name, estimate in (("mean", line.estimate("mean")), ("gain", cell.gain(line.policy))):
                row |= {
                    f"{name}_{end}".removesuffix("_value"): value for end, value in estimate_fields(estimate).items()
                }
            rows.append(row | {"lowest_possible_mean": cell.bound})
    return csv_text(columns, rows)


def to_json(study: Study) -> str:
    """For programs."""
    cells = []
    for cell in study.cells:
        policies = []
        for line in cell.lines:
            figures = {name: estimate_fields(line.estimate(name)) for name in FIGURES}
            gain = estimate_fields(cell.gain(line.policy)) or None
            policies.append({"policy": line.policy, **figures, "gain_over_round_robin": gain})
        about = {"workload": cell.workload, "load": cell.load, "lowest_possible_mean": cell.bound}
        cells.append(about | {"policies": policies})
    whole = {"kind": "simulation", "settings": study.settings, "seconds": study.seconds, "cells": cells}
    return json.dumps(whole, indent=2) + "\n"


def estimate_fields(estimate: Estimate | None) -> dict[str, Any]:
    """A figure with the ends of its interval, for programs."""
    if estimate is None:
        return {}
    low, high = (estimate.interval.low, estimate.interval.high) if estimate.interval else (None, None)
    return {"value": estimate.value, "low": low, "high": high}


def _interval(gain: Estimate) -> str:
    return show_interval(gain.value, gain.interval, lambda end: f"{end:.2f}")


def _gains(study: Study) -> list[Section]:
    policies = [line.policy for line in study.cells[0].lines]
    if BASELINE not in policies or len(policies) < 2:
        return []
    others = [policy for policy in policies if policy != BASELINE]
    has_loss = OURS in others and CLAIRVOYANT in others
    lines = []
    for cell in study.cells:
        baseline, loss = cell.line(BASELINE), over_clairvoyant(cell)
        assert baseline is not None
        texts = [*_names(cell), show_seconds(baseline.estimate("mean").value)]
        for policy in others:
            gain = cell.gain(policy)
            assert gain is not None
            texts.append(with_interval(f"{gain.value:.2f}", _interval(gain) if policy == OURS else ""))
        lines.append([*texts, percent(loss, signed=True)] if has_loss and loss is not None else texts)
    headers = ("Workload", "Load", BASELINE, *others, *(("above it",) if has_loss else ()))
    note = ("'above it' is by how much the mean of two-tier exceeds that of clairvoyant.",) if has_loss else ()
    title = "How many times sooner tasks are completed than with round-robin, on average"
    return [Section(title, (Table.of_lines(headers, lines, 2, grouped=2), Lines(note, Tone.NOTE)))]


def _figures(study: Study) -> Section:
    lines = []
    for cell in study.cells:
        for line in cell.lines:
            *times, slowdown, fairness, utilisation, wait = (line.estimate(name).value for name in FIGURES)
            others = (f"{slowdown:.2f}", f"{fairness:.2f}", share(utilisation), f"{wait:.1f}")
            lines.append((*_names(cell), line.policy, *map(_digits, times), *others))
        lines.append((*_names(cell), "bound", _digits(cell.bound), *[""] * (len(FIGURES) - 1)))
    headers = ("Workload", "Load", "Policy", "mean", "p50", "p95", "p99", "longest", "slowdown", "Jain", "use", "wait")
    note = (
        "Slowdown is completion time over duration, of tasks shorter than a tenth of the mean as if they took "
        "that long; Jain's index of it is 1 if all are slowed down alike. 'use' is the part of device time that is "
        "used, 'wait' the longest wait of any task in any seed, in mean durations. No schedule at all has a mean "
        "below 'bound'."
    )
    title = "Completion times in seconds, and what else each policy does"
    return Section(title, (Table.of_lines(headers, lines, 3, grouped=2), Lines((note,), Tone.NOTE)))


def _digits(seconds: float) -> str:
    return show_count(float(f"{seconds:.3g}"))


def _names(cell: StudyCell) -> tuple[str, str]:
    return one_line(cell.workload), f"{cell.load:.3g}"


def gains(study: Study) -> Chart:
    """Mean completion time of each policy in each cell: against round-robin's, or in seconds if that was left out."""
    against = all(cell.line(BASELINE) for cell in study.cells)
    policies = [line.policy for line in study.cells[0].lines if not (against and line.policy == BASELINE)]
    policies = policies or [BASELINE]
    values: list[Spec] = [
        {"cell": _named(cell), "policy": line.policy, **estimate_fields(estimate)}
        for cell in study.cells
        for line in cell.lines
        if line.policy in policies
        and (estimate := cell.gain(line.policy) if against else line.estimate("mean")) is not None
    ]
    title = "How many times sooner than round-robin with FCFS" if against else "Mean completion time, s"
    x = quantity("value", None, {"zero": not against, "nice": True}, tickCount=7, format="~g")
    y = names_axis("cell", grid=True, gridDash=[2, 3], **_ROWS)
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
    about = ("mean completion time", f"further {'right' if against else 'left'} is better")
    size: Spec = {"width": WIDTH - _LABELS, "height": max(60, 28 * len(study.cells))}
    has_interval = any(value["low"] is not None and value["policy"] == OURS for value in values)
    note = "The pale bar is where the figure of two-tier lies with 95 % confidence."
    return Chart(
        spec=framed(title, *about, values=values, layer=layers, **size),
        title=title,
        description="; ".join(
            f"{cell.workload} at load {cell.load:.3g}: {', '.join(_described(cell, against))}" for cell in study.cells
        ),
        notes=(note,) if has_interval else (),
    )


def tails(study: Study) -> Chart:
    """Median, tail and longest completion time at the highest load of each workload."""
    highest = _highest(study)
    values: list[Spec] = [
        {"workload": _named(cell), "policy": line.policy, "what": word, "value": line.estimate(name).value}
        for cell in highest
        for line in cell.lines
        for name, word in _TAIL.items()
    ]
    low, high = 0.8 * min(value["value"] for value in values), 1.25 * max(value["value"] for value in values)
    scale: Spec = {"type": "log", "domain": [low, high], "nice": False}
    x = quantity("value", "completion time, s", scale, format="~s", grid=True, values=decades_within(low, high))
    y = names_axis("policy", **_ROWS)
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
        for name in map(_named, highest)
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


def _named(cell: StudyCell) -> str:
    return f"{one_line(cell.workload)}, load {cell.load:.3g}"


def _described(cell: StudyCell, against: bool) -> list[str]:
    figures = []
    for line in cell.lines:
        gain = cell.gain(line.policy)
        value = f"{gain.value:.2f} times" if against and gain else show_seconds(line.estimate("mean").value)
        figures.append(f"{line.policy} {value}")
    loss = over_clairvoyant(cell)
    return [*figures, f"two-tier {percent(loss, signed=True)} above clairvoyant"] if loss is not None else figures
