"""How much of what the whole set of benchmarks finds a selection finds, on fleets with a known truth.

Each fleet is checked once a week: half a year with the whole set, from which all policies start, then half a year under
one policy. Minutes are those of all checks, and of the whole set after each incident. `at once` is the part of the
defects that the whole set would find at the first check after they began. `knows the truth` chooses like the selector,
but by the true rates, kinds and sensitivities: what no model can be expected to exceed by much. Below each table stands
what both find in more minutes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
import numpy as np

from bench.fleets import FLEETS, Fleet
from paceline.analysis.select import CheckHistory, FleetModel, Kinds, Mask, choose, learn
from paceline.analysis.simulation import POLICIES, SELECTOR, WHOLE, Estimate, FleetPlan, FleetStudy, Policy, simulate

NODES, SEEDS, SWEEP_SEEDS = 100, 30, 10
TRUTH = "knows the truth"
FOUND, MINUTES, DECISION_SECONDS = 0.9, 0.15, 1.0
MANY = 1_000
BUDGETS = (0.2, 0.25, 0.3)  # parts of its minutes


def run_fleet(
    name: str, seeds: int, plan: FleetPlan, nodes: int = NODES, policies: Sequence[str] = (*POLICIES, TRUTH)
) -> FleetStudy:
    """Policies on one of the fleets."""
    begun, outcomes = time.monotonic(), {}
    for policy in policies:
        fleets = [FLEETS[name](nodes, seed) for seed in range(seeds)]
        outcomes[policy] = [
            simulate(fleet, knows_the_truth(fleet, plan) if policy == TRUTH else policy, plan, fleet.seed)
            for fleet in fleets
        ]
    return FleetStudy(outcomes, {}, time.monotonic() - begun)


def knows_the_truth(fleet: Fleet, plan: FleetPlan) -> Policy:
    """Decides by the fleet's own rates, kinds and sensitivities, and by what events mean; not by what is wrong now."""
    kinds = list(fleet.kinds.values())
    shown = np.minimum(0.999, [kind.sensitivity for kind in kinds]) * (0.62 if fleet.name == "racks" else 1.0)
    warns, noise = np.array([0.8 * kind.warns for kind in kinds]), plan.every * fleet.noise
    left = np.zeros((fleet.nodes, len(kinds)))  # what earlier checks would have missed

    def decide(history: CheckHistory, budget: float, generator: np.random.Generator) -> Mask:
        day, checks = int(history.now), history.checks
        rate = sum((fleet.hazard(day - back) for back in range(plan.every)), np.zeros(fleet.nodes))
        left[checks.node[(checks.day > day - plan.every) & checks.is_defect]] = 0.0
        shares = fleet.shares(day) / fleet.shares(day).sum()
        mass = rate[:, None] * shares + left * np.exp(-plan.every / 30)
        has_event = np.zeros((fleet.nodes, 1), dtype=bool)
        has_event[history.event_node[history.event_day > day - plan.every]] = True
        likely = mass * np.where(has_event, (warns + noise) / noise, 1.0 - warns)
        mass = likely / (np.maximum(0.0, 1.0 - mass.sum(axis=1)) + likely.sum(axis=1))[:, None]
        nothing = np.zeros(fleet.nodes)
        model = FleetModel(history, Kinds(shares, shown), np.zeros(7), np.zeros((fleet.nodes, 6)), nothing, mass)
        chosen = choose(model, budget).chosen
        left[:] = mass * model.kinds.missed(chosen)
        return chosen

    return decide


def main() -> None:
    """Print a table for each fleet, what more minutes find, and what a decision takes."""
    seconds = decision_seconds()
    met = "yes" if seconds < DECISION_SECONDS else "no"
    click.echo(f"{MANY:,} nodes decided in {seconds:.2f} s of the CPU, learning included; under 1 s: {met}")
    for name in FLEETS:
        study = run_fleet(name, SEEDS, FleetPlan(budget=MINUTES))
        click.echo(f"\n{name}: {NODES} nodes, {SEEDS} seeds, {study.seconds:.0f} s")
        click.echo(
            f"  {'policy':16} {'found of whole set':>20} {'at once':>8} {'minutes':>8}  times longer between incidents"
        )
        for policy in study.outcomes:
            found, longer = study.found(policy), study.longer(policy)
            at_once, spent = (study.estimate(policy, figure).value for figure in ("share", "spent"))
            words = f"{_interval(found, 100, ' %'):>20} {at_once:8.1%} {spent:8.1%}  {_interval(longer, 1, '')}"
            click.echo(f"  {policy:16} {words}")
        part, spent = study.found(SELECTOR), study.estimate(SELECTOR, "spent").value
        met = "yes" if part is not None and part.value >= FOUND and spent <= MINUTES + 1e-9 else "no"
        click.echo(f"  at least {FOUND:.0%} of what the whole set finds in at most {MINUTES:.0%} of its minutes: {met}")
        for budget in BUDGETS:
            study = run_fleet(name, SWEEP_SEEDS, FleetPlan(budget=budget), policies=(WHOLE, SELECTOR, TRUTH))
            parts = ", ".join(f"{policy} {_interval(study.found(policy), 100, ' %')}" for policy in (SELECTOR, TRUTH))
            click.echo(f"  {budget:.0%} of the minutes, {SWEEP_SEEDS} seeds: {parts}")


def decision_seconds() -> float:
    """CPU seconds to learn from half a year of weekly checks of many nodes, and to choose; the median of five."""
    histories: list[CheckHistory] = []

    def keep(history: CheckHistory, budget: float, generator: np.random.Generator) -> Mask:
        histories.append(history)
        return np.zeros_like(history.possible)

    simulate(FLEETS["steady"](MANY, 0), keep, FleetPlan(checks=1), 0)
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
