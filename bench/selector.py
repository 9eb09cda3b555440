"""How much of what the whole set of benchmarks finds a selection finds, on fleets with a known truth.

Each fleet is checked once a week: half a year with the whole set, from which all policies start, then half a year under
one policy. A defect counts at the first check after it began, if the whole set would have found it then. Minutes are
those of all checks and of the whole set after each incident.
"""

from __future__ import annotations

import time

import click
import numpy as np

from bench.fleets import FLEETS
from paceline.analysis.select import simulation
from paceline.analysis.select.choice import choose
from paceline.analysis.select.model import learn
from paceline.analysis.select.simulation import FIXED, NONE, RANDOM, SELECTOR, WHOLE, FleetPlan, FleetStudy
from paceline.analysis.simulation import Estimate

NODES, SEEDS = 200, 30
POLICIES = (NONE, WHOLE, FIXED, RANDOM, SELECTOR)
FOUND, MINUTES, DECISION_SECONDS = 0.9, 0.15, 1.0
MANY = 1_000


def run_fleet(name: str, seeds: int, plan: FleetPlan, nodes: int = NODES) -> FleetStudy:
    """All policies on one of the fleets."""
    begun = time.monotonic()
    outcomes = {
        policy: [simulation.simulate(FLEETS[name](nodes, seed), policy, plan, seed) for seed in range(seeds)]
        for policy in POLICIES
    }
    return FleetStudy(outcomes, {}, time.monotonic() - begun)


def main() -> None:
    """Print a table for each fleet, and what a decision takes."""
    for name in FLEETS:
        study = run_fleet(name, SEEDS, FleetPlan(budget=MINUTES))
        click.echo(f"\n{name}: {NODES} nodes, {SEEDS} seeds, {study.seconds:.0f} s")
        click.echo(
            f"  {'policy':14} {'found at once':>20} {'minutes':>9} {'incidents':>9} {'times longer between':>22}"
        )
        for policy in POLICIES:
            found, spent = (study.estimate(policy, figure) for figure in ("share", "spent"))
            longer = study.longer(policy, NONE)
            shown = _interval(longer, 1, "") if longer is not None else ""
            incidents = study.estimate(policy, "incidents").value
            click.echo(
                f"  {policy:14} {_interval(found, 100, ' %'):>20} {spent.value:9.1%} {incidents:9.1f} {shown:>22}"
            )
        found, spent = (study.estimate(SELECTOR, figure).value for figure in ("share", "spent"))
        met = "yes" if found >= FOUND and spent <= MINUTES else "no"
        click.echo(f"  at least {FOUND:.0%} in at most {MINUTES:.0%} of the minutes: {met}")
    seconds = decision_seconds()
    met = "yes" if seconds < DECISION_SECONDS else "no"
    click.echo(f"\n{MANY:,} nodes decided in {seconds:.2f} s of the CPU, learning included; under 1 s: {met}")


def decision_seconds() -> float:
    """CPU seconds to learn from half a year of weekly checks of many nodes, and to choose; the median of five."""
    histories: list[simulation.CheckHistory] = []

    def keep(history: simulation.CheckHistory, budget: float, generator: np.random.Generator) -> simulation.Mask:
        histories.append(history)
        return np.zeros_like(history.possible)

    simulation.simulate(FLEETS["steady"](MANY, 0), keep, FleetPlan(checks=1), 0)
    times = []
    for _ in range(5):
        begun = time.process_time()
        choose(learn(histories[0]), MINUTES * float(histories[0].minutes.sum()) * MANY)
        times.append(time.process_time() - begun)
    return float(np.median(times))


def _interval(one: Estimate, scale: float, unit: str) -> str:
    ends = f" ({scale * one.interval.low:.3g} to {scale * one.interval.high:.3g})" if one.interval else ""
    return f"{scale * one.value:.3g}{unit}{ends}"
