"""How much of what the whole set of benchmarks finds a selection finds, on fleets with a known truth.

Each fleet is checked with the whole set once a week for half a year, from which all policies start, then for half a
year under one policy: subsets and the whole set once a week, the selector every day. Every check ends with the
benchmark that accuses the node. Minutes are those of all checks, those after incidents included: as a part of those of
the whole set if it never ended early, and, `of its`, of those that it took. `knows the truth` chooses like the
selector, but by the true rates, kinds and sensitivities: what no model can be expected to exceed by much. Below each
table stands what both find in other times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import click
import numpy as np

from bench.fleets import FLEETS, Fleet
from paceline.analysis.select import CheckHistory, FleetModel, Kinds, choose, learn
from paceline.analysis.simulation import (
    POLICIES,
    SELECTOR,
    WHOLE,
    Estimate,
    FleetLog,
    FleetPlan,
    FleetStudy,
    Orders,
    Policy,
    orders_of,
    simulate,
)

NODES, SEEDS, SWEEP_SEEDS = 100, 30, 10
TRUTH = "knows the truth"
FOUND, MINUTES, DECISION_SECONDS = 0.9, 0.15, 1.0
BUDGET = 0.14  # of the whole set that never ends early, which is at most MINUTES of what it takes as it does
MANY = 1_000
BUDGETS = (0.1, 0.2)  # parts of the same minutes


def run_fleet(
    name: str, seeds: Sequence[int], plan: FleetPlan, nodes: int = NODES, policies: Sequence[str] = (*POLICIES, TRUTH)
) -> FleetStudy:
    """Policies on one of the fleets."""
    begun, outcomes = time.monotonic(), {}
    for policy in policies:
        fleets = [FLEETS[name](nodes, seed) for seed in seeds]
        outcomes[policy] = [simulate(fleet, POLICIES.get(policy) or knows_the_truth(fleet), plan) for fleet in fleets]
    return FleetStudy(outcomes, {}, time.monotonic() - begun)


def knows_the_truth(fleet: Fleet) -> Policy:
    """Decides by the fleet's own rates, kinds and sensitivities, and by what events mean; not by what is wrong now."""
    models: list[FleetModel] = []

    def decide(log: FleetLog, budget: float, generator: np.random.Generator) -> Orders:
        history = log.history(news=bool(models))
        rate, kinds = fleet.hazard(log.now), true_kinds(fleet, log.now)
        if not models:
            begin, nothing = fleet.installed.astype(float), np.zeros((fleet.nodes, len(kinds.share)))
            models.append(FleetModel(history, kinds, rate, begin, nothing, nothing, np.arange(fleet.nodes)))
        models[0] = replace(models[0], rate=rate, kinds=kinds).follow(history)
        return orders_of(models[0], budget, log)

    return Policy(lambda: decide, daily=True)


def true_kinds(fleet: Fleet, day: int) -> Kinds:
    """What the selector has to learn; sensitivities of defects that grow are those on an average day."""
    kinds, shares = list(fleet.kinds.values()), fleet.shares(day)
    shown = np.clip([kind.sensitivity for kind in kinds], 1e-3, 0.98) * (0.75 if fleet.name == "racks" else 1.0)
    return Kinds(shares / shares.sum(), shown, np.array([0.95 * kind.warns for kind in kinds]), fleet.noise)


def main() -> None:
    """Print a table for each fleet, what other minutes find, and what a decision takes."""
    seconds = decision_seconds()
    met = "yes" if seconds < DECISION_SECONDS else "no"
    click.echo(f"{MANY:,} nodes decided in {seconds:.2f} s of the CPU, learning included; under 1 s: {met}")
    for name in FLEETS:
        study = run_fleet(name, range(SEEDS), FleetPlan(budget=BUDGET))
        click.echo(f"\n{name}: {NODES} nodes, {SEEDS} seeds, {study.seconds:.0f} s")
        click.echo(
            f"  {'policy':16} {'found of whole set':>22} {'minutes':>8} {'of its':>8}  times longer between incidents"
        )
        for policy in study.outcomes:
            minutes = study.ratio((policy, "hours"), (WHOLE, "hours"))
            words = f"{study.estimate(policy, 'spent').value:8.1%} {minutes.value if minutes else 0.0:8.1%}"
            found = _interval(study.found(policy), 100, " %")
            click.echo(f"  {policy:16} {found:>22} {words}  {_interval(study.longer(policy), 1, '')}")
        part, minutes = study.found(SELECTOR), study.ratio((SELECTOR, "hours"), (WHOLE, "hours"))
        met = "yes" if part and minutes and part.value >= FOUND and minutes.value <= MINUTES else "no"
        click.echo(f"  at least {FOUND:.0%} of what the whole set finds in at most {MINUTES:.0%} of its minutes: {met}")
        for budget in BUDGETS:
            study = run_fleet(name, range(SWEEP_SEEDS), FleetPlan(budget=budget), policies=(WHOLE, SELECTOR, TRUTH))
            parts = ", ".join(f"{policy} {_interval(study.found(policy), 100, ' %')}" for policy in (SELECTOR, TRUTH))
            click.echo(f"  {budget:.0%} of the minutes, {SWEEP_SEEDS} seeds: {parts}")


def decision_seconds() -> float:
    """CPU seconds to learn from half a year of weekly checks of many nodes, and to choose; the median of five."""
    histories: list[CheckHistory] = []

    def keep(log: FleetLog, budget: float, generator: np.random.Generator) -> Orders:
        histories.append(log.history())
        return {}

    simulate(FLEETS["steady"](MANY, 0), Policy(lambda: keep), FleetPlan(checks=1))
    times = []
    for _ in range(5):
        begun = time.process_time()
        choose(learn(histories[0]), MINUTES * float(histories[0].minutes.sum()) * MANY)
        times.append(time.process_time() - begun)
    return float(np.median(times))


def _interval(one: Estimate | None, scale: float, unit: str) -> str:
    if one is None:
        return "–"
    ends = f" ({scale * one.interval.low:.3g} to {scale * one.interval.high:.3g})" if one.interval else ""
    return f"{scale * one.value:.3g}{unit}{ends}"
