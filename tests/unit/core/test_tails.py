"""Percentiles of samples that resemble their neighbours, with an interval or with what is missing for one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.core.stats import Interval
from paceline.core.tails import (
    LEAST_EFFECTIVE,
    beta_quantile,
    fewest,
    missing,
    not_decidable,
    rounded_up,
    tails,
    to_decide,
)

APART = np.random.default_rng(7).exponential(1.0, 2000)


def correlated(part: float, count: int, seed: int = 1) -> np.ndarray:
    """Exponential times, each of which resembles the one before."""
    noise = np.random.default_rng(seed).normal(size=count)
    values = np.empty(count)
    values[0] = noise[0]
    for place in range(1, count):
        values[place] = part * values[place - 1] + math.sqrt(1 - part * part) * noise[place]
    return np.exp(values)


def test_independent_samples_are_worth_what_they_are() -> None:
    (tail,) = tails(APART, [0.9])
    assert 0.85 * 2000 < tail.effective <= 2000
    assert tail.interval is not None and tail.more == 0
    assert tail.interval.low < tail.value < tail.interval.high
    # Of the part below it, the interval of a binomial one: 1.96 * sqrt(0.9 * 0.1 / 2000) is 1.3 %.
    parts = [float(np.mean(end > APART)) for end in (tail.interval.low, tail.interval.high)]
    assert parts == pytest.approx([0.887, 0.913], abs=0.004)


def test_samples_that_resemble_their_neighbours_are_worth_fewer_and_widen_the_interval() -> None:
    whole = correlated(0.8, 6000)
    mixed = np.random.default_rng(3).permutation(whole)
    (apart,), (together,) = tails(mixed, [0.9]), tails(whole, [0.9])
    assert together.value == apart.value
    assert together.effective < 0.2 * apart.effective
    assert together.interval is not None and apart.interval is not None
    assert together.interval.high - together.interval.low > 1.8 * (apart.interval.high - apart.interval.low)


def test_too_few_have_no_interval_and_say_how_many_are_missing() -> None:
    (tail,) = tails(correlated(0.99, 3000), [0.5])
    assert tail.interval is None
    assert tail.effective < LEAST_EFFECTIVE
    assert tail.more == missing(3000, tail.effective) > 3000


def test_near_the_least_count_the_upper_end_is_further_away() -> None:
    counts = 2000, 6000
    near, far = (tails(correlated(0.8, count), [0.5])[0] for count in counts)
    assert LEAST_EFFECTIVE < near.effective < 1.2 * LEAST_EFFECTIVE and far.effective > 1.8 * LEAST_EFFECTIVE
    assert near.interval is not None and far.interval is not None
    upper, usual = near.interval.high - near.value, far.interval.high - far.value
    assert upper > 3.0 * (counts[1] / counts[0]) ** 0.5 * usual  # not only because there are fewer
    assert near.value - near.interval.low < 1.5 * (counts[1] / counts[0]) ** 0.5 * (far.value - far.interval.low)


def test_the_upper_end_may_lie_beyond_all_samples() -> None:
    (tail,) = tails(APART[:120], [0.99])
    assert tail.interval is not None and tail.interval.high > APART[:120].max()


def test_requests_without_an_answer_leave_no_upper_end() -> None:
    lost = np.where(np.arange(2000) % 100 < 1, np.inf, APART)
    p50, p99 = tails(lost, [0.5, 0.99])
    assert p50.interval is not None and math.isfinite(p50.interval.high)
    assert p99.interval is None and p99.more > 0


def test_what_never_varies_is_certain() -> None:
    (tail,) = tails([0.1] * 200, [0.9])
    assert tail.interval == Interval(low=0.1, high=0.1, confidence=0.95)


@pytest.mark.parametrize(("count", "share"), [(0, 0.5), (1, 0.5), (2, 0.9), (3, 0.99)])
def test_hardly_any_samples_have_no_interval(count: int, share: float) -> None:
    if not count:
        with pytest.raises(ValueError, match="no samples"):
            tails([], [share])
        return
    (tail,) = tails(APART[:count], [share])
    assert tail.interval is None and tail.more > 0


@pytest.mark.parametrize(("share", "least"), [(0.5, 10), (0.9, 50), (0.95, 100), (0.99, 500), (0.999, 5000)])
def test_a_percentile_needs_five_samples_beyond_it(share: float, least: int) -> None:
    assert fewest(share) == least


def test_what_would_decide_a_limit() -> None:
    interval = Interval(low=30.0, high=60.0, confidence=0.95)
    assert to_decide(40.0, interval, 1000, 61.0) == to_decide(40.0, interval, 1000, 29.0) == 0
    assert to_decide(40.0, interval, 1000, 50.0) == 3000  # half as wide
    assert to_decide(40.0, interval, 1000, 35.0) == 3000
    assert to_decide(40.0, interval, 1000, 40.0) > 1_000_000


def test_the_sentence_where_it_is_open() -> None:
    assert not_decidable(12000) == "not decidable yet: 12,000 more requests"
    assert [rounded_up(count) for count in (0.2, 99.1, 101, 12_345)] == [1, 100, 110, 13_000]


def test_quantiles_of_the_beta_distribution() -> None:
    assert beta_quantile(0.975, 1.0, 1.0) == pytest.approx(0.975)
    assert beta_quantile(0.5, 2.0, 5.0) == pytest.approx(0.26445, abs=1e-5)
    assert beta_quantile(0.975, 99.5, 0.7) == pytest.approx(0.9999547, abs=1e-7)
