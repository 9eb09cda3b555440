"""What a selection plan says, and how policies of validation compare: as a document, and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from paceline.analysis.diagnose.early import FEWEST
from paceline.analysis.select import GUARANTEE, PRIOR_DAYS, SelectionPlan
from paceline.analysis.simulation import FEWEST_EVENTS, NONE, SELECTOR, WHOLE, Estimate, FleetStudy
from paceline.analysis.summary import shortened
from paceline.core.quantity import show_duration, show_interval, with_interval
from paceline.report.document import Block, Document, Lines, Medium, Section, Table, Tone
from paceline.report.simulate import estimate_fields as fields
from paceline.report.text import one_line, share

SHOWN = 30  # nodes on a terminal


def answer(plan: SelectionPlan) -> str:
    """The sentence that leads."""
    nodes, tested = len(plan.chosen), int(plan.chosen.any(axis=1).sum())
    spent = float(plan.minutes.sum())
    part = share(spent / plan.whole_minutes) if plan.whole_minutes else "0 %"
    return (
        f"{_time(spent)} on {tested} of {nodes} nodes, {part} of the time of all benchmarks, are expected to find "
        f"{share(plan.share)} of the defects that all would find."
    )


@dataclass(frozen=True)
class Circumstances:
    """What is known of a plan besides itself."""

    unjudged: int = 0  # checks that say nothing of health
    has_baseline: bool = False  # nodes are judged by each other where it has not
    gone: Mapping[str, datetime] = field(default_factory=dict)  # nodes that are left out, and when each was seen last
    seen_within: str = ""  # the time, as the user gave it, in which they were not


def document(plan: SelectionPlan, suite: str, around: Circumstances) -> Document:
    """The plan by node, what it does not test, and what it rests on."""
    headers = ("Node", "Defective", "Benchmarks", "Time", "Why")
    lines = [
        (row["node"], share(row["probability"]), ", ".join(row["benchmarks"]) or "–", _time(row["minutes"]), row["why"])
        for row in _rows(plan)
    ]
    more = (f"{len(lines) - SHOWN} more nodes are in --md, --html and --json.",) if len(lines) > SHOWN else ()
    items = (
        Table.of_lines(headers, lines[:SHOWN], 5, is_wide=True, medium=Medium.TERMINAL),
        Lines(more, Tone.NOTE, Medium.TERMINAL),
        Table.of_lines(headers, lines, 5, medium=Medium.FILES),
    )
    order = "The benchmarks of a node are in the order to run them in; --until-defect ends at one that accuses it."
    sections = (
        Section("The plan", (*items, Lines((order,), Tone.NOTE))),
        Section("What is not tested", (Lines(tuple(untested(plan, around))),), Tone.WARNING),
        Section("What it rests on", (Lines(tuple(basis(plan, around))),), Tone.BASIS),
    )
    return Document("Selection", (Block(answer(plan), f"benchmarks of {one_line(suite)}", sections),))


def untested(plan: SelectionPlan, around: Circumstances) -> list[str]:
    """Nodes and benchmarks that are left out, and what is expected to stay unseen."""
    history = plan.model.history
    nodes = [history.nodes[node] for node in np.flatnonzero(~plan.chosen.any(axis=1))]
    left_out = ~plan.chosen.any(axis=0) & history.possible.any(axis=0)
    benchmarks = [history.benchmarks[place] for place in np.flatnonzero(left_out)]
    lines = [f"Nodes without any benchmark: {one_line(shortened(nodes, 8))}."] if nodes else []
    if around.gone:
        gone = [f"{node} (last seen on {at:%Y-%m-%d})" for node, at in around.gone.items()]
        lines.append(
            f"Nodes that are left out, as they have no run of the last {around.seen_within}: "
            f"{one_line(shortened(gone, 8))}. A longer --seen-within takes them in."
        )
    lines += [f"Benchmarks that run on no node: {shortened(benchmarks, 8)}."] if benchmarks else []
    missed = plan.whole - plan.found
    lines.append(
        f"{plan.expected:.2g} defective nodes are expected. All benchmarks would find {plan.whole:.2g} of them; this "
        f"plan misses {missed:.2g} of these, {share(1 - plan.share)}."
    )
    return lines


def basis(plan: SelectionPlan, around: Circumstances) -> list[str]:
    """What was learned from, and how good the choice is for it."""
    model, checks = plan.model, plan.model.history.checks
    nodes = len(set(checks.node.tolist()))  # the plan may be for some of them
    lines = [f"Learned from {model.defects} defects in {len(checks.node)} checks of {nodes} nodes."]
    if not model.defects:
        lines = [
            f"No defect is in the store: the probabilities are a prior's, one defect of a node in {PRIOR_DAYS:g} days, "
            "and every benchmark counts as equally likely to show one."
        ]
    if around.unjudged:
        why = "the baseline has no figure of what they measured"
        if not around.has_baseline:
            why = f"fewer than {FEWEST} nodes measured the same within a day, and there is no --baseline"
        more = "1 more check does" if around.unjudged == 1 else f"{around.unjudged} more checks do"
        lines.append(f"{more} not show that a node is healthy: {why}.")
    if benchmarks := uncompared(plan, around):
        lines.append(
            f"This plan runs {shortened(benchmarks, 8)} on fewer than {FEWEST} nodes, which are too few to compare: "
            "only a case that fails is a defect there and nothing is proof of health, unless others measure the same "
            "within a day. --baseline judges each node alone."
        )
    reached = plan.worth / plan.bound if plan.bound else 1.0
    lines.append(
        "A defect counts for less where a check a little later would find more for the same minutes. Counted so, this "
        f"plan reaches at least {int(100 * reached)} % of the best one of this length, by what was learned; the method "
        f"never falls below {int(100 * GUARANTEE)} % of it."
    )
    return lines


def uncompared(plan: SelectionPlan, around: Circumstances) -> list[str]:
    """The benchmarks that the plan runs on too few nodes to judge these by each other."""
    nodes = plan.chosen.sum(axis=0)
    few = np.flatnonzero((nodes > 0) & (nodes < FEWEST) & (not around.has_baseline))
    return [plan.model.history.benchmarks[place] for place in few]


def to_json(plan: SelectionPlan, suite: str, around: Circumstances) -> str:
    """For programs."""
    whole = {
        "kind": "selection",
        "suite": suite,
        "answer": answer(plan),
        "budget_minutes": plan.budget,
        "minutes": float(plan.minutes.sum()),
        "whole_minutes": plan.whole_minutes,
        "defects_learned_from": plan.model.defects,
        "checks_learned_from": len(plan.model.history.checks.day),
        "checks_without_a_verdict": around.unjudged,
        "expected_defective": plan.expected,
        "expected_found": plan.found,
        "expected_found_by_all": plan.whole,
        "share": plan.share,
        "worth": plan.worth,
        "bound": plan.bound,
        "not_tested": untested(plan, around),
        "not_seen": {one_line(node): at.isoformat() for node, at in around.gone.items()},
        "not_compared": uncompared(plan, around),
        "nodes": _rows(plan),
    }
    return json.dumps(whole, indent=2) + "\n"


def _rows(plan: SelectionPlan) -> list[dict[str, Any]]:
    """Each node, the most likely defective first."""
    model, minutes = plan.model, plan.minutes
    return [
        {
            "node": one_line(model.history.nodes[node]),
            "probability": float(model.probability[node]),
            "benchmarks": [model.history.benchmarks[place] for place in plan.orders[node]],
            "minutes": float(minutes[node]),
            "why": model.reason(int(node)),
        }
        for node in np.argsort(-model.probability, kind="stable")
    ]


def _time(minutes: float) -> str:
    return show_duration(60 * minutes) if minutes else "–"


def study_document(study: FleetStudy) -> Document:
    """How policies of validation compare, and what the comparison assumes."""
    settings = study.settings
    lines = [
        (
            policy,
            _estimate(study.between(policy), "{:,.0f} d"),
            _estimate(study.longer(policy), "{:.2f}"),
            *(f"{study.estimate(policy, name).value:,.0f}" for name in ("incidents", "found")),
            _estimate(study.found(policy), "{:.2f}"),
            f"{study.estimate(policy, 'hours').value:,.0f}",
        )
        for policy in study.outcomes
    ]
    headers = ("Policy", "Between incidents", "Times longer", "Incidents", "Found", "Of whole set", "Hours")
    assumed = [
        "This is arithmetic over drawn fleets, not a measurement. Defects begin at rates that differ from node to node "
        f"(deviation of the logarithm {settings['spread']:g}), {settings['rate']:.2g} a day and node on average; which "
        f"benchmarks show which kind is drawn. Jobs run into a defect {settings['lasts']:g} days after it began, on "
        f"average, into {share(settings['sudden'])} of them at once.",
        f"All policies begin after {settings['learning']} checks with the whole set. A node is repaired when a check "
        "accuses it or a job has run into its defect; then it is checked, too, which counts. Every check ends with the "
        "benchmark that accuses the node. Subsets and the selector get "
        f"{share(settings['budget'])} of the minutes of the whole set; the selector decides every day. Hours are those "
        "of machines.",
    ]
    ratios = [of(policy) for of in (study.longer, study.found) for policy in study.outcomes]
    if None in ratios and {NONE, WHOLE} <= study.outcomes.keys():
        assumed.append(f"No ratio is made of fewer than {FEWEST_EVENTS} incidents or defects found. {_MORE}")
    about = (
        f"{settings['nodes']:,} nodes, {settings['checks']} checks {settings['every']} days apart, "
        f"{len(settings['seeds'])} {'seed' if len(settings['seeds']) == 1 else 'seeds'}; took {study.seconds:.1f} s"
    )
    sections = (
        Section("Policies", (Table.of_lines(headers, lines, 1),)),
        Section("What to know before believing it", (Lines(tuple(assumed)),), Tone.BASIS),
    )
    return Document("Fleet", (Block(study_answer(study), about, sections),))


def study_answer(study: FleetStudy) -> str:
    """The sentence that leads."""
    longer, found = study.longer(SELECTOR), study.found(SELECTOR)
    if longer is None or found is None:
        incidents = {policy: study.estimate(policy, "incidents").value for policy in study.outcomes}
        fewest = [f"'{policy}'" for policy, count in incidents.items() if count == min(incidents.values())]
        most = max(sum(one.incidents for one in of_seeds) for of_seeds in study.outcomes.values())
        if most < FEWEST_EVENTS and len(incidents) > 1:
            happened = f"had more than {_incidents(most)} in all" if most else "had an incident"
            return f"Too little happened to compare policies: none of them {happened}. {_MORE}"
        if len(fewest) == len(incidents) > 1:
            return f"All policies have the same number of incidents: {min(incidents.values()):,.0f}."
        if len(incidents) == 1:
            return f"Under {fewest[0]} there were {min(incidents.values()):,.1f} incidents on average."
        return f"Incidents are fewest under {', '.join(fewest)}."
    return (
        f"With the selector a node runs {longer.value:.2f} times longer{_around(longer, '{:.2f}'.format)} between "
        f"incidents than without checks, and {share(found.value)}{_around(found, share)} as many defects are found as "
        "with the whole set."
    )


def _incidents(count: int) -> str:
    return "1 incident" if count == 1 else f"{count} incidents"


_MORE = "Take more --nodes, --checks or --seeds."


def _around(one: Estimate, form: Callable[[float], str]) -> str:
    interval = show_interval(one.value, one.interval, form)
    return f" ({interval})" if interval else ""


def study_json(study: FleetStudy) -> str:
    """For programs."""
    policies = []
    for policy in study.outcomes:
        figures = {name: study.estimate(policy, name) for name in ("incidents", "found", "hours")}
        ratios = {"days_between": study.between, "times_longer": study.longer, "found_of_whole_set": study.found}
        figures |= {name: ratio for name, of in ratios.items() if (ratio := of(policy)) is not None}
        policies.append({"policy": policy} | {name: fields(one) for name, one in figures.items()})
    whole = {"kind": "fleet simulation", "settings": study.settings, "seconds": study.seconds, "policies": policies}
    return json.dumps(whole, indent=2) + "\n"


def _estimate(one: Estimate | None, form: str) -> str:
    if one is None:
        return "–"
    return with_interval(form.format(one.value), show_interval(one.value, one.interval, form.format))
