"""Plans against all plans there are, on histories that are small enough to try them all."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from paceline.analysis.select import GUARANTEE, LASTS, CheckHistory, FleetModel, Floats, Kinds, Mask, choose


def model_of(mass: Floats, shown: Floats, minutes: Floats, possible: Mask | None = None) -> FleetModel:
    nodes, benchmarks = tuple(f"n{place}" for place in range(len(mass))), tuple(f"b{n}" for n in range(len(minutes)))
    history = CheckHistory.of_rows(nodes, benchmarks, minutes, np.zeros(len(mass)), 1.0, [], [], possible)
    kinds = Kinds(np.full(len(shown), 1 / len(shown)), shown, np.zeros(len(shown)), 0.01)
    return FleetModel(
        history, kinds, np.zeros(len(mass)), np.ones(len(mass)), mass, np.zeros_like(mass), np.arange(len(mass))
    )


def found_by(model: FleetModel, chosen: Mask) -> float:
    return float((model.mass * (1 - model.kinds.missed(chosen))).sum())


def drawn(seed: int) -> tuple[FleetModel, float]:
    generator = np.random.default_rng(seed)
    minutes = generator.lognormal(1.0, 1.0, 4)
    shown = np.where(generator.random((5, 4)) < 0.5, generator.uniform(0.2, 0.95, (5, 4)), 0.01)
    model = model_of(generator.uniform(0, 0.2, (3, 5)), shown, minutes)
    return model, float(generator.uniform(0.1, 0.8) * 3 * minutes.sum())


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_keeps_its_budget_guarantee_and_bound(seed: int) -> None:
    model, budget = drawn(seed)
    plans = [np.array(flags).reshape(3, 4) for flags in product((False, True), repeat=12)]
    best = max(found_by(model, one) for one in plans if (one @ model.history.minutes).sum() <= budget)
    plan = choose(model, budget)
    assert plan.minutes.sum() <= budget
    assert plan.found == pytest.approx(found_by(model, plan.chosen))
    assert GUARANTEE * best <= plan.found <= best * (1 + 1e-9)
    assert plan.bound >= best * (1 - 1e-9)


def test_one_case_alone_wins_over_many_that_find_more_per_minute() -> None:
    model = model_of(np.array([[0.9, 0.01]]), np.array([[0.9, 0.0], [0.0, 0.9]]), np.array([10.0, 0.1]))
    plan = choose(model, 10.0)
    assert plan.chosen.tolist() == [[True, False]]
    assert plan.found == pytest.approx(0.81)


def test_what_a_node_cannot_run_is_neither_chosen_nor_counted() -> None:
    possible = np.array([[True, False], [True, True]])
    model = model_of(np.full((2, 2), 0.1), np.array([[0.9, 0.0], [0.0, 0.9]]), np.array([1.0, 2.0]), possible)
    plan = choose(model, 100.0)
    assert plan.chosen.tolist() == possible.tolist()
    assert plan.share == pytest.approx(1.0)
    assert plan.whole_minutes == 4.0


def test_without_time_nothing_is_chosen_and_all_is_missed() -> None:
    model, _ = drawn(0)
    plan = choose(model, 0.0)
    assert not plan.chosen.any()
    assert (plan.found, plan.share) == (0.0, 0.0)
    assert plan.whole > 0


def test_what_finds_most_per_minute_runs_first() -> None:
    shown = np.array([[0.9, 0.0, 0.0], [0.0, 0.9, 0.0], [0.0, 0.0, 0.9]])
    model = model_of(np.array([[0.1, 0.3, 0.2], [0.3, 0.0, 0.0]]), shown, np.array([1.0, 1.0, 10.0]))
    assert choose(model, 100.0).orders == ((1, 0, 2), (0,))


def test_a_likely_node_waits_just_after_its_check_but_not_after_an_event() -> None:
    rate, days = np.array([0.006, 0.001]), np.array([2.0, 9.0])  # since the last check of each
    mass = (rate * LASTS * -np.expm1(-days / LASTS))[:, None]
    assert mass[0, 0] > mass[1, 0]
    model = replace(model_of(mass, np.array([[0.9]]), np.array([1.0])), rate=rate)
    assert choose(model, 1.0).orders == ((), (0,))
    assert choose(replace(model, mass=np.array([[0.5], mass[1]])), 1.0).orders == ((0,), ())


def test_checks_at_the_same_urgency_find_the_most_in_all() -> None:
    """Two nodes, one benchmark: which periods are best is tried, and urgency is the same at the end of both."""
    rate, days = np.array([0.01, 0.001]), np.arange(1.0, 120.0, 0.1)
    grown = rate[:, None] * LASTS * -np.expm1(-days / LASTS)
    gains = (grown - 0.02) / days  # defects a day, at a price of 0.02 for a check
    best = gains.argmax(axis=1)
    mass = grown[[0, 1], best][:, None]
    urgency = replace(model_of(mass, np.array([[0.9]]), np.array([1.0])), rate=rate).urgency
    assert urgency == pytest.approx(np.full((2, 1), 0.02), rel=0.02)
