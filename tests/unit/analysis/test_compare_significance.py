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
    parts_of,
    ratio_of_pairs,
    ratios,
    significant,
)
from paceline.core.record import Measurement, Statistic
from paceline.core.stats import Interval, summarize
from support.compare_power import NOISES, called, pairs, part, runs_of
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
    found = pairs(noise, 400, 20)
    assert called(found["time"]) <= 0.06
    assert called(found["rate"]) <= 0.06


def test_samples_all_alike_do_not_pass_for_endless_precision() -> None:
    def runs(seconds: float) -> list[list[RepeatSamples]]:
        return [runs_of(*[part([seconds] * 20)] * 3)]

    (ratio,) = ratios(runs(0.1), runs(0.10001))
    assert ratio.interval is not None
    assert ratio.interval.low < 1 < ratio.interval.high
    (apart,) = ratios(runs(0.1), runs(0.102))
    assert apart.interval is not None
    assert apart.interval.low > 1


def test_what_differs_between_runs_is_in_the_interval() -> None:
    assert called(pairs("independent", 200, 12, between=0.01)["time"]) <= 0.08  # of 200, where 1 in 20 is meant


def test_one_run_each_cannot_know_how_runs_differ() -> None:
    for ratio in pairs("independent", 3, 12, runs=1)["rate"]:
        assert (ratio.interval, ratio.chance, ratio.error) == (None, None, None)
        assert ratio.value == pytest.approx(1.0, abs=0.02)


def test_repeats_of_one_run_are_not_runs() -> None:
    repeats = [one._replace(run="the same") for one in once(1.0, 1.01, 0.99)]
    assert one_ratio(repeats, repeats).interval is None


def test_earlier_runs_show_how_far_one_run_may_be_off() -> None:
    past = [one._replace(session=f"past {one.run}") for one in once(1.0, 1.02, 0.98, 1.01)]
    (ratio,) = ratios([once(1.0)], [once(1.1)], [[past]])
    logs = np.log([1.0, 1.02, 0.98, 1.01])
    assert ratio.history == 3
    expect(ratio, 1.1, math.sqrt(2 * logs.var(ddof=1)), 3)


def test_repetitions_of_single_values_have_an_interval() -> None:
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
    first, then = (runs_of(*(part([0.1 * step] * 10) for step in half)) for half in (drift[:6], drift[6:]))
    (sequence,) = ratios([first], [then])
    assert sequence.interval is not None
    assert sequence.interval.low > 1.05  # calls the drift a change


def test_one_round_has_no_interval() -> None:
    assert ratio_of_pairs([(1.0, 1.1)]).interval is None


CHANGES, RUNS = (0.01, 0.02, 0.03, 0.05), (3, 5, 10)


def test_the_table_of_power_in_the_guide_is_true() -> None:
    text = (ROOT / "docs" / "guide" / "comparing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) % \| (\d+) % \| (\d+) % \| (\d+) % \|$", text, re.MULTILINE)
    assert [float(row[0]) / 100 for row in rows] == list(CHANGES)
    for row in rows:
        for runs, stated in zip(RUNS, row[1:], strict=True):
            found = pairs("independent", 50, 10, runs=runs, between=0.01, change=float(row[0]) / 100)["rate"]
            assert 100 * called(found) == pytest.approx(float(stated), abs=21)


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
    """Runs of one session, with one value each."""
    return runs_of(*(RepeatSamples(Measurement.of_value(STEP_TIME, value)) for value in values))


def one_ratio(before: list[RepeatSamples], after: list[RepeatSamples], confidence: float = 0.95) -> Ratio:
    (ratio,) = ratios([before], [after], confidence=confidence)
    return ratio


def expect_part(part: RepeatSamples, variance: float, freedom: float) -> None:
    """That a part's own samples leave this open."""
    ((made,),) = parts_of([[part]])
    assert (made.variance, made.freedom) == pytest.approx((variance, freedom), rel=1e-9, nan_ok=True)


def expect(ratio: Ratio, value: float, error: float, freedom: float, confidence: float = 0.95) -> None:
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


def test_a_mean_of_independent_samples_is_as_sure_as_they_are_many() -> None:
    # Nine of ten are still independent.
    expect_part(summed_up(2.0, count=10, effective=9.0, deviation=0.2), 0.1**2 / 9, 8)
    expect_part(summed_up(3.0, count=20, effective=20.0, deviation=0.6), 0.2**2 / 20, 19)
    expect_part(summed_up(2.0, count=2, effective=2.0, deviation=0.2), 0.1**2 / 2, 1)


def test_a_mean_of_samples_that_are_alike_is_less_sure() -> None:
    expect_part(summed_up(2.0, count=10, effective=8.9, deviation=0.2), 0.1**2 / 8.9 * 0.9 * 8.9 / 7.9, 3.95)
    expect_part(summed_up(3.0, count=40, effective=9.0, deviation=0.6), 0.2**2 / 9 * (39 / 40) * 9 / 8, 4)


@pytest.mark.parametrize("effective", [1.0, 0.3])
def test_samples_worth_one_have_one_degree_of_freedom(effective: float) -> None:
    expect_part(summed_up(2.0, count=10, effective=effective, deviation=0.2), 0.1**2 * 0.9 * 1 / 0.5, 1)


