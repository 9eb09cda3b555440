"""How often a change is found where there is one, and where there is none: simulated series, the same every time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.analysis.trend.steps import find_changes

NOISE = 0.01
Draw = Callable[[np.random.Generator, int], np.ndarray]

# Each has a middle deviation of about one.
NOISES: dict[str, Draw] = {
    "normal": lambda rng, count: rng.normal(size=count),
    "Student's t, 3 degrees": lambda rng, count: rng.standard_t(3, count) / 1.13,
    "one in ten slow": lambda rng, count: (
        rng.normal(size=count) + (rng.random(count) < 0.1) * rng.exponential(8, count)
    ),
}


@pytest.mark.parametrize("name", NOISES)
def test_false_alarms_in_a_thousand_series_without_a_step_are_at_most_five_percent(name: str) -> None:
    rng = np.random.default_rng(20)
    alarms = sum(bool(find_changes(NOISE * NOISES[name](rng, 50)).changes) for _ in range(1000))
    assert alarms <= 50


@pytest.mark.parametrize("count", [8, 20, 150])
def test_false_alarms_in_short_and_long_series(count: int) -> None:
    rng = np.random.default_rng(21)
    alarms = sum(bool(find_changes(NOISE * NOISES["normal"](rng, count)).changes) for _ in range(200))
    assert alarms <= 10


def exactness(count: int, step: float, simulated: int = 200) -> tuple[float, float]:
    """The parts of simulated series in which a step is found within one run of its place, and at its very run."""
    rng = np.random.default_rng(22)
    near = exact = 0
    for _ in range(simulated):
        place = int(rng.integers(max(3, count // 10), count - max(3, count // 10) + 1))
        series = NOISE * rng.normal(size=count)
        series[place:] += math.log1p(step * rng.choice([-1.0, 1.0]))
        distances = [abs(change.at - place) for change in find_changes(series).changes]
        near += min(distances, default=count) <= 1
        exact += min(distances, default=count) == 0
    return near / simulated, exact / simulated


@pytest.mark.parametrize("count", [20, 60, pytest.param(300, marks=pytest.mark.long)])
def test_a_step_of_five_percent_is_found_at_its_very_run(count: int) -> None:
    near, exact = exactness(count, 0.05, simulated=200 if count < 300 else 100)
    assert exact >= 0.95
    assert near >= 0.98


@pytest.mark.parametrize(
    ("count", "least"),
    [(20, 0.75), pytest.param(60, 0.9, marks=pytest.mark.long), pytest.param(100, 0.95, marks=pytest.mark.long)],
)
def test_a_step_of_three_percent_is_mostly_found(count: int, least: float) -> None:
    near, _ = exactness(count, 0.03)
    assert near >= least


def test_a_step_of_twenty_percent_is_always_found() -> None:
    near, exact = exactness(30, 0.2)
    assert near == 1.0
    assert exact >= 0.98


def test_the_interval_of_a_step_holds_the_true_one() -> None:
    rng = np.random.default_rng(23)
    held = 0
    for _ in range(200):
        series = NOISE * rng.normal(size=60)
        series[35:] += 0.05
        held += any(change.interval.low <= 0.05 <= change.interval.high for change in find_changes(series).changes)
    assert held >= 0.9 * 200


@given(seed=st.integers(0, 10**6), count=st.integers(20, 120), rise=st.floats(0.05, 0.5), sign=st.sampled_from([-1, 1]))
def test_a_ramp_is_not_torn_into_many_steps(seed: int, count: int, rise: float, sign: int) -> None:
    noise = NOISE * np.random.default_rng(seed).normal(size=count)
    changes = find_changes(noise + sign * rise * np.arange(count) / count).changes
    assert len(changes) <= 4


@given(seed=st.integers(0, 10**6), shift=st.floats(-20, 20), place=st.integers(5, 35))
def test_the_unit_of_the_values_does_not_matter(seed: int, shift: float, place: int) -> None:
    series = NOISE * np.random.default_rng(seed).normal(size=40)
    series[place:] += 0.06
    here, there = find_changes(series).changes, find_changes(series + shift).changes
    assert [change.at for change in here] == [change.at for change in there]


@given(values=st.lists(st.floats(-1e6, 1e6), max_size=60))
def test_any_series_has_an_answer(values: list[float]) -> None:
    fit = find_changes(values)
    assert len(fit.levels) == len(fit.outliers) == len(values)
    places = [change.at for change in fit.changes]
    assert places == sorted(set(places))
    for change in fit.changes:
        assert 0 < change.at <= change.until < len(values)
        assert 0 < change.earliest <= change.latest < len(values)
        assert change.interval.low <= change.difference <= change.interval.high
        assert not change.interval.low <= 0.0 <= change.interval.high or change.kind == "drift"


@given(
    seed=st.integers(0, 10**6), place=st.integers(0, 59), size=st.floats(0.1, 1e6), sign=st.sampled_from([-1.0, 1.0])
)
def test_one_outlier_begins_no_change(seed: int, place: int, size: float, sign: float) -> None:
    series = NOISE * np.random.default_rng(seed).normal(size=60)
    series[place] += sign * size
    assert not [change for change in find_changes(series).changes if change.kind == "step" and change.at == place]
