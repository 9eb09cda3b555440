"""Schedules follow their distributions, are drawn from their seed alone, and are shared out whole."""

from __future__ import annotations

from functools import partialmethod
from typing import cast

import numpy as np
import pytest
from scipy import stats

from paceline.load import arrivals
from paceline.load.arrivals import Schedule

SURE = 1e-3  # seeds are fixed, so that this decides once


def random(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_poisson_gaps_are_exponential() -> None:
    times = arrivals.gamma(50.0, 1.0, random(), count=5000)
    assert stats.kstest(np.diff(times), "expon", args=(0, 1 / 50)).pvalue > SURE


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 5.0])
def test_gamma_gaps_have_their_shape_and_the_mean_of_the_rate(burstiness: float) -> None:
    gaps = np.diff(arrivals.gamma(50.0, burstiness, random(), count=5000))
    assert stats.kstest(gaps, "gamma", args=(burstiness, 0, 1 / (50 * burstiness))).pvalue > SURE


def test_gaps_of_another_shape_are_told_apart() -> None:
    gaps = np.diff(arrivals.gamma(50.0, 2.0, random(), count=5000))
    assert stats.kstest(gaps, "expon", args=(0, 1 / 50)).pvalue < SURE


def test_constant_is_even_and_begins_at_once() -> None:
    times = arrivals.constant(100.0, duration=2.0)
    assert (len(times), times[0]) == (200, 0.0)
    assert np.allclose(np.diff(times), 0.01)


CHANGING = {
    "ramp": (lambda r: arrivals.ramp(50, 250, 20.0, r), lambda t: 50 * t + 200 * t**2 / 40),
    "spike": (
        lambda r: arrivals.spike(100, 900, 5.0, 2.0, 20.0, r),
        lambda t: 100 * t + 800 * np.clip(t - 5, 0, 2),
    ),
    "diurnal": (
        lambda r: arrivals.diurnal(150, 0.8, 8.0, 20.0, r),
        lambda t: 150 * (t + 0.8 * 8 / (2 * np.pi) * (1 - np.cos(2 * np.pi * t / 8))),
    ),
    "on-off": (
        lambda r: arrivals.on_off(300, 20, 1.0, 2.0, 20.0, r),
        lambda t: 20 * t + 280 * (np.floor(t / 3) + np.minimum(t % 3, 1.0)),
    ),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_changing_rate_stretches_the_arrivals_of_a_constant_one(name: str) -> None:
    """By the numbers that are expected until each moment, they are the same as those of one a second."""
    draw, expected = CHANGING[name]
    times = draw(random())
    unit = np.cumsum(random().exponential(1.0, len(times) + 1))
    assert expected(times) == pytest.approx(unit[:-1], rel=1e-9)
    assert unit[-1] >= expected(np.array(20.0))


@pytest.mark.parametrize("name", CHANGING)
def test_arrivals_of_a_changing_rate_are_a_unit_poisson_process_on_its_clock(name: str) -> None:
    draw, expected = CHANGING[name]
    times = draw(random())
    total = expected(np.array(20.0))
    assert abs(len(times) - total) < 4 * np.sqrt(total)
    assert stats.kstest(np.diff(expected(times)), "expon").pvalue > SURE
    assert np.all(np.diff(times) >= 0) and times[0] >= 0 and times[-1] < 20.0


def test_nothing_arrives_in_a_pause() -> None:
    times = arrivals.on_off(200, 0, 1.0, 1.0, 10.0, random())
    assert np.all(times % 2.0 <= 1.0 + 1e-9)


@pytest.mark.parametrize("rate", [0.5, 40.0])
def test_a_duration_holds_as_many_as_the_rate_says(rate: float) -> None:
    counts = [len(arrivals.gamma(rate, 1.0, random(seed), duration=20.0)) for seed in range(40)]
    assert abs(np.mean(counts) - 20 * rate) < 4 * np.sqrt(20 * rate / 40)


class EvenGaps:
    """Draws the same gap every time, and notes how many were asked for at once."""

    def __init__(self, gap: float) -> None:
        self.gap = gap
        self.asked: list[int] = []

    def gamma(self, _shape: float, _scale: float, number: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        self.asked.append(number)
        return np.full(number, self.gap)

    exponential = partialmethod(gamma, 0.0)


@pytest.mark.parametrize(
    ("rate", "end", "gap", "asked"),
    [
        (5.1875, 4.0, 0.0625, [64]),  # the last one drawn is at the end itself
        (16.0, 1.0, 0.25, [56]),
        (16.0, 1.0, 0.0078125, [56, 56, 56]),  # far denser than the rate: what was drawn first is not enough
    ],
)
def test_gaps_are_drawn_until_the_end_and_what_is_not_before_it_is_left_out(
    rate: float, end: float, gap: float, asked: list[int]
) -> None:
    """At once so many as the rate makes likely, six standard deviations above its mean and a few more."""
    gaps = EvenGaps(gap)
    times = arrivals.gamma(rate, 1.0, cast(np.random.Generator, gaps), duration=end)
    assert times.tolist() == [gap * number for number in range(1, round(end / gap))]
    assert gaps.asked == asked


def test_arrivals_of_a_changing_rate_are_drawn_at_once_and_exact_where_numbers_are() -> None:
    gaps = EvenGaps(1.0)
    times = arrivals.ramp(16.0, 16.0, 1.0, cast(np.random.Generator, gaps))
    assert times.tolist() == [number / 16 for number in range(1, 16)]
    assert gaps.asked == [56]


def test_without_a_duration_or_a_count_nothing_arrives() -> None:
    assert arrivals.constant(10.0).tolist() == []
    assert arrivals.gamma(10.0, 1.0, random()).tolist() == []
    assert arrivals.gamma(10.0, 2.0, random()).tolist() == []


def test_a_count_is_the_number_of_arrivals_whatever_the_duration() -> None:
    assert arrivals.constant(10.0, duration=7.0, count=3).tolist() == pytest.approx([0.0, 0.1, 0.2])
    assert len(arrivals.gamma(10.0, 1.0, random(), duration=7.0, count=3)) == 3


@pytest.mark.parametrize(
    ("times", "scaled"),
    [
        ([], []),
        ([5.0], [5.0]),
        ([0.0, 1.0], [0.0, 0.1]),
        ([0.0, 1.0, 1.0], [0.0, 0.2, 0.2]),
        ([0.0, 0.0, 4.0], [0.0, 0.0, 0.2]),
        ([1.0, 2.0, 5.0], [0.05, 0.1, 0.25]),
    ],
)
def test_scaling_makes_the_mean_rate_of_any_arrivals_that_have_one(times: list[float], scaled: list[float]) -> None:
    assert arrivals.scaled(np.array(times), 10.0).tolist() == pytest.approx(scaled)


def test_scaling_keeps_the_pattern() -> None:
    times = np.array([0.0, 1.0, 4.0])
    assert arrivals.scaled(times, 10.0).tolist() == pytest.approx([0.0, 0.05, 0.2])
    assert arrivals.scaled(np.zeros(3), 10.0).tolist() == [0, 0, 0]


def test_the_peak_is_that_of_the_busiest_moment() -> None:
    quiet_then_busy = Schedule(np.concatenate([np.arange(10) * 1.0, 20 + np.arange(50) * 0.002]))
    assert quiet_then_busy.peak_rate == pytest.approx(500)
    assert Schedule(np.empty(0)).peak_rate == 0
    assert Schedule(np.array([0.0, 0.1])).peak_rate == pytest.approx(10)  # the second is in the next tenth
