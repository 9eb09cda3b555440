"""Known answers: planted changes are called, noise is not, and what a single value cannot tell is not told."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from paceline.analysis.compare.significance import (
    FLOOR,
    Ratio,
    RepeatSamples,
    independent,
    ratio_of_pairs,
    ratios,
    significant,
)
from paceline.core.record import Measurement, Statistic
from paceline.core.stats import Interval, summarize
from support.compare_power import NOISES, called, pairs, part
from support.docs_markdown import ROOT
from support.records import LOSS, STEP_TIME


@pytest.mark.parametrize("metric", ["time", "rate"])
def test_three_percent_in_noise_of_one_is_called(metric: str) -> None:
    found = pairs("independent", 100, 100, change=0.03)[metric]
    assert called(found) == 1.0
    true = 1 / 1.03 if metric == "rate" else 1.03
    covered = [r.interval is not None and r.interval.low <= true <= r.interval.high for r in found]
    assert np.mean(covered) >= 0.9


@pytest.mark.parametrize("noise", NOISES)
def test_no_change_is_called_one_in_at_most_five_of_a_hundred(noise: str) -> None:
    found = pairs(noise, 1000, 40)
    assert called(found["time"]) <= 0.05
    assert called(found["rate"]) <= 0.05


def test_samples_all_alike_do_not_pass_for_endless_precision() -> None:
    (ratio,) = ratios([[part([0.1] * 20)]], [[part([0.10001] * 20)]])
    assert ratio.interval is not None
    assert ratio.interval.low < 1 < ratio.interval.high
    (apart,) = ratios([[part([0.1] * 20)]], [[part([0.102] * 20)]])
    assert apart.interval is not None
    assert apart.interval.low > 1


def test_what_differs_between_runs_is_in_the_interval() -> None:
    rng = np.random.default_rng(3)
    sides = []
    for _ in range(2):
        runs = 0.1 * (1 + 0.01 * rng.standard_normal((200, 3, 1)))  # 1 % between runs, 0.1 % within each
        sides.append([[part(one) for one in case] for case in runs * (1 + 0.001 * rng.standard_normal((200, 3, 12)))])
    assert called(ratios(*sides)) <= 0.08  # of 200, where 1 in 20 is meant
    alone = ratios(*([case[:1] for case in side] for side in sides))
    assert called(alone) > 0.5  # one run each cannot know


def test_repetitions_of_single_values_have_an_interval() -> None:
    def once(*values: float) -> list[RepeatSamples]:
        return [RepeatSamples(Measurement.of_value(STEP_TIME, value)) for value in values]

    several, single = ratios([once(1.0, 1.01, 0.99), once(1.0)], [once(2.0, 2.02, 1.98), once(2.0)])
    assert several.interval is not None
    assert several.interval.low > 1.8
    assert single.value == pytest.approx(2.0)
    assert single.interval is None
    assert single.chance is None


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_what_has_no_ratio_has_none(value: float) -> None:
    (ratio,) = ratios(
        [[RepeatSamples(Measurement.of_value(LOSS, 1.0))]], [[RepeatSamples(Measurement.of_value(LOSS, value))]]
    )
    assert ratio.value is None
    assert ratio.interval is None


def test_many_comparisons_are_judged_together() -> None:
    assert significant([0.04]) == [True]
    assert significant([0.04, *[0.5] * 9]) == [False] * 10
    assert significant([0.001, None, 0.9, 0.02]) == [True, False, False, True]
    assert significant([]) == []


def test_drift_cancels_in_pairs_and_not_in_sequence() -> None:
    drift = [1 + 0.02 * place for place in range(12)]  # each measurement is 2 % slower than the one before
    in_turns = [drift[2 * number : 2 * number + 2][:: 1 if number % 2 == 0 else -1] for number in range(6)]
    paired = ratio_of_pairs([(0.1 * a, 0.103 * b) for a, b in in_turns])
    assert paired.interval is not None
    assert paired.interval.low <= 1.03 <= paired.interval.high
    assert paired.value == pytest.approx(1.03, abs=0.005)
    one_after_the_other = [part([0.1 * place] * 10) for place in drift[:6]], [part([0.103 * p] * 10) for p in drift[6:]]
    (sequence,) = ratios([one_after_the_other[0]], [one_after_the_other[1]])
    assert sequence.interval is not None
    assert sequence.interval.low > 1.05  # calls the drift a change


def test_one_round_has_no_interval() -> None:
    assert ratio_of_pairs([(1.0, 1.1)]).interval is None


CHANGES, COUNTS = (0.005, 0.01, 0.02, 0.03), (10, 30, 100)


def test_the_table_of_power_in_the_guide_is_true() -> None:
    text = (ROOT / "docs" / "guide" / "comparing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) % \| (\d+) % \| (\d+) % \| (\d+) % \|$", text, re.MULTILINE)
    assert [float(row[0]) / 100 for row in rows] == list(CHANGES)
    for row in rows:
        for count, told in zip(COUNTS, row[1:], strict=True):
            found = called(pairs("independent", 60, count, change=float(row[0]) / 100)["rate"])
            assert 100 * found == pytest.approx(float(told), abs=15)


# ---- by hand


def summed_up(
    value: float,
    *,
    count: int,
    effective: float,
    statistic: Statistic = "mean",
    deviation: float = 0.0,
    interval: tuple[float, float, float] | None = None,
) -> RepeatSamples:
    """A part of which only the summary is left."""
    ends = None if interval is None else Interval(low=interval[0], high=interval[1], confidence=interval[2])
    figures = {"count": count, "effective_count": effective, "mean": value, "median": value, "deviation": deviation}
    summary = summarize([1.0]).model_copy(update=figures | {"mean_interval": ends, "median_interval": ends})
    return RepeatSamples(Measurement(metric=STEP_TIME, statistic=statistic, summary=summary))


def once(*values: float) -> list[RepeatSamples]:
    return [RepeatSamples(Measurement.of_value(STEP_TIME, value)) for value in values]


def one_ratio(before: list[RepeatSamples], after: list[RepeatSamples], confidence: float = 0.95) -> Ratio:
    (ratio,) = ratios([before], [after], confidence)
    return ratio


def expect(ratio: Ratio, value: float, error: float, freedom: int, confidence: float = 0.95) -> None:
    """That a ratio is this one, with what follows from its error and the degrees of freedom."""
    assert ratio.value == pytest.approx(value, rel=1e-9)
    assert ratio.freedom == freedom
    assert ratio.error == pytest.approx(error, rel=1e-9)
    reach = stats.t.ppf(0.5 + confidence / 2, freedom) * error
    assert ratio.interval is not None
    assert ratio.interval.low == pytest.approx(value * math.exp(-reach), rel=1e-8)
    assert ratio.interval.high == pytest.approx(value * math.exp(reach), rel=1e-8)
    assert ratio.interval.confidence == confidence
    assert ratio.chance == pytest.approx(2 * stats.t.sf(abs(math.log(value)) / error, freedom), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_means_of_independent_samples_are_compared_as_welch_does(confidence: float) -> None:
    before = summed_up(2.0, count=10, effective=9.0, deviation=0.2)  # nine of ten are still independent
    after = summed_up(3.0, count=20, effective=20.0, deviation=0.6)
    variances = 0.1**2 / 9, 0.2**2 / 20
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 8 + variances[1] ** 2 / 19)
    assert 26 < freedom < 27
    ratio = one_ratio([before], [after], confidence)
    assert (ratio.reference, ratio.new) == (2.0, 3.0)
    expect(ratio, 1.5, math.sqrt(sum(variances) + 2 * FLOOR**2), 26, confidence)


def test_means_of_samples_that_are_alike_are_less_sure() -> None:
    before = summed_up(2.0, count=10, effective=8.9, deviation=0.2)
    after = summed_up(3.0, count=40, effective=9.0, deviation=0.6)
    variances = 0.1**2 / 8.9 * 0.9 * 8.9 / 7.9, 0.2**2 / 9 * (39 / 40) * 9 / 8
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 3.95 + variances[1] ** 2 / 4)
    assert 5 < freedom < 6
    expect(one_ratio([before], [after]), 1.5, math.sqrt(sum(variances) + 2 * FLOOR**2), 5)


@pytest.mark.parametrize("effective", [1.0, 0.3])
def test_samples_worth_one_have_one_degree_of_freedom(effective: float) -> None:
    part_of_one = summed_up(2.0, count=10, effective=effective, deviation=0.2)
    error = math.sqrt(2 * 0.1**2 * 0.9 * 1 / 0.5 + 2 * FLOOR**2)
    expect(one_ratio([part_of_one], [part_of_one]), 1.0, error, 2)
    sure = summed_up(2.0, count=1000, effective=1000.0, deviation=1e-6)
    error = math.sqrt(0.1**2 * 0.9 * 1 / 0.5 + (0.5e-6) ** 2 / 1000 + 2 * FLOOR**2)
    expect(one_ratio([part_of_one], [sure]), 1.0, error, 1)


def test_two_samples_are_enough_and_one_of_many_is_not() -> None:
    two = summed_up(2.0, count=2, effective=2.0, deviation=0.2)
    expect(one_ratio([two], [two]), 1.0, math.sqrt(0.1**2 + 2 * FLOOR**2), 2)
    for lonely in (
        summed_up(2.0, count=1, effective=1.0, deviation=0.2),
        summed_up(2.0, count=5, effective=5.0, deviation=0.2, statistic="single"),
    ):
        ratio = one_ratio([two], [lonely])
        assert (ratio.value, ratio.interval, ratio.error, ratio.chance) == (pytest.approx(1.0), None, None, None)
        assert ratio.freedom == 1


def test_a_median_is_as_sure_as_its_interval_is_narrow() -> None:
    sides = [
        summed_up(2.0, count=25, effective=25.0, statistic="median", interval=(1.9, 2.2, 0.95)),
        summed_up(3.0, count=64, effective=36.0, statistic="median", interval=(2.9, 3.2, 0.97)),
    ]
    reaches = stats.norm.ppf(0.975), stats.norm.ppf(0.985)
    variances = (math.log(2.2 / 1.9) / (2 * reaches[0])) ** 2, (math.log(3.2 / 2.9) / (2 * reaches[1])) ** 2
    freedoms = reaches[0] * 5 / 2, reaches[1] * 6 / 2
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / freedoms[0] + variances[1] ** 2 / freedoms[1])
    expect(one_ratio(sides[:1], sides[1:]), 1.5, math.sqrt(sum(variances) + 2 * FLOOR**2), math.floor(freedom))


@pytest.mark.parametrize(("confidence", "taken"), [(1.0, 0.999999), (0.02, 0.1), (0.999999, 0.999999), (0.1, 0.1)])
def test_the_confidence_of_a_median_is_taken_within_reason(confidence: float, taken: float) -> None:
    side = summed_up(2.0, count=25, effective=25.0, statistic="median", interval=(1.9, 2.2, confidence))
    reach = stats.norm.ppf(0.5 + taken / 2)
    freedom = max(1, math.floor(2 * max(1.0, reach * 5 / 2)))
    error = math.sqrt(2 * (math.log(2.2 / 1.9) / (2 * reach)) ** 2 + 2 * FLOOR**2)
    expect(one_ratio([side], [side]), 1.0, error, freedom)


def test_a_median_whose_neighbours_are_alike_is_less_sure_than_its_interval_says() -> None:
    wave = np.repeat([1.0, 2.0, 1.5, 1.2, 1.9, 1.1, 1.7, 1.3, 1.6, 1.4], 2) + 0.001 * np.arange(20)
    (worth,) = independent([wave])
    assert 2 < worth < 15
    sure = summed_up(1.5, count=20, effective=16.0, statistic="median", interval=(1.4, 1.6, 0.95))
    alike = sure._replace(samples=wave)
    reach = stats.norm.ppf(0.975)
    variance = (math.log(1.6 / 1.4) / (2 * reach)) ** 2 * 16 / worth
    freedom = math.floor(2 * max(1.0, reach * math.sqrt(worth) / 2))
    expect(one_ratio([alike], [alike]), 1.0, math.sqrt(2 * variance + 2 * FLOOR**2), freedom)


@pytest.mark.parametrize("interval", [None, (0.0, 2.2, 0.95), (-1.0, 2.2, 0.95)])
@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_an_interval_that_has_no_logarithm_says_nothing(
    interval: tuple[float, float, float] | None, statistic: Statistic
) -> None:
    side = summed_up(2.0, count=25, effective=25.0, statistic=statistic, interval=interval)
    ratio = one_ratio([side], [side])
    assert (ratio.value, ratio.interval, ratio.freedom) == (1.0, None, 1)


def test_sides_without_noise_have_the_floor_for_an_error() -> None:
    exact = [part([0.1] * 20)]
    expect(one_ratio(exact, [part([0.2] * 20)]), 2.0, math.sqrt(2) * FLOOR, 1)
    unsure = summed_up(0.2, count=10, effective=10.0, deviation=0.02)
    expect(one_ratio(exact, [unsure]), 2.0, math.sqrt(0.1**2 / 10 + 2 * FLOOR**2), 1)
    means = summed_up(0.1, count=20, effective=20.0, interval=(0.1, 0.1, 0.95))
    expect(one_ratio([means], [means]), 1.0, math.sqrt(2) * FLOOR, 1)


def test_repetitions_are_a_geometric_mean_and_scatter_together() -> None:
    ratio = one_ratio(once(1.0, 1.1, 1.2), once(2.0, 2.3))
    logs = [np.log([1.0, 1.1, 1.2]), np.log([2.0, 2.3])]
    assert (ratio.reference, ratio.new) == pytest.approx([math.exp(side.mean()) for side in logs])
    spread = sum(float(((side - side.mean()) ** 2).sum()) for side in logs) / 3
    expect(ratio, ratio.new / ratio.reference, math.sqrt(spread / 3 + spread / 2 + 2 * FLOOR**2), 3)


def test_repetitions_that_agree_are_as_sure_as_their_samples() -> None:
    three = [summed_up(2.0, count=10, effective=10.0, deviation=size) for size in (0.2, 0.4, 0.6)]
    within = (0.1**2 + 0.2**2 + 0.3**2) / 10 / 3
    expect(one_ratio(three, three), 1.0, math.sqrt(2 * within / 3 + 2 * FLOOR**2), 4)


def test_one_side_s_repetitions_tell_how_far_the_other_s_single_one_may_be_off() -> None:
    single = summed_up(1.1, count=10, effective=10.0, deviation=0.0011)
    ratio = one_ratio(once(1.0, 1.2), [single])
    logs = np.log([1.0, 1.2])
    spread = float(((logs - logs.mean()) ** 2).sum())
    expect(ratio, 1.1 / math.exp(logs.mean()), math.sqrt(spread / 2 + spread + 2 * FLOOR**2), 1)
    assert one_ratio(once(1.0, 1.2), once(1.1)).interval is None  # of which one value knows nothing


@pytest.mark.parametrize(
    ("parts", "freedom"), [(15, 28), (16, 30), (20, 30), (21, 40), (25, 40), (101, 200), (106, 200), (150, 200)]
)
def test_many_degrees_of_freedom_are_counted_in_tens(parts: int, freedom: int) -> None:
    values = 1.0 + 0.01 * np.random.default_rng(parts).standard_normal((2, parts))
    ratio = one_ratio(once(*values[0]), once(*values[1]))
    assert ratio.freedom == freedom
    assert ratio.error is not None and ratio.value is not None
    expect(ratio, ratio.value, ratio.error, freedom)


def test_just_beyond_thirty_degrees_of_freedom_are_thirty() -> None:
    assert [one_ratio(once(*[1.0] * 16), once(*[1.0] * more)).freedom for more in (15, 16, 17)] == [29, 30, 30]


def test_cases_of_different_freedom_keep_their_own_quantiles() -> None:
    cases = [once(1.0, 1.1), once(1.0, 1.2, 1.1, 1.3), once(2.0, 2.1)]
    together = ratios(cases, cases)
    assert together == [one_ratio(case, case) for case in cases]
    assert [ratio.freedom for ratio in together] == [2, 6, 2]
    assert ratios([], []) == []


@pytest.mark.parametrize(("values", "shown"), [((-3.0,), -3.0), ((0.0,), 0.0), ((-1.0, 4.0), 1.5), ((0.0, 3.0), 1.5)])
def test_values_that_have_no_logarithm_are_shown_by_their_mean(values: tuple[float, ...], shown: float) -> None:
    ratio = one_ratio(once(1.0, 1.1), once(*values))
    assert ratio.new == shown
    assert (ratio.value, ratio.interval, ratio.error, ratio.chance) == (None, None, None, None)


def test_what_is_infinite_has_no_ratio() -> None:
    assert one_ratio(once(1.0), [summed_up(math.inf, count=1, effective=1.0)]).value is None


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_pairs_are_compared_by_student_s_test_of_their_ratios(confidence: float) -> None:
    pairs_of_times = [(1.0, 1.1), (2.0, 2.4), (4.0, 4.2)]
    steps = np.log([1.1, 1.2, 1.05])
    ratio = ratio_of_pairs(pairs_of_times, confidence)
    assert (ratio.reference, ratio.new) == pytest.approx((2.0, 2.0 * math.exp(steps.mean())))
    error = math.hypot(steps.std(ddof=1) / math.sqrt(3), FLOOR)
    expect(ratio, math.exp(steps.mean()), error, 2, confidence)


def test_two_pairs_have_an_interval_and_very_many_no_more_freedom_than_the_others() -> None:
    ratio = ratio_of_pairs([(1.0, 1.1), (1.0, 1.1)])
    expect(ratio, 1.1, FLOOR, 1)
    rng = np.random.default_rng(1)
    many = ratio_of_pairs([(1.0, 1.0 + 0.1 * value) for value in rng.random(300)])
    assert many.freedom == 200


def test_one_pair_has_values_and_a_ratio() -> None:
    ratio = ratio_of_pairs([(2.0, 3.0)])
    assert (ratio.reference, ratio.new, ratio.value, ratio.freedom) == pytest.approx((2.0, 3.0, 1.5, 1))
    assert (ratio.interval, ratio.error, ratio.chance) == (None, None, None)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_pairs_with_a_value_that_has_no_logarithm_have_no_ratio(bad: float) -> None:
    ratio = ratio_of_pairs([(2.0, 3.0), (8.0, bad), (2.0, 3.0)])
    assert ratio.reference == pytest.approx(2.0 * 4.0 ** (1 / 3))
    assert (ratio.value, ratio.interval, ratio.error, ratio.freedom, ratio.chance) == (None, None, None, 2, None)


def test_a_chance_at_the_bound_is_a_change_and_one_below_another_lifts_it() -> None:
    assert significant([0.05]) == [True]
    assert significant([math.nextafter(0.05, 1.0)]) == [False]
    assert significant([0.05, 0.04]) == [True, True]  # the larger is within its own bound, so that both are
    assert significant([0.9, 0.026]) == [False, False]
    assert significant([0.9, 0.025]) == [False, True]
    assert significant([0.2, 0.9], false_alarms=0.4) == [True, False]


def worth(values: list[float]) -> float:
    """How many independent samples, told without arrays."""
    length = len(values)
    ordered = sorted(values)
    edge = max(1, length // 20)
    drawn = [min(max(value, ordered[edge]), ordered[-1 - edge]) for value in values]
    middle = math.fsum(drawn) / length
    squares = math.fsum((value - middle) ** 2 for value in drawn)
    products = math.fsum((a - middle) * (b - middle) for a, b in pairwise(drawn))
    alike = (length * (products / squares if squares else 0.0) + 1) / (length - 3)
    alike = min(max(alike, 0.0), 0.99)
    return length * (1 - alike) / (1 + alike)


def test_neighbours_that_resemble_each_other_are_worth_fewer() -> None:
    rng = np.random.default_rng(2)
    series = [list(rng.standard_normal(length).cumsum() * 0.3 + rng.standard_normal(length))
              for length in (8, 9, 8, 20, 39, 40, 60, 60)]  # fmt: skip
    series.append([1e9, *series[4][1:]])
    counts = independent(series)
    assert counts == pytest.approx([worth(values) for values in series], rel=1e-9)
    assert counts.min() < 10 < counts.max()


def test_the_resemblance_of_neighbours_has_bounds() -> None:
    rising, alternating, equal = list(range(100)), [1.0, 2.0] * 10, [3.0] * 12
    assert independent([rising, alternating, equal]) == pytest.approx(
        [100 * 0.01 / 1.99, 20.0, 12 * (1 - 1 / 9) / (1 + 1 / 9)]
    )


def test_too_few_samples_say_nothing_of_their_neighbours() -> None:
    counts = independent([[1.0, 2.0] * 3 + [1.0], (), [1.0, 2.0] * 4])
    assert list(counts) == [math.inf, math.inf, 8.0]
