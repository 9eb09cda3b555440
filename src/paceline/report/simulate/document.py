"""What a simulation found, in sentences and tables that every form of its report shows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.analysis.simulation import BASELINE, CLAIRVOYANT, OURS, Estimate, Line, Study, StudyCell
from paceline.core.quantity import show_count
from paceline.report.document import Block, Card, Document, Lines, Pairs, Section, Table, Tone
from paceline.report.numbers import half_width, percent, share
from paceline.report.text import heading, one_line

POLICIES = {
    BASELINE: "one follower after the other, each first come, first served",
    "least-loaded": "the follower predicted to be done first, each first come, first served",
    "sjf": "one shared queue, the shortest predicted first, without ageing",
    OURS: "Paceline's scheduler",
    CLAIRVOYANT: "one shared queue, the shortest first, by true durations",
}
FIGURES = ("mean", "p50", "p95", "p99", "longest", "slowdown", "fairness", "utilisation", "worst_wait")
WIDE = 0.1  # of a figure: from this half-width on, the answer says that more seeds are needed


def answer(study: Study) -> str:
    """The one sentence that leads every report."""
    gains = [gain.value for cell in study.cells if (gain := cell.gain(OURS))]
    losses = [loss for cell in study.cells if (loss := over_clairvoyant(cell)) is not None]
    parts = []
    if gains:
        parts.append(f"two-tier completes tasks {_span(gains)} times sooner on average than round-robin with FCFS")
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
    from paceline.report.simulate.charts import charts  # which speaks of the policies by our words

    sections = [
        Section("At a glance", tuple(charts(study)), key="glance"),
        *(section for section in (_gains(study), _figures(study)) if section),
        Section("The policies", (Pairs({line.policy: POLICIES[line.policy] for line in study.cells[0].lines}),)),
        Section("What to know before believing it", (Lines(tuple(assumptions(study))),), Tone.BASIS, "warnings"),
        Section("Settings", (Pairs(study.settings | {"seeds": _seeds(study)}),)),
    ]
    about = f"{show_setting(study.settings)}; took {study.seconds:.1f} s"
    return Document("Simulation", (Block(answer(study), about, tuple(sections)),), cards=_cards(study))


def over_clairvoyant(cell: StudyCell) -> float | None:
    """By what part the mean completion time exceeds that of one shared queue with true durations."""
    found = cell.gain(OURS, CLAIRVOYANT)
    return 1 / found.value - 1 if found else None


def assumptions(study: Study) -> list[str]:
    """What to know before believing it."""
    settings = study.settings
    told = [
        "This is arithmetic, not a measurement: tasks start at once where they are placed, none fails, and no follower "
        "is lost. The cluster is empty when the first task comes.",
        f"Predicted durations are the true ones times a log-normal factor with deviation {settings['error']:g}; "
        "clairvoyant alone knows the true ones. Every policy gets the same tasks.",
        f"two-tier lets nothing overtake a task that has waited {settings['stretch']:g} times its predicted duration.",
    ]
    widths = [gain.relative or 0.0 for cell in study.cells if (gain := cell.gain(OURS))]
    if len(settings["seeds"]) < 2:
        told.append("One seed gives no interval: ask for more with --seeds.")
    elif widths and max(widths) >= WIDE:
        told.append(f"Intervals reach {half_width(max(widths))}: ask for more jobs or seeds to narrow them.")
    return told


def show_seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def show_setting(settings: Mapping[str, Any]) -> str:
    """Where it ran, in a few words."""
    seeds, devices, jobs = len(settings["seeds"]), settings["devices"], settings["jobs"]
    parts = [f"{settings['followers']:,} followers" + (f" with {devices} devices each" if devices > 1 else "")]
    parts += [f"{jobs:,} tasks"] if jobs else []
    return ", ".join([*parts, f"{seeds} {'seed' if seeds == 1 else 'seeds'}"])


def to_csv(study: Study) -> str:
    """One row for each policy in each cell; intervals are those of the mean over seeds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    edges = [f"{name}_{edge}" for name in ("mean", "gain") for edge in ("low", "high")]
    writer.writerow(["workload", "load", "policy", *FIGURES, "gain", *edges, "lowest_possible_mean"])
    for cell in study.cells:
        for line in cell.lines:
            mean, gain = line.estimate("mean"), cell.gain(line.policy)
            edges_of = [*_edges(mean), *_edges(gain)]
            values = [line.estimate(name).value for name in FIGURES]
            row = [*values, gain.value if gain else "", *edges_of, cell.bound]
            writer.writerow([cell.workload, f"{cell.load:g}", line.policy, *row])
    return text.getvalue()


