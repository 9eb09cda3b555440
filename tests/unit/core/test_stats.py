"""The statistics against answers worked out by hand, and against scipy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import fft, signal, stats

from paceline.core.stats import (
    CONFIDENCE,
    ENOUGH,
    PERCENTILES,
    Interval,
    _doubt,
    _median,
    _percentile,
    _poisson_limits,
    drift_interval,
    effective_count,
    end_size,
    median_interval,
    outliers,
    resolves,
    student_quantile,
    student_upper,
    summarize,
)

Series = NDArray[np.float64]


def correlated(rng: np.random.Generator, rho: float, count: int, length: int) -> Series:
    """Rows of an AR(1) process around 100, each from its stationary state."""
    noise = rng.standard_normal((count, length + 200))
    return 100.0 + signal.lfilter([1.0], [1.0, -rho], noise, axis=1)[:, 200:]


# ---- summaries


def test_median_and_percentiles_are_numpys() -> None:
    rng = np.random.default_rng(3)
    for count in (1, 2, 3, 4, 5, 20, 21, 101, 1000):
        values = rng.standard_t(1, count)
        assert _median(values) == np.median(values)
        for percentile in (0.0, 2.0, *PERCENTILES, 98.0, 100.0):
            assert _percentile(np.sort(values), percentile) == np.percentile(values, percentile)
        values[rng.integers(count)] = math.nan
        assert math.isnan(_median(values))
        assert math.isnan(_percentile(np.sort(values), 50.0))
    assert _median(np.full(4, math.inf)) == math.inf
    assert math.isnan(_median(np.zeros(0)))


def test_five_samples_by_hand() -> None:
    found = summarize([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (found.count, found.effective_count) == (5, 5.0)
    assert (found.mean, found.median, found.minimum, found.maximum) == (3.0, 3.0, 1.0, 5.0)
    assert found.deviation == pytest.approx(1.5811388300841898)
    assert found.percentiles == pytest.approx({"50": 3.0, "90": 4.6, "95": 4.8, "99": 4.96, "99.9": 4.996})
    assert found.outliers == 0
    # Half of five samples lie on one side with probability 2/32: the whole range is all there is.
    assert found.median_interval == Interval(low=1.0, high=5.0, confidence=0.9375)
    assert found.mean_interval is not None
    assert found.mean_interval.low == pytest.approx(3.0 - 2.7764451051977934 * math.sqrt(0.5))
    assert found.mean_interval.high == pytest.approx(3.0 + 2.7764451051977934 * math.sqrt(0.5))


def test_the_median_interval_of_nine_samples_leaves_one_out_on_each_side() -> None:
    found = summarize([7.0, 2.0, 9.0, 4.0, 1.0, 6.0, 3.0, 8.0, 5.0])
    assert found.median == 5.0
    # P(B <= 1) = 10/512 for nine fair coins.
    assert found.median_interval == Interval(low=2.0, high=8.0, confidence=1 - 20 / 512)


def test_one_sample_has_no_interval() -> None:
    found = summarize([2.5])
    assert (found.mean, found.median, found.minimum, found.maximum, found.deviation) == (2.5, 2.5, 2.5, 2.5, 0.0)
    assert found.mean_interval is None
    assert found.median_interval is None


def test_equal_samples_have_intervals_of_no_width() -> None:
    found = summarize([0.25] * 20)
    assert found.effective_count == 20
    assert found.median_interval is not None
    assert (found.median_interval.low, found.median_interval.high) == (0.25, 0.25)
    assert found.median_interval.relative(found.median) == 0.0


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarize([])


@pytest.mark.parametrize("count", [2, 3, 17, 100, 1001])
def test_a_summary_agrees_with_numpy_and_scipy(count: int) -> None:
    values = np.random.default_rng(count).lognormal(0.0, 0.5, count)
    found = summarize(values)
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.deviation == pytest.approx(stats.tstd(values), rel=1e-12)
    for percentile in PERCENTILES:
        expected = stats.scoreatpercentile(values, percentile, interpolation_method="fraction")
        assert found.percentiles[f"{percentile:g}"] == pytest.approx(expected, rel=1e-12)


def test_the_mean_interval_takes_the_variance_from_the_slowest_waves() -> None:
    values = np.random.default_rng(5).normal(10.0, 1.0, 64)
    answer = summarize(values)
    waves = round(1.2 * answer.effective_count ** (2 / 3))
    power = fft.dct(values - values.mean(), norm="ortho")[1 : waves + 1]
    reach = stats.t.ppf(0.975, waves) * math.sqrt(float((power**2).mean()) / 64)
    assert answer.mean_interval is not None
    # Skewness and correlation, of which these have hardly any, move the ends a little.
    assert (answer.mean_interval.high - answer.mean_interval.low) / (2 * reach) == pytest.approx(1.0, abs=0.05)
    assert 0.9 <= (answer.mean - answer.mean_interval.low) / reach < 1.1
    assert 0.9 <= (answer.mean_interval.high - answer.mean) / reach < 1.1


def test_correlated_samples_have_a_wider_interval_of_the_mean_than_their_slowest_waves_say() -> None:
    values = correlated(np.random.default_rng(5), 0.9, 1, 400)[0] + 10.0
    answer = summarize(values)
    waves = round(1.2 * answer.effective_count ** (2 / 3))
    power = fft.dct(values - values.mean(), norm="ortho")[1 : waves + 1]
    reach = stats.t.ppf(0.975, waves) * math.sqrt(float((power**2).mean()) / 400)
    assert answer.mean_interval is not None
    assert 1.02 < (answer.mean_interval.high - answer.mean_interval.low) / (2 * reach) < 1.3


def test_a_long_tail_leaves_more_room_on_its_side() -> None:
    answer = summarize(np.random.default_rng(5).lognormal(0.0, 0.8, 60))
    assert answer.mean_interval is not None
    assert answer.mean_interval.high - answer.mean > 1.3 * (answer.mean - answer.mean_interval.low)


def test_waves_as_slow_as_the_measurement_leave_the_mean_open() -> None:
    answer = summarize(np.sin(np.arange(200) / 30) + 5.0)
    assert answer.effective_count < ENOUGH
    assert answer.mean_interval is None


@pytest.mark.parametrize("events", [1, 2, 7, 40, 100, 101, 300, 5000])
def test_the_limits_of_a_count_are_those_of_the_chi_squared_distribution(events: int) -> None:
    low, high = stats.chi2.ppf(0.025, 2 * events) / 2, stats.chi2.ppf(0.975, 2 * events + 2) / 2
    assert _poisson_limits(events, 0.95) == pytest.approx((low, high), rel=2e-4)


def test_alternation_does_not_make_the_mean_surer() -> None:
    answer = summarize([1.0, 2.0, 4.0] * 20)
    assert answer.mean_interval is not None
    error = answer.deviation / math.sqrt(60)
    assert answer.mean_interval.high - answer.mean_interval.low > 3.9 * error


def test_a_few_stalls_count_as_events_of_which_there_might_have_been_more() -> None:
    calm = np.random.default_rng(6).normal(1.0, 0.01, 400)
    stalled = calm.copy()
    stalled[[50, 51, 300]] = 20.0  # two events: one lasted for two samples
    answer = summarize(stalled)
    excess = (stalled.sum() - calm.sum()) / 400
    assert answer.mean_interval is not None
    low, high = stats.chi2.ppf([0.025], 4)[0] / 2, stats.chi2.ppf([0.975], 6)[0] / 2
    assert answer.mean_interval.high == pytest.approx(answer.mean + excess * (high / 2 - 1), rel=0.01)
    assert answer.mean_interval.low <= answer.mean - excess * (1 - low / 2)


def test_the_live_interval_is_the_summary_s() -> None:
    values = np.random.default_rng(5).normal(10.0, 1.0, 77)
    assert median_interval(values) == summarize(values).median_interval


# ---- quantiles and ranks against scipy


@pytest.mark.parametrize("freedom", [1.0, 1.5, 2.0, 3.0, 5.0, 10.7, 29.0, 100.0, 999.0, 9999.0])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.95, 0.975, 0.995, 0.9995])
def test_student_s_quantile_is_scipy_s(probability: float, freedom: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9)


@pytest.mark.parametrize("t", [0.0, 1e-12, 0.01, 0.7, 1.3, 2.5, 6.0, 40.0, 1e6])
def test_student_s_tail_is_scipy_s_for_every_number_of_degrees_of_freedom(t: float) -> None:
    freedoms = range(1, 201)
    tails = [student_upper(t, float(freedom)) for freedom in freedoms]
    assert tails == pytest.approx(stats.t.sf(t, freedoms), rel=1e-9)
    assert min(tails) >= 0


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("count", [2, 5, 6, 8, 9, 11, 12, 30, 99, 100, 500, 1000])
def test_the_median_interval_s_ranks_are_the_exact_binomial_s(count: int, confidence: float) -> None:
    order = np.random.default_rng(0).permutation(count)
    found = median_interval(order.astype(float), confidence, independent=True)
    # The widest tail that may be cut off on each side; where there is none, the whole range with what it reaches.
    cuts = [rank for rank in range(count // 2) if 1 - 2 * stats.binom.cdf(rank, count, 0.5) >= confidence]
    rank = max(cuts, default=0)
    assert found is not None
    assert (found.low, found.high) == (rank, count - 1 - rank)
    assert found.confidence == pytest.approx(1 - 2 * stats.binom.cdf(rank, count, 0.5), abs=1e-12)


@pytest.mark.parametrize("count", [1001, 2000, 5001, 20_000])
def test_beyond_a_thousand_samples_the_approximate_rank_is_within_one(count: int) -> None:
    order = np.random.default_rng(1).permutation(count)
    found = median_interval(order.astype(float), independent=True)
    assert found is not None
    exact = stats.binom.ppf(0.025, count, 0.5) - 1
    assert abs(found.low - exact) <= 1


# ---- coverage


def coverage(rows: Series, interval: Callable[[Series], Interval | None]) -> float:
    hits = 0
    for row in rows:
        found = interval(row)
        assert found is not None
        hits += found.low <= 100.0 <= found.high
    return hits / len(rows)


@pytest.mark.parametrize("length", [10, 30, 100])
def test_the_median_interval_covers_the_median_of_independent_samples(length: int) -> None:
    rows = correlated(np.random.default_rng(11), 0.0, 400, length)
    assert coverage(rows, median_interval) >= 0.92


@pytest.mark.parametrize(("rho", "length"), [(0.5, 100), (0.7, 100), (0.9, 300)])
def test_the_median_interval_covers_the_median_of_correlated_samples(rho: float, length: int) -> None:
    rng = np.random.default_rng(12)
    rows = correlated(rng, rho, 400, length)
    assert coverage(rows, median_interval) >= 0.9
    # The same samples, shuffled, look independent: the interval is then too narrow to be believed.
    assert coverage(rows, lambda row: median_interval(rng.permutation(row))) < 0.88


# ---- effective count


@pytest.mark.parametrize(("length", "share"), [(30, 0.6), (200, 0.8), (5000, 0.95)])
def test_white_noise_is_worth_nearly_its_number_and_the_more_samples_the_surer(length: int, share: float) -> None:
    rows = correlated(np.random.default_rng(21), 0.0, 100, length)
    assert share * length < np.mean([effective_count(row) for row in rows]) < length


@pytest.mark.parametrize(("rho", "length"), [(0.5, 300), (0.9, 300), (0.9, 1000)])
def test_correlated_samples_are_worth_what_theory_says_within_a_factor_of_two(rho: float, length: int) -> None:
    rows = correlated(np.random.default_rng(22), rho, 100, length)
    expected = length * (1 - rho) / (1 + rho)
    middle = np.median([effective_count(row) for row in rows])
    assert expected / 2 <= middle <= expected * 2


def test_alternation_earns_nothing_beyond_the_number_of_samples() -> None:
    assert effective_count([1.0, 2.0] * 50) == 100.0


def test_one_huge_outlier_does_not_hide_correlation() -> None:
    wave = np.sin(np.arange(200) / 10)
    spiked = wave.copy()
    spiked[100] = 1e6
    assert effective_count(spiked) == pytest.approx(effective_count(wave), rel=0.2)
    assert effective_count(wave) < 30


@pytest.mark.parametrize("samples", [[1.0], [1.0, 5.0], [1.0, 2.0, 3.0]])
def test_too_few_samples_to_judge_count_as_they_are(samples: list[float]) -> None:
    assert effective_count(samples) == len(samples)


# ---- outliers


def test_a_sample_far_from_the_rest_is_an_outlier() -> None:
    found = outliers([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 3.0])
    assert list(np.flatnonzero(found)) == [6]


def test_a_fast_step_is_as_much_an_outlier_as_a_slow_one() -> None:
    assert list(np.flatnonzero(outliers([1.0, 1.01, 0.99, 0.2, 1.0, 1.02, 0.98]))) == [3]


def test_two_percent_is_never_far_however_quiet_the_rest() -> None:
    assert not outliers([1.0] * 9 + [1.019]).any()
    assert outliers([1.0] * 9 + [1.021]).sum() == 1


def test_wide_noise_has_no_outliers() -> None:
    assert not outliers(np.random.default_rng(2).uniform(1.0, 2.0, 500)).any()


# ---- drift


def seen(values: Series) -> bool:
    interval = drift_interval(values)
    assert interval is not None
    return interval.low > 0.0 or interval.high < 0.0


def test_the_drift_of_a_step_is_its_height() -> None:
    for before, after, height in ((1.0, 1.5, 0.5), (2.0, 1.5, -0.25)):
        interval = drift_interval([before] * 10 + [after] * 10)
        assert interval is not None
        assert (interval.low, interval.high) == (height, height)


def test_drift_is_between_the_first_and_the_last_quarter() -> None:
    assert [end_size(count) for count in (6, 12, 15, 16, 100)] == [3, 3, 3, 4, 25]
    values = [1.0] * 4 + [99.0] * 8 + [1.1] * 4
    interval = drift_interval(values)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize("length", [20, 50, 200])
def test_stationary_noise_rarely_drifts(length: int) -> None:
    rows = correlated(np.random.default_rng(31), 0.0, 200, length)
    assert sum(seen(row) for row in rows) <= 18  # of 200, where 5 % are 10


@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_correlated_stationary_noise_rarely_drifts(correlation: float) -> None:
    rows = correlated(np.random.default_rng(32), correlation, 200, 400)
    assert sum(seen(row) for row in rows) <= 18


def test_the_interval_of_a_drift_covers_it() -> None:
    rows = correlated(np.random.default_rng(33), 0.5, 200, 200) + np.linspace(0.0, 4.0, 200)
    truth = 3.0 / 100.5  # of the means of the quarters
    intervals = [drift_interval(row) for row in rows]
    assert sum(one is not None and one.low <= truth <= one.high for one in intervals) >= 180


@pytest.mark.parametrize("length", [6, 20, 100])
@pytest.mark.parametrize("ends_at", [0.5, 0.1, 0.01])
def test_a_fall_that_slows_down_drifts(length: int, ends_at: float) -> None:
    # To the interval of each end a smooth fall looks like correlated noise.
    interval = drift_interval(1.0 + ends_at ** (np.arange(length) / length))
    assert interval is not None
    assert interval.high < -0.02


def test_a_rare_stall_is_not_drift() -> None:
    values = [1.0, 1.01] * 400
    values[3] = 50.0
    interval = drift_interval(values)
    assert interval is not None
    assert interval.low <= 0.0 <= interval.high
    assert interval.high < 0.02


@pytest.mark.parametrize("samples", [[], [1.0], [9.0, 1.0, 9.0, 1.0, 1.0], [0.0] * 6])
def test_too_few_samples_or_none_of_any_size_have_no_drift(samples: list[float]) -> None:
    assert drift_interval(samples) is None


# ---- turning a summary


def test_a_rate_is_work_over_time_and_its_slow_percentiles_are_slow() -> None:
    times = [1.0, 2.0, 4.0, 1.0, 2.0, 4.0, 1.0, 2.0, 4.0, 3.0]
    rate = summarize(times).as_rate(12.0)
    assert rate.mean == pytest.approx(12.0 * 10 / 24.0)
    assert rate.mean < np.mean([12.0 / time for time in times])
    assert (rate.median, rate.minimum, rate.maximum) == (6.0, 3.0, 12.0)
    assert rate.percentiles["99"] == pytest.approx(3.0)
    assert rate.percentiles["99"] <= rate.percentiles["50"]
    assert rate.median_interval is not None
    assert (rate.median_interval.low, rate.median_interval.high) == (3.0, 12.0)
    # The same part of the mean, seen from either side.
    times_summary = summarize(times)
    assert rate.deviation / rate.mean == pytest.approx(times_summary.deviation / times_summary.mean)


def test_no_rate_is_above_the_fastest_step_although_the_mean_s_interval_reaches_below_zero() -> None:
    times = summarize([0.1, 0.1, 10.0])
    assert times.mean_interval is not None
    assert times.mean_interval.low < 0
    rate = times.as_rate(1.0)
    assert rate.mean_interval is not None
    assert rate.mean_interval.high == pytest.approx(10.0)
    assert 0 < rate.mean_interval.low <= rate.mean <= rate.mean_interval.high


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_a_rate_of_few_times_is_held_by_its_interval_as_often_as_it_says(count: int, noise: float) -> None:
    """The shortest of few times is no bound of their mean: of two, both are longer than it in one of four."""
    draws = np.random.default_rng(7).normal(1.0, noise, (2000, count))
    intervals = [summarize(times).as_rate(60.0).mean_interval for times in draws]
    held = sum(one is not None and one.low <= 60.0 <= one.high for one in intervals)
    assert held / len(draws) == pytest.approx(CONFIDENCE, abs=0.02)


def test_what_took_no_measurable_time_has_no_rate() -> None:
    assert summarize([0.0, 0.0]).as_rate(5.0).mean == 0.0


def test_few_samples_cannot_tell_a_high_percentile_from_the_maximum() -> None:
    assert [resolves(count, 99.0) for count in (1, 99, 100, 101)] == [False, False, True, True]
    assert [resolves(count, 99.9) for count in (999, 1000)] == [False, True]
    assert [resolves(count, 50.0) for count in (1, 2)] == [False, True]


def test_an_interval_s_relative_width_is_its_larger_side() -> None:
    interval = Interval(low=9.0, high=12.0, confidence=0.95)
    assert interval.relative(10.0) == pytest.approx(0.2)
    assert interval.relative(0.0) == math.inf


# ---- at the edges


def test_two_samples_have_an_interval_of_their_mean_with_one_degree_of_freedom() -> None:
    answer = summarize([1.0, 3.0])
    assert answer.deviation == pytest.approx(math.sqrt(2.0))
    assert answer.mean_interval is not None
    assert answer.mean_interval.high == pytest.approx(2.0 + stats.t.ppf(0.975, 1), rel=1e-12)
    assert answer.mean_interval.low == pytest.approx(2.0 - stats.t.ppf(0.975, 1), rel=1e-12)
    assert answer.median_interval == Interval(low=1.0, high=3.0, confidence=0.5)


def test_the_effective_count_is_what_the_slowest_decay_of_the_correlation_leaves() -> None:
    values = correlated(np.random.default_rng(9), 0.6, 1, 400)[0]
    ranks = stats.rankdata(values) - 200.5
    nearest = float((ranks[1:] * ranks[:-1]).sum() / (ranks**2).sum())
    decay = (400 * nearest + 1) / 397 + math.sqrt((1 - nearest**2) / 400)
    assert effective_count(values) == pytest.approx(400 * (1 - decay) / (1 + decay), rel=1e-9)


def test_slow_waves_beneath_fast_noise_count_although_neighbours_hardly_show_them() -> None:
    rng = np.random.default_rng(10)
    waves = correlated(rng, 0.97, 1, 2000)[0]
    hidden = waves + 1.5 * rng.standard_normal(2000) * waves.std()
    assert effective_count(hidden) < 0.5 * 2000


def test_equal_samples_share_a_rank_whatever_comes_between_them() -> None:
    rng = np.random.default_rng(3)
    coarse = np.round(correlated(rng, 0.8, 1, 200)[0] - 100.0)
    assert effective_count(coarse[::-1]) == pytest.approx(effective_count(coarse), rel=1e-9)
    assert effective_count(-coarse) == pytest.approx(effective_count(coarse), rel=1e-9)
    assert effective_count(coarse) < 100


def test_no_samples_are_worth_nothing() -> None:
    assert effective_count([]) == 0.0


def test_two_long_halves_are_worth_hardly_more_than_two_samples() -> None:
    assert effective_count([0.0] * 50 + [1.0] * 50) < 4


def test_the_median_interval_is_that_of_the_share_below_it() -> None:
    values = correlated(np.random.default_rng(2), 0.7, 1, 401)[0]
    waves = round(1.2 * effective_count(values) ** (2 / 3))
    below = (values < np.median(values)) + 0.5 * (values == np.median(values))
    power = fft.dct(below - below.mean(), norm="ortho")[1 : waves + 1]
    # Waves that are slower still are stronger, by what the decay of the ranks' correlation makes of it.
    ranks = stats.rankdata(values) - 201.0
    decay = (401 * float((ranks[1:] * ranks[:-1]).sum() / (ranks**2).sum()) + 1) / 398
    spectrum = 1 / (1 - 2 * decay * np.cos(np.pi * np.arange(waves + 1) / 401) + decay**2)
    peak = spectrum[0] / spectrum[1:].mean()
    angle = stats.t.ppf(0.975, waves) * math.sqrt(float((power**2).mean()) * peak / 401)
    reach = math.sin(2 * angle) / 2
    answer = median_interval(values)
    assert answer is not None and answer.confidence == 0.95
    assert (np.sort(values) < answer.low).mean() == pytest.approx(0.5 - reach, abs=1 / 401)
    assert (np.sort(values) <= answer.high).mean() == pytest.approx(0.5 + reach, abs=1 / 401)


def test_samples_of_different_machines_are_all_worth_one() -> None:
    rising = np.arange(100.0)
    apart = median_interval(rising, independent=True)
    together = median_interval(rising)
    assert apart is not None and together is not None
    assert (apart.low, apart.high) == (39.0, 60.0)
    assert together.low < 10.0


def test_a_confidence_that_ranks_meet_exactly_is_met() -> None:
    answer = median_interval(
        [7.0, 2.0, 9.0, 4.0, 10.0, 1.0, 6.0, 3.0, 8.0, 5.0], confidence=1 - 22 / 1024, independent=True
    )
    assert answer == Interval(low=2.0, high=9.0, confidence=1 - 22 / 1024)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_beyond_a_thousand_samples_the_confidence_is_the_one_asked_for(confidence: float) -> None:
    order = np.random.default_rng(1).permutation(1001).astype(float)
    answer = median_interval(order, confidence, independent=True)
    assert answer is not None
    assert answer.confidence == confidence
    assert answer.low == math.floor((1001 - stats.norm.ppf(0.5 + confidence / 2) * math.sqrt(1001)) / 2)
    assert answer.high == 1000 - answer.low


@pytest.mark.parametrize("freedom", [1.0, 1.7, 3.0, 12.0, 80.0])
@pytest.mark.parametrize("probability", [0.51, 0.6, 0.75, 0.9, 0.975, 0.9999, 0.9999995])
def test_student_s_quantile_is_scipy_s_to_many_digits(probability: float, freedom: float) -> None:
    expected = stats.t.isf(1.0 - probability, freedom)
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=3e-12)


def test_an_outlier_is_beyond_five_deviations_and_beyond_two_percent_and_not_at_them() -> None:
    five = 5.0 * 1.4826
    assert not outliers([-1.0, -1.0, 0.0, 1.0, 1.0, five, -five]).any()
    beyond = math.nextafter(five, math.inf)
    assert outliers([-1.0, -1.0, 0.0, 1.0, 1.0, beyond, -beyond]).sum() == 2
    assert not outliers([100.0] * 9 + [102.0]).any()
    assert not outliers([-100.0] * 9 + [-102.0]).any()
    assert outliers([-100.0] * 9 + [-102.5]).sum() == 1


def test_both_bounds_of_an_outlier_count() -> None:
    assert not outliers([1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 1.1, 0.9, 1.3]).any()  # 30 %, but no more than noise
    assert not outliers([1.0, 1.0, 1.0, 1.0, 1.01]).any()  # beyond all noise, but 1 %


def test_the_rate_s_interval_of_its_median_is_turned_round() -> None:
    times = summarize([float(value) for value in np.random.default_rng(8).permutation(np.arange(1, 21))])
    assert times.median_interval is not None and times.mean_interval is not None
    rate = times.as_rate(60.0)
    assert rate.median_interval is not None and rate.mean_interval is not None
    ends = times.median_interval
    assert rate.median_interval == Interval(low=60 / ends.high, high=60 / ends.low, confidence=ends.confidence)
    assert rate.mean_interval.low == pytest.approx(60 / times.mean_interval.high)
    assert rate.mean_interval.high == pytest.approx(60 / times.mean_interval.low)
    assert rate.count == times.count
    assert rate.deviation == pytest.approx(60 / 10.5 * times.deviation / 10.5)


def test_the_rate_of_no_time_has_no_deviation_and_of_one_time_no_interval() -> None:
    still = summarize([0.0, 0.0, 0.0]).as_rate(5.0)
    assert (still.median, still.minimum, still.maximum, still.deviation) == (0.0, 0.0, 0.0, 0.0)
    assert set(still.percentiles.values()) == {0.0}
    once = summarize([2.0]).as_rate(5.0)
    assert (once.mean, once.mean_interval, once.median_interval) == (2.5, None, None)


def test_the_end_at_a_heavy_tail_is_further_away_where_samples_are_few() -> None:
    heavy = np.concatenate((np.linspace(1.0, 1.2, 28), [3.0, 4.0]))
    light = np.concatenate((np.linspace(1.0, 1.2, 28), [1.25, 1.25]))
    for few, expected in ((heavy, True), (light, False)):
        below, above = _doubt(few, ratio=1.5)
        assert (above > below) is expected
        assert _doubt(2.0 - few, ratio=1.5) == pytest.approx((above, below))
        assert _doubt(few, ratio=5.0) == (1.0, 1.0)
