"""When warm-up ends, on scripted clocks: every count has a known answer."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.measure.loop import WarmUp, warm_up
from support.scripted_loop import on_host, parameters


def warm(durations: list[float], limit: float) -> tuple[WarmUp, int]:
    step, timeline, clock = on_host(durations)
    return warm_up(step, timeline, parameters(warm_up=limit), clock=clock), step.calls


def test_constant_steps_are_steady_as_soon_as_the_window_is_full() -> None:
    found, calls = warm([0.25], 100.0)
    assert (calls, found.steady, found.samples) == (6, True, [0.25] * 6)
    assert found.seconds == 1.5


def test_fast_steps_are_not_steady_before_the_window_has_its_half_second() -> None:
    found, calls = warm([1 / 32], 100.0)
    assert (calls, found.steady) == (16, True)


def test_a_short_warm_up_needs_a_quarter_of_itself_as_window() -> None:
    found, calls = warm([1 / 32], 1.0)
    assert (calls, found.steady) == (8, True)


def test_falling_step_times_are_steady_once_the_fall_has_left_the_later_half() -> None:
    falling = [2.0 - 0.125 * k for k in range(10)]
    warmed, calls = warm([*falling, 0.75], 100.0)
    assert warmed.steady
    assert warmed.samples[-1] == warmed.samples[calls // 2] == 0.75


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.7, 0.9])
def test_a_fall_that_slows_down_is_not_taken_for_noise(ratio: float) -> None:
    times = [0.125 * (1 + 5 * ratio**k) for k in range(2000)]
    warmed, _ = warm(times, 100.0)
    assert warmed.steady
    assert warmed.samples[-1] < 0.1275


def test_it_looks_again_when_twice_the_time_has_passed() -> None:
    # Steady from the sixth step on, which the look at 2 s is too early for: its later half begins at 1 s.
    warmed, calls = warm([0.5, 0.5, 0.5, 0.25, 0.2, 0.125], 100.0)
    assert warmed.steady
    assert warmed.seconds >= 2 * 2.075
    assert calls < 50


def test_a_boost_is_waited_for_within_a_quarter_of_warm_up_unless_it_outlasts_it() -> None:
    for limit, boost, least in ((100.0, 2.5, 2.5), (4.0, 2.5, 1.0), (100.0, 0.0, 0.5), (27.0, 28.0, 0.5)):
        step, timeline, clock = on_host([1 / 32])
        warmed = warm_up(step, timeline, parameters(warm_up=limit), boost=boost, clock=clock)
        assert warmed.steady
        assert least <= warmed.seconds <= 1.1 * least  # where the next look falls


def test_a_quarter_of_the_span_is_warm_up() -> None:
    step, timeline, clock = on_host([1 / 32])
    assert 2.0 <= warm_up(step, timeline, parameters(span=8.0), clock=clock).seconds <= 2.2


def test_slow_settling_that_is_seen_is_waited_for_and_without_a_span_is_not() -> None:
    times = list(0.01 * (1.0 + 0.2 * np.exp(-np.arange(4000) / 1000)))  # a time constant of ten seconds
    for span, seconds in ((8.0, 10.0), (0.0, 0.5)):
        step, timeline, clock = on_host(times)
        warmed = warm_up(step, timeline, parameters(span=span), clock=clock)
        assert warmed.seconds == pytest.approx(seconds, abs=0.05)
        assert warmed.steady is (span == 0.0)


def test_steps_that_never_stop_falling_are_unsteady_at_the_limit() -> None:
    found, calls = warm([2.0 - 0.0625 * k for k in range(30)], 15.0)
    # 8 steps take 14.25 s, 9 take 15.75 s.
    assert (calls, found.steady) == (9, False)


def test_too_few_slow_steps_to_judge_are_unsteady() -> None:
    found, calls = warm([4.0], 10.0)
    assert (calls, found.steady) == (3, False)


def test_no_time_for_warm_up_still_takes_one_step_and_is_unsteady() -> None:
    found, calls = warm([0.5], 0.0)
    assert (calls, found.steady) == (1, False)


def test_noise_that_hides_a_drift_ends_warm_up_at_the_second_look() -> None:
    rng = np.random.default_rng(3)
    warmed, calls = warm(list(0.125 * (1 + 0.1 * rng.standard_normal(500))), 60.0)
    assert not warmed.steady
    assert calls < 50


def test_noise_is_steady_as_soon_as_there_are_enough_steps_to_show_it() -> None:
    rng = np.random.default_rng(4)
    warmed, _ = warm(list(0.001 * (1 + 0.05 * rng.standard_normal(5000))), 60.0)
    assert warmed.steady
    assert warmed.seconds < 1.1
