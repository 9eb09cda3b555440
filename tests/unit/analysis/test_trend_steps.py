"""Changes of level whose place and size are known, and series that have none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paceline.analysis.trend.steps import FEWEST, _confirmed, _refined, _two_levels, find_changes, penalty

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


# ---- recorded answers: what is said of the history of a store does not change unnoticed


def made(
    seed: int,
    count: int,
    *steps: tuple[int, float],
    ramps: Sequence[tuple[int, int, float]] = (),
    outliers: Sequence[tuple[int, float]] = (),
    memory: float = 0.0,
) -> np.ndarray:
    """A series with these changes; of noise with memory each value keeps a part of the one before."""
    draws = np.random.default_rng(seed).normal(size=count)
    for place in range(1, count):
        draws[place] += memory * draws[place - 1]
    values = NOISE * draws
    for place, size in steps:
        values[place:] += size
    for start, stop, rise in ramps:
        values += rise * np.clip((np.arange(count) - start) / (stop - start), 0.0, 1.0)
    for place, size in outliers:
        values[place] += size
    return values


# Series; noise; sum of the levels, each times its place from 1; changes; places of outliers.
RECORDED: dict[str, tuple[np.ndarray, float, float, list[tuple[Any, ...]], list[int]]] = {
    "six values": (
        np.array([1.0, 1.01, 0.99, 1.5, 1.51, 1.49]),
        0.014826,
        28.5,
        [("step", 3, 3, 3, 3, 0.5, 0.4811715551, 0.5188284449)],
        [],
    ),
    "steps close together": (
        made(1, 60, (20, 0.06), (26, -0.05), (40, 0.04)),
        0.007745646993,
        62.23456319,
        [
            ("step", 20, 20, 20, 20, 0.0553470469, 0.04204049767, 0.06865359614),
            ("step", 26, 26, 24, 26, -0.0443439547, -0.06003140168, -0.02865650772),
            ("step", 40, 40, 40, 40, 0.03710003902, 0.02970628629, 0.04449379174),
        ],
        [],
    ),
    "small step in a short series": (
        made(2, 20, (9, 0.035)),
        0.007778921164,
        5.577357221,
        [("step", 9, 9, 9, 9, 0.03311596461, 0.02417753662, 0.0420543926)],
        [],
    ),
    "step after a ramp": (
        made(3, 90, (70, -0.08), ramps=[(15, 45, 0.2)]),
        0.01053184763,
        584.7512074,
        [
            ("drift", 15, 46, 15, 15, 0.2009659727, 0.1946000499, 0.2073318955),
            ("step", 70, 70, 70, 70, -0.07457452733, -0.083910264, -0.06523879066),
        ],
        [],
    ),
    "ramp after a step": (
        made(4, 90, (20, -0.08), ramps=[(40, 75, 0.2)]),
        0.0102503034,
        152.170529,
        [
            ("step", 20, 20, 20, 20, -0.08129257024, -0.08870461869, -0.0738805218),
            ("drift", 41, 74, 41, 41, 0.1982868335, 0.1924411576, 0.2041325094),
        ],
        [],
    ),
    "ramp with outliers": (
        made(5, 80, ramps=[(20, 60, -0.3)], outliers=[(10, 0.2), (35, 0.3), (70, -0.4)]),
        0.01096532230,
        -702.8462476,
        [("drift", 20, 60, 20, 20, -0.2985454665, -0.3037784406, -0.2933124925)],
        [10, 35, 70],
    ),
    "short ramp": (
        made(6, 30, ramps=[(12, 18, 0.15)]),
        0.009347211406,
        50.77529458,
        [("drift", 13, 17, 13, 13, 0.1449632965, 0.1364203431, 0.15350625)],
        [],
    ),
    "ramp to the end": (
        made(7, 50, ramps=[(25, 49, 0.25)]),
        0.008406367792,
        129.9687319,
        [("drift", 26, 49, 26, 26, 0.2560817175, 0.2478272971, 0.2643361379)],
        [],
    ),
    "waves": (
        made(8, 120, (60, 0.3), memory=0.6),
        0.01226682047,
        1623.947433,
        [
            ("step", 60, 60, 57, 60, 0.3130119566, 0.3020165078, 0.3240074053),
            ("step", 87, 87, 86, 90, -0.01505720672, -0.02456644945, -0.005547963984),
        ],
        [],
    ),
    "waves of forty": (
        made(9, 40, (20, 0.25), memory=0.7),
        0.009722175124,
        152.8737548,
        [
            ("step", 13, 13, 12, 13, 0.02229814868, 0.004406073227, 0.04019022414),
            ("step", 20, 20, 20, 20, 0.2304037242, 0.2096699511, 0.2511374973),
        ],
        [34],
    ),
    "waves without a step": (
        made(10, 100, memory=0.8),
        0.01484153425,
        -58.19032831,
        [],
        [7],
    ),
    "stairs": (
        made(11, 100, (30, 0.05), (50, 0.05), (75, 0.06)),
        0.009198116374,
        554.7307533,
        [
            ("step", 30, 30, 30, 30, 0.05071120313, 0.04573615668, 0.05568624958),
            ("step", 50, 50, 50, 50, 0.0532360012, 0.04841976812, 0.05805223427),
            ("step", 75, 75, 75, 76, 0.05860627337, 0.05303345883, 0.06417908792),
        ],
        [],
    ),
    "stairs up and down": (
        made(12, 120, (20, 0.08), (50, 0.08), (70, -0.1), (100, -0.05)),
        0.009447375152,
        457.2549479,
        [
            ("step", 20, 20, 20, 20, 0.07671403171, 0.07022680924, 0.08320125417),
            ("step", 50, 50, 50, 50, 0.08327866997, 0.07614342836, 0.09041391159),
            ("step", 70, 70, 69, 70, -0.1016085755, -0.1088568901, -0.09436026084),
            ("step", 100, 100, 100, 101, -0.05010347255, -0.05682004478, -0.04338690032),
        ],
        [],
    ),
    "mostly equal": (
        np.array([1.0] * 9 + [1.1] + [1.0] * 5 + [2.0] * 8),
        0.009884,
        432.8,
        [("step", 15, 15, 15, 15, 0.9933333333, 0.9763010246, 1.010365642)],
        [],
    ),
    "step with outliers": (
        made(13, 70, (30, 0.05), outliers=[(29, 0.2), (31, -0.3), (50, 0.1)]),
        0.01028774544,
        103.4502504,
        [("step", 30, 30, 29, 30, 0.04726600663, 0.04105466344, 0.05347734983)],
        [29, 31, 50],
    ),
    "two at the end": (
        made(14, 40, (38, 0.2)),
        0.01014874201,
        16.13600408,
        [("step", 38, 38, 38, 38, 0.2023372161, 0.1825681147, 0.2221063176)],
        [],
    ),
    "slow": (
        made(15, 300, (100, 0.02), (200, -0.02)),
        0.01056651103,
        301.0920913,
        [
            ("step", 100, 100, 99, 101, 0.01959055632, 0.01630944555, 0.02287166709),
            ("step", 199, 199, 198, 200, -0.02061246546, -0.02387309102, -0.01735183991),
        ],
        [],
    ),
    "two ramps": (
        made(16, 150, ramps=[(10, 50, 0.2), (80, 130, -0.25)]),
        0.01078746441,
        747.0836069,
        [
            ("drift", 12, 49, 12, 12, 0.1973268986, 0.1919436468, 0.2027101505),
            ("drift", 81, 130, 81, 81, -0.2511543036, -0.2563449044, -0.2459637028),
        ],
        [],
    ),
    "steep ramp": (
        made(17, 40, ramps=[(18, 22, 0.4)]),
        0.01169941078,
        241.4888257,
        [("step", 20, 20, 19, 22, 0.3983868122, 0.3879444412, 0.4088291832)],
        [19, 20, 21],
    ),
    "coarse values": (
        np.array(
            [
                0.0,
                0.0,
                1.0,
                0.3,
                0.3,
                0.0,
                2.0,
                2.0,
                2.0,
                2.0,
                2.0,
                0.3,
                2.0,
                1.0,
                2.0,
                1.0,
                2.0,
                0.0,
                0.0,
                2.0,
                2.0,
                0.3,
                0.0,
                0.3,
                0.0,
                0.0,
            ]
        ),
        0.7413,
        98.71875,
        [],
        [],
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_series_has_its_recorded_answer(name: str) -> None:
    series, noise, levels, changes, outliers = RECORDED[name]
    fit = find_changes(series)
    whole = [(one.kind, one.at, one.until, one.earliest, one.latest) for one in fit.changes]
    assert whole == [one[:5] for one in changes]
    figures = [(one.difference, one.interval.low, one.interval.high) for one in fit.changes]
    assert figures == [pytest.approx(one[5:], rel=1e-7, abs=1e-9) for one in changes]
    assert {one.interval.confidence for one in fit.changes} <= {0.95}
    assert fit.noise == pytest.approx(noise, rel=1e-7, abs=1e-12)
    assert math.fsum(place * level for place, level in enumerate(fit.levels, 1)) == pytest.approx(levels, rel=1e-7)
    assert [place for place, far in enumerate(fit.outliers) if far] == outliers


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_a_step_of_six_values_by_hand(scale: float) -> None:
    fit = find_changes(scale * np.array([1.0, 1.01, 0.99, 1.5, 1.51, 1.49]))
    (change,) = fit.changes
    assert (change.at, change.difference) == (3, pytest.approx(0.5 * scale))
    noise = 1.4826 * 0.02 / math.sqrt(2.0)  # neighbours differ by 0.01, 0.02, 0.51, 0.01, 0.02
    squares = 4 * (0.01 / noise) ** 2
    both = squares / (6 - 2)
    variance = (squares / 2 + 4 * both) / (3 - 1 + 4)
    # Residuals 0, 1, -1 on either side resemble their neighbours by -0.5 + 3 / 6: not at all.
    reach = scale * noise * stats.t.ppf(0.975, 6 - 2 + 4) * math.sqrt(variance * (1 / 3 + 1 / 3))
    ends = (change.interval.low, change.interval.high)
    assert ends == pytest.approx((0.5 * scale - reach, 0.5 * scale + reach), rel=1e-9)
    assert fit.levels == pytest.approx(scale * np.repeat([1.0, 1.5], 3))
    assert fit.noise == pytest.approx(scale * 1.4826 * 0.01)
    assert fit.outliers == (False,) * 6


def test_too_few_values_have_their_median_for_a_level_and_no_noise() -> None:
    fit = find_changes([5.0, 1.0, 1.0, 9.0, 2.0])
    assert (fit.levels, fit.outliers, fit.noise) == ((2.0,) * 5, (False,) * 5, 0.0)
    assert find_changes([]).levels == ()


def test_no_noise_is_below_the_smallest() -> None:
    series = [1.0, 2.0] * 4 + [7.0, 8.0] * 4
    assert [change.at for change in find_changes(series).changes] == [8]
    assert find_changes(series, smallest_noise=50.0).changes == ()


@pytest.mark.parametrize(("count", "expected"), [(6, 14.0), (50, 14.0), (500, 16.0), (5000, 18.0)])
def test_the_penalty_grows_with_long_series(count: int, expected: float) -> None:
    assert penalty(count) == pytest.approx(expected)


def test_a_cut_that_noise_explains_is_not_confirmed() -> None:
    series = np.tile([1.0, -1.0], 30)
    assert _confirmed(series, [30]) == []  # no difference at all
    series[30:] += 0.1
    assert _confirmed(series, [30]) == []
    series[20:] += 8.0
    series[44:] -= 6.0
    assert _confirmed(series, [20, 32, 44]) == [20, 44]
    assert _confirmed(series, [10, 20, 44]) == [20, 44]
    assert _confirmed(series, []) == []


def test_a_cut_moves_to_where_its_levels_part() -> None:
    series = np.repeat([0.0, 8.0, 2.0], [12, 10, 14])
    assert _refined(series, [10, 24]) == [12, 22]
    assert _refined(series, [14, 21]) == [12, 22]
    # Where two places are equally good, the cut stays.
    series[12] = 4.0
    assert [_refined(series, [place, 22])[0] for place in (12, 13)] == [12, 13]


def test_two_levels_are_those_of_least_squares() -> None:
    rng = np.random.default_rng(8)
    way = np.clip((np.arange(20.0) - 4) / 9, 0.0, 1.0)
    weights = (rng.random(20) < 0.8).astype(np.float64)
    values = 3.0 - 2.0 * way + 0.1 * rng.normal(size=20)
    fit = _two_levels(values, way, weights)
    columns = np.column_stack([1.0 - way, way])[weights > 0]
    expected = np.linalg.lstsq(columns, values[weights > 0], rcond=None)[0]
    covariance = np.linalg.inv(columns.T @ columns)
    error = math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    assert fit == pytest.approx((*expected, error), rel=1e-9)
    assert _two_levels(values, np.zeros(20), weights) is None  # nothing says what comes after
