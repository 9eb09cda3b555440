"""Changes of level whose place and size are known, and series that have none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.analysis.trend.steps import CAP, FEWEST, find_changes, penalty

NOISE = 0.01


def noisy(count: int, seed: int = 0) -> np.ndarray:
    return NOISE * np.random.default_rng(seed).normal(size=count)


@pytest.mark.parametrize("factor", [1.05, 0.95, 1.2, 0.8])
@pytest.mark.parametrize("count", [20, 60, 300])
def test_a_step_is_found_at_its_run_with_its_factor(count: int, factor: float) -> None:
    series = noisy(count, seed=3)
    place = 2 * count // 3
    series[place:] += math.log(factor)
    (change,) = find_changes(series).changes
    assert (change.kind, change.at, change.until) == ("step", place, place)
    assert change.earliest <= place <= change.latest
    assert change.interval.low < math.log(factor) < change.interval.high
    assert change.interval.high - change.interval.low < 0.05


def test_several_steps_up_and_down_are_told_apart() -> None:
    series = noisy(200, seed=1)
    for place, size in ((50, 0.05), (90, -0.08), (150, 0.05)):
        series[place:] += size
    fit = find_changes(series)
    assert [change.at for change in fit.changes] == [50, 90, 150]
    assert [round(change.difference, 2) for change in fit.changes] == pytest.approx([0.05, -0.08, 0.05], abs=0.01)
    assert len(set(fit.levels)) == 4


@pytest.mark.parametrize("place", [0, 1, 24, 48, 49])
@pytest.mark.parametrize("size", [0.2, -0.2, 50.0])
def test_a_single_outlier_is_no_step(place: int, size: float) -> None:
    series = noisy(50, seed=5)
    series[place] += size
    fit = find_changes(series)
    assert fit.changes == ()
    assert [index for index, far in enumerate(fit.outliers) if far] == [place]


def test_two_bad_runs_at_the_end_are_a_step_and_one_is_not() -> None:
    series = noisy(40, seed=2)
    series[-2:] += 0.2
    assert [change.at for change in find_changes(series).changes] == [38]
    assert find_changes(series[:-1]).changes == ()


def test_two_bad_runs_in_the_middle_are_none() -> None:
    series = noisy(40, seed=2)
    series[20:22] += 0.2
    assert find_changes(series).changes == ()


def test_outliers_do_not_hide_a_step() -> None:
    series = noisy(80, seed=7)
    series[30:] += 0.05
    series[[5, 31, 60]] += 1.0
    assert [change.at for change in find_changes(series).changes] == [30]


@pytest.mark.parametrize(("count", "rise", "length"), [(100, 0.3, 60), (200, 0.3, 180), (60, -0.2, 20)])
def test_a_ramp_is_one_drift(count: int, rise: float, length: int) -> None:
    start = (count - length) // 2
    series = noisy(count, seed=4) + rise * np.clip((np.arange(count) - start) / length, 0, 1)
    (change,) = find_changes(series).changes
    assert change.kind == "drift"
    assert abs(change.at - start) <= 0.15 * length + 2
    assert abs(change.until - start - length) <= 0.15 * length + 2
    assert change.difference == pytest.approx(rise, rel=0.1)


def test_two_steps_in_one_direction_are_no_drift() -> None:
    series = noisy(100, seed=4)
    series[40:] += 0.05
    series[60:] += 0.05
    assert [(change.kind, change.at) for change in find_changes(series).changes] == [("step", 40), ("step", 60)]


def test_a_series_that_repeats_itself_has_a_level_and_a_step_is_exact() -> None:
    assert find_changes([1.0] * 30).changes == ()
    (change,) = find_changes([1.0] * 12 + [1.05] * 12).changes
    assert change.at == 12
    assert change.difference == pytest.approx(0.05, rel=1e-6)


def test_a_change_in_the_last_digit_is_none() -> None:
    assert find_changes([1.0] * 12 + [1.00001] * 12).changes == ()


@pytest.mark.parametrize("count", range(FEWEST))
def test_too_few_values_have_no_change(count: int) -> None:
    fit = find_changes([0.0, 0.0, 5.0, 5.0, 5.0][:count])
    assert fit.changes == ()
    assert len(fit.levels) == len(fit.outliers) == count


def test_the_penalty_lets_two_outliers_at_the_end_count_and_never_one() -> None:
    for count in (FEWEST, 50, 300, 1000):
        assert CAP**2 < penalty(count) < 2 * CAP**2


def test_noise_in_waves_is_not_torn_into_steps() -> None:
    rng = np.random.default_rng(8)
    told = 0
    for _ in range(40):
        wave = np.zeros(110)
        for place in range(1, 110):
            wave[place] = 0.4 * wave[place - 1] + NOISE * rng.normal()
        told += bool(find_changes(wave[10:]).changes)
    assert told <= 8


def test_the_noise_is_that_around_the_levels() -> None:
    series = noisy(200, seed=9)
    series[100:] += 0.3
    assert find_changes(series).noise == pytest.approx(NOISE, rel=0.2)
