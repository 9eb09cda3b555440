"""Schedules follow their distributions, are drawn from their seed alone, and are shared out whole."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from paceline.load import arrivals
from paceline.load.arrivals import Schedule

SURE = 1e-3  # seeds are fixed, so that this decides once


def random(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_poisson_gaps_are_exponential() -> None:
    times = arrivals.poisson(50.0, random(), count=5000)
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
    counts = [len(arrivals.poisson(rate, random(seed), duration=20.0)) for seed in range(40)]
    assert abs(np.mean(counts) - 20 * rate) < 4 * np.sqrt(20 * rate / 40)


def test_scaling_keeps_the_pattern() -> None:
    times = np.array([0.0, 1.0, 4.0])
    assert arrivals.scaled(times, 10.0).tolist() == pytest.approx([0.0, 0.05, 0.2])
    assert arrivals.scaled(np.zeros(3), 10.0).tolist() == [0, 0, 0]


def test_the_peak_is_that_of_the_busiest_moment() -> None:
    quiet_then_busy = Schedule(np.concatenate([np.arange(10) * 1.0, 20 + np.arange(50) * 0.002]))
    assert quiet_then_busy.peak_rate == pytest.approx(500)
    assert Schedule(np.empty(0)).peak_rate == 0