@pytest.mark.parametrize(
    "lonely",
    [
        summed_up(2.0, count=1, effective=1.0, deviation=0.2),
        summed_up(2.0, count=5, effective=5.0, deviation=0.2, statistic="single"),
    ],
)
def test_one_value_says_nothing_about_itself(lonely: RepeatSamples) -> None:
    expect_part(lonely, math.nan, 1)


@pytest.mark.parametrize(
    ("confidence", "taken"),
    [(0.95, 0.95), (0.97, 0.97), (1.0, 0.999999), (0.02, 0.1), (0.999999, 0.999999), (0.1, 0.1)],
)
def test_a_median_is_as_sure_as_its_interval_is_narrow(confidence: float, taken: float) -> None:
    side = summed_up(2.0, count=25, effective=25.0, statistic="median", interval=(1.9, 2.2, confidence))
    reach = stats.norm.ppf(0.5 + taken / 2)
    expect_part(side, (math.log(2.2 / 1.9) / (2 * reach)) ** 2, max(1.0, reach * 5 / 2))


def test_a_median_whose_neighbours_are_alike_is_less_sure_than_its_interval_says() -> None:
    wave = np.repeat([1.0, 2.0, 1.5, 1.2, 1.9, 1.1, 1.7, 1.3, 1.6, 1.4], 2) + 0.001 * np.arange(20)
    (worth,) = independent([wave])
    assert 2 < worth < 15
    sure = summed_up(1.5, count=20, effective=16.0, statistic="median", interval=(1.4, 1.6, 0.95))
    reach = stats.norm.ppf(0.975)
    variance = (math.log(1.6 / 1.4) / (2 * reach)) ** 2 * 16 / worth
    expect_part(sure._replace(samples=wave), variance, max(1.0, reach * math.sqrt(worth) / 2))


@pytest.mark.parametrize("interval", [None, (0.0, 2.2, 0.95), (-1.0, 2.2, 0.95)])
@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_an_interval_that_has_no_logarithm_says_nothing(
    interval: tuple[float, float, float] | None, statistic: Statistic
) -> None:
    expect_part(summed_up(2.0, count=25, effective=25.0, statistic=statistic, interval=interval), math.nan, 1)


def test_sides_without_noise_have_the_floor_for_an_error() -> None:
    expect(one_ratio(once(0.1, 0.1, 0.1), once(0.2, 0.2, 0.2)), 2.0, math.sqrt(2) * FLOOR, 4)


def test_runs_are_a_geometric_mean_and_two_of_a_side_scatter_as_the_others_do() -> None:
    ratio = one_ratio(once(1.0, 1.1, 1.2), once(2.0, 2.3))
    logs = [np.log([1.0, 1.1, 1.2]), np.log([2.0, 2.3])]
    assert (ratio.reference, ratio.new) == pytest.approx([math.exp(side.mean()) for side in logs])
    spread = sum(float(((side - side.mean()) ** 2).sum()) for side in logs) / 3
    expect(ratio, ratio.new / ratio.reference, math.sqrt(spread / 3 + spread / 2), 3)


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_three_runs_of_each_side_are_compared_as_welch_does(confidence: float) -> None:
    before, after = (1.0, 1.1, 1.2), (2.0, 2.3, 2.1, 2.15)
    ratio = one_ratio(once(*before), once(*after), confidence)
    welch = stats.ttest_ind(np.log(after), np.log(before), equal_var=False)
    error = abs(np.log(after).mean() - np.log(before).mean()) / welch.statistic
    expect(ratio, ratio.new / ratio.reference, error, math.floor(10 * welch.df) / 10, confidence)


def test_two_runs_that_agree_are_as_sure_as_their_samples() -> None:
    two = runs_of(*(summed_up(2.0, count=10, effective=10.0, deviation=size) for size in (0.2, 0.4)))
    within = (0.1**2 + 0.2**2) / 10 / 2
    expect(one_ratio(two, two), 1.0, math.sqrt(2 * within / 2), 2)


def test_one_side_s_runs_show_how_far_the_other_s_single_one_may_be_off() -> None:
    ratio = one_ratio(once(1.0, 1.2), once(1.1))
    logs = np.log([1.0, 1.2])
    spread = float(((logs - logs.mean()) ** 2).sum())
    expect(ratio, 1.1 / math.exp(logs.mean()), math.sqrt(spread / 2 + spread), 1)


@pytest.mark.parametrize(("runs", "shown"), [(9, 16.0), (20, 30.0), (26, 50.0), (150, 200.0)])
def test_many_degrees_of_freedom_are_counted_in_tens(runs: int, shown: float) -> None:
    values = np.exp(np.resize([0.01, -0.01], runs))
    assert one_ratio(once(*values), once(*values)).freedom == shown


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


def test_two_pairs_that_contradict_each_other_have_ends_that_have_inverses() -> None:
    interval = ratio_of_pairs([(1.0, 1e300), (1e300, 1.0)]).interval
    assert interval is not None
    assert 0 < interval.low < 1e-300 < 1e300 < interval.high
    assert math.isfinite(interval.high)
    assert math.isfinite(1 / interval.low)


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
