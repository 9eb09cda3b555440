"""When measuring ends, on scripted clocks: every count has a known answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.measure.loop import Stop, StopRule, measure
from support.scripted_loop import on_device, parameters, timed

WAVE = [0.001, 0.002] * 10_000  # its median is never known to 1 %


def test_constant_steps_are_precise_at_the_second_narrow_look() -> None:
    found = timed([0.125], budget=100.0, min_steps=10)
    assert (len(found.samples), found.stopped) == (12, Stop.PRECISE)


def test_fast_steps_are_not_precise_before_half_a_second() -> None:
    found = timed([1 / 32], budget=100.0, min_steps=10)
    assert (len(found.samples), found.stopped) == (16, Stop.PRECISE)


def test_a_shorter_span_is_enough_for_narrow_steps_and_wide_ones_take_the_budget() -> None:
    narrow = timed([1 / 64], budget=1.0, span=0.25)
    wide = timed([1 / 64, 1 / 32] * 100, budget=1.0, span=0.25)
    assert (sum(narrow.samples), narrow.stopped) == (pytest.approx(0.25, abs=0.05), Stop.PRECISE)
    assert (sum(wide.samples), wide.stopped) == (pytest.approx(1.0, abs=0.05), Stop.BUDGET)


def test_a_budget_of_one_second_runs_four_steps_of_three_tenths() -> None:
    found = timed([0.3], budget=1.0)
    assert (len(found.samples), found.stopped) == (4, Stop.BUDGET)


def test_the_first_step_that_outlasts_the_budget_is_the_last() -> None:
    found = timed([30.0], budget=1.0)
    assert (len(found.samples), found.stopped) == (1, Stop.BUDGET)


def test_the_budget_is_overrun_by_one_step_at_most_however_fast_the_steps() -> None:
    for seconds in (1e-4, 1e-3, 1e-2):
        found = timed([seconds, 3 * seconds] * 10_000, budget=1.0, max_steps=1_000_000)
        assert found.stopped is Stop.BUDGET
        assert 1.0 - 1e-9 <= sum(found.samples) <= 1.0 + 3 * seconds


def test_steps_that_turn_slow_late_still_end_with_the_budget() -> None:
    found = timed([0.001, 0.0015] * 500 + [1.0] * 100, budget=2.0)
    assert found.stopped is Stop.BUDGET
    assert found.samples[-2:] == pytest.approx([0.0015, 1.0])


def test_all_steps_that_ran_are_counted_those_before_and_after_the_samples_too() -> None:
    step, timeline, clock = on_device([0.1], in_flight=2)
    found = measure(step, timeline, parameters(steps=10), clock=clock)
    assert len(found.samples) == 10
    assert found.executed == step.calls > 10


def test_noisy_steps_use_the_budget_up() -> None:
    found = timed([0.25, 0.5] * 50, budget=6.0)
    # Pairs take 0.75 s: eight of them are exactly the budget.
    assert (len(found.samples), found.stopped) == (16, Stop.BUDGET)


@pytest.mark.parametrize("most", [1, 20, 25, 105, 1000])
def test_no_more_steps_are_measured_than_the_most_allowed(most: int) -> None:
    found = timed(WAVE, budget=1e6, max_steps=most)
    assert (len(found.samples), found.stopped) == (most, Stop.STEPS)


@pytest.mark.parametrize("in_flight", [1, 2, 4])
@pytest.mark.parametrize("most", [1, 25, 105])
def test_no_more_steps_in_flight_are_measured_than_the_most_allowed(most: int, in_flight: int) -> None:
    step, timeline, clock = on_device(WAVE, in_flight)
    found = measure(step, timeline, parameters(budget=1e6, max_steps=most), clock=clock)
    assert (len(found.samples), found.stopped) == (most, Stop.STEPS)


@pytest.mark.parametrize("count", [1, 2, 7, 19, 21, 100, 333])
def test_exactly_the_steps_asked_for_are_measured_on_the_host(count: int) -> None:
    # Neither precision, nor the budget, nor max_steps has a say then.
    found = timed([0.5], steps=count, budget=1.0, max_steps=3)
    assert (len(found.samples), found.stopped) == (count, Stop.STEPS)


@pytest.mark.parametrize("in_flight", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 7, 21, 100, 333])
def test_exactly_the_steps_asked_for_are_measured_in_flight(count: int, in_flight: int) -> None:
    step, timeline, clock = on_device([0.5], in_flight)
    found = measure(step, timeline, parameters(steps=count, budget=1.0), clock=clock)
    assert (len(found.samples), found.stopped) == (count, Stop.STEPS)
    assert found.samples == pytest.approx([0.5] * count)


def test_untimed_steps_lead_in_when_steps_are_in_flight() -> None:
    step, timeline, clock = on_device([100.0, 100.0, 0.5], 2)
    found = measure(step, timeline, parameters(steps=10), clock=clock)
    assert found.samples == pytest.approx([0.5] * 10)
    assert step.calls >= 12


def test_samples_come_out_exactly_as_scripted() -> None:
    times = [0.25, 0.5, 0.125, 1.0, 0.75, 0.375]
    assert timed(times, steps=6).samples == times


def test_the_least_number_of_steps_delays_precision_but_not_the_end_of_the_budget() -> None:
    assert len(timed([0.125], budget=100.0, min_steps=15).samples) == 18
    assert len(timed([0.125], budget=1.0, min_steps=15).samples) == 8


def stop_rule(samples: list[float], **values: Any) -> StopRule:
    """A rule that was asked after each of these."""
    rule = StopRule(parameters=parameters(**{"budget": 100.0, "min_steps": 5, "max_steps": 1000} | values))
    for sample in samples:
        rule.add(sample)
        rule.done()
    return rule


def reason(samples: list[float], **values: Any) -> Stop | None:
    return stop_rule(samples, **values).reason


def test_a_narrow_interval_counts_when_it_was_narrow_at_the_look_before() -> None:
    assert reason([0.5] * 5) is None
    assert reason([0.5] * 6) is reason([0.5] * 7) is Stop.PRECISE
    assert reason([0.5] * 5 + [0.9, 0.5]) is None  # wide again, so that one narrow look is none


def test_a_quarter_more_samples_lie_between_two_looks() -> None:
    assert reason([0.125] * 24, min_steps=20) is None
    assert reason([0.125] * 25, min_steps=20) is Stop.PRECISE


def test_four_steps_are_too_few_to_know_a_median() -> None:
    assert reason([0.5] * 5, min_steps=1) is None  # the first narrow look
    assert reason([0.5] * 6, min_steps=1) is Stop.PRECISE


@pytest.mark.parametrize(("seconds", "precise"), [(0.0625, False), (0.0714285715, True)])
def test_half_a_second_of_steps_is_the_least(seconds: float, precise: bool) -> None:
    assert reason([seconds] * 7) is (Stop.PRECISE if precise else None)


def test_half_a_second_exactly_is_enough_and_so_is_a_shorter_budget() -> None:
    assert reason([0.0625] * 8) is Stop.PRECISE
    assert reason([0.03125] * 8, budget=0.25) is Stop.PRECISE
    assert reason([0.03125] * 7, budget=0.25) is None


def test_a_budget_is_spent_when_it_is_reached() -> None:
    assert reason([0.25, 0.5], budget=0.75) is Stop.BUDGET
    assert reason([0.25, 0.5], budget=0.76) is None
    assert not stop_rule([1.0] * 3, budget=0.5, steps=4).is_spent


def test_the_mean_may_be_three_times_as_wide_as_the_median() -> None:
    # One step in a hundred is longer: the median does not see it, the mean does.
    narrow, wide = ([first] + [0.1] * 99 for first in (0.12, 0.9))
    assert reason(narrow, min_steps=80) is Stop.PRECISE
    assert reason(wide, min_steps=80) is None
    assert reason(wide, min_steps=80, interval=0.2) is Stop.PRECISE


def test_rare_stalls_keep_the_measurement_going() -> None:
    stalling = ([0.005] * 49 + [0.2]) * 100
    assert timed([0.005], budget=20.0).stopped is Stop.PRECISE
    found = timed(stalling, budget=3.0)
    assert found.stopped is Stop.BUDGET


def test_measuring_covers_three_quarters_of_the_span() -> None:
    assert 6.0 <= sum(timed([1 / 32], span=8.0).samples) <= 6.6
    assert sum(timed([1 / 32], span=8.0, budget=3.0).samples) == 3.0


def test_noise_that_hides_slow_settling_keeps_the_measurement_going() -> None:
    noisy_steps = list(0.01 * (1.0 + 0.02 * np.random.default_rng(6).standard_normal(4000)))
    covered = sum(timed(noisy_steps, span=8.0, budget=60.0).samples)
    assert covered == pytest.approx(10.0, rel=0.11)  # where the next look falls