def to_json(study: Study) -> str:
    """For programs."""
    cells = [
        {
            "workload": cell.workload,
            "load": cell.load,
            "lowest_possible_mean": cell.bound,
            "policies": [_entry(cell, line) for line in cell.lines],
        }
        for cell in study.cells
    ]
    whole = {"kind": "simulation", "settings": study.settings, "seconds": study.seconds, "cells": cells}
    return json.dumps(whole, indent=2) + "\n"


def _entry(cell: StudyCell, line: Line) -> dict[str, Any]:
    figures = {name: _told(line.estimate(name)) for name in FIGURES}
    gain = cell.gain(line.policy)
    return {"policy": line.policy, **figures, "gain_over_round_robin": _told(gain) if gain else None}


def _told(estimate: Estimate) -> dict[str, float | None]:
    low, high = _edges(estimate)
    return {"value": estimate.value, "low": low, "high": high}


def _edges(estimate: Estimate | None) -> tuple[float | None, float | None]:
    interval = estimate.interval if estimate else None
    return (interval.low, interval.high) if interval else (None, None)


def _gains(study: Study) -> Section | None:
    policies = [line.policy for line in study.cells[0].lines]
    if BASELINE not in policies or len(policies) < 2:
        return None
    others = [policy for policy in policies if policy != BASELINE]
    beside = OURS in others and CLAIRVOYANT in others
    lines = []
    for cell in study.cells:
        baseline = cell.line(BASELINE)
        assert baseline is not None
        loss = over_clairvoyant(cell)
        lines.append(
            (
                *_names(cell),
                show_seconds(baseline.estimate("mean").value),
                *(_gain(cell, policy) for policy in others),
                *((percent(loss, signed=True),) if beside and loss is not None else ()),
            )
        )
    headers = ("Workload", "Load", BASELINE, *others, *(("above it",) if beside else ()))
    note = ("'above it' is by how much the mean of two-tier exceeds that of clairvoyant.",) if beside else ()
    title = "How many times sooner tasks are completed than with round-robin, on average"
    return Section(title, (Table.of_lines(headers, lines, 2, grouped=2), Lines(note, Tone.NOTE)))


def _gain(cell: StudyCell, policy: str) -> str:
    gain = cell.gain(policy)
    assert gain is not None
    return f"{gain.value:.2f} {half_width(gain.relative) if policy == OURS else ''}".rstrip()


def _figures(study: Study) -> Section:
    lines = []
    for cell in study.cells:
        for line in cell.lines:
            values = {name: line.estimate(name).value for name in FIGURES}
            times = (_digits(values[name]) for name in ("mean", "p50", "p95", "p99", "longest"))
            lines.append(
                (
                    *_names(cell),
                    line.policy,
                    *times,
                    f"{values['slowdown']:.2f}",
                    f"{values['fairness']:.2f}",
                    share(values["utilisation"]),
                    f"{values['worst_wait']:.1f}",
                )
            )
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


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _cards(study: Study) -> tuple[Card, ...]:
    """Each workload at its highest load."""
    cards = []
    for name in dict.fromkeys(cell.workload for cell in study.cells):
        cell = max((cell for cell in study.cells if cell.workload == name), key=lambda cell: cell.load)
        gain = cell.gain(OURS)
        if gain:
            what = "sooner than round-robin, two-tier"
            label = f"{name}, load {cell.load:.3g}"
            cards.append(Card(f"{gain.value:.2f}", "times", half_width(gain.relative), what, label, False))
    return tuple(cards)


def _seeds(study: Study) -> str:
    seeds = study.settings["seeds"]
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
