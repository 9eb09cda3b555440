"""Warm-up, stop rule, agreement of ranks and warnings, on scripted clocks: every count has a known answer."""

from __future__ import annotations

import gc
import math
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from paceline.core.parameters import MeasuringParameters
from paceline.devices.timeline import HostTimeline, Timeline
from paceline.measure.loop import (
    LOOK_SPACING,
    Drift,
    Stop,
    StopRule,
    Timed,
    WarmUp,
    _Looks,
    measure,
    quiet_collector,
    warm_up,
    warnings,
)
from support.scripted import ScriptedClock, ScriptedDevice, ScriptedStep

WAVE = [0.001, 0.002] * 10_000  # its median is never known to 1 %


def parameters(**values: Any) -> MeasuringParameters:
    """Without a span, unless a test gives one: the other rules by themselves."""
    return MeasuringParameters(**{"span": 0.0} | values)


def on_host(durations: list[float]) -> tuple[ScriptedStep, HostTimeline, ScriptedClock]:
    clock = ScriptedClock()
    return ScriptedStep(clock.advance, durations), HostTimeline(clock), clock


def on_device(durations: list[float], in_flight: int) -> tuple[ScriptedStep, Timeline, ScriptedClock]:
    clock = ScriptedClock()
    device = ScriptedDevice(clock)
    return ScriptedStep(device.issue, durations), device.event_timeline(in_flight), clock


def warm(durations: list[float], limit: float) -> tuple[WarmUp, int]:
    step, timeline, clock = on_host(durations)
    return warm_up(step, timeline, parameters(warm_up=limit), clock=clock), step.calls


def timed(durations: list[float], **values: Any) -> Timed:
    step, timeline, clock = on_host(durations)
    found = measure(step, timeline, parameters(**values), clock=clock)
    assert len(found.samples) == step.calls
    return found


# ---- warm-up


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


def test_a_device_kind_has_a_least_time_and_a_short_warm_up_a_quarter_of_itself() -> None:
    for limit, settling, least in ((100.0, 2.5, 2.5), (4.0, 2.5, 1.0), (100.0, 0.5, 0.5)):
        step, timeline, clock = on_host([1 / 32])
        warmed = warm_up(step, timeline, parameters(warm_up=limit), settling=settling, clock=clock)
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


# ---- stop rule


def test_constant_steps_are_precise_at_the_second_narrow_look() -> None:
    found = timed([0.125], budget=100.0, min_steps=10)
    assert (len(found.samples), found.stopped) == (11, Stop.PRECISE)


def test_fast_steps_are_not_precise_before_half_a_second() -> None:
    found = timed([1 / 32], budget=100.0, min_steps=10)
    assert (len(found.samples), found.stopped) == (16, Stop.PRECISE)


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
    assert len(timed([0.125], budget=100.0, min_steps=15).samples) == 16
    assert len(timed([0.125], budget=1.0, min_steps=15).samples) == 8


# ---- reports, garbage collection


@pytest.mark.parametrize("in_flight", [0, 2])
def test_every_sample_is_reported_once_and_reporting_is_in_no_sample(in_flight: int) -> None:
    step, timeline, clock = on_host([0.125]) if in_flight == 0 else on_device([0.125], in_flight)
    reported: list[float] = []

    def report(phase: str, samples: list[float]) -> None:
        assert phase == "measuring"
        reported.extend(samples)
        if in_flight == 0:
            clock.advance(5.0)

    found = measure(step, timeline, parameters(steps=30), clock=clock, report=report)
    assert reported == found.samples == pytest.approx([0.125] * 30)


def test_reports_are_a_quarter_second_apart() -> None:
    step, timeline, clock = on_host([1 / 32])
    sizes: list[int] = []
    measure(step, timeline, parameters(steps=32), clock=clock, report=lambda _, samples: sizes.append(len(samples)))
    assert sizes == [8, 8, 8, 8, 0]


def test_the_garbage_collector_rests_while_steps_are_measured_and_works_again_after() -> None:
    seen: list[bool] = []
    _, timeline, clock = on_host([0.5])
    measure(lambda: seen.append(gc.isenabled()), timeline, parameters(steps=3), clock=clock)
    assert seen == [False] * 3
    assert gc.isenabled()


def test_the_garbage_collector_works_again_after_a_step_that_raised() -> None:
    def step() -> None:
        raise ValueError("broken step")

    _, timeline, clock = on_host([0.5])
    with pytest.raises(ValueError, match="broken step"):
        measure(step, timeline, parameters(steps=3), clock=clock)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        timed([0.5], steps=1)
        assert not gc.isenabled()
    finally:
        gc.enable()


# ---- agreement of ranks


def noisy(seed: int, scale: float) -> list[float]:
    return list(scale * np.random.default_rng(seed).lognormal(0.0, 0.3, 3000))


def as_two_ranks(drive: Callable[[list[float], Callable[[bool], bool]], int]) -> tuple[int, int, list[bool]]:
    """The steps that each rank took; the second hears what the first said, look by look."""
    verdicts: list[bool] = []

    def leads(mine: bool) -> bool:
        verdicts.append(mine)
        return mine

    first = drive(noisy(1, 0.01), leads)
    heard: Iterator[bool] = iter(verdicts)
    second = drive(noisy(2, 0.02), lambda _mine: next(heard))  # one look too many raises StopIteration
    assert next(heard, None) is None, "the second rank looked less often"
    return first, second, verdicts


@pytest.mark.parametrize("in_flight", [0, 2])
@pytest.mark.parametrize("values", [{"budget": 2.0}, {"interval": 0.05}, {"steps": 57}, {"max_steps": 90}])
def test_ranks_with_different_noise_take_the_same_steps(values: dict[str, Any], in_flight: int) -> None:
    def drive(times: list[float], agree: Callable[[bool], bool]) -> int:
        step, timeline, clock = on_device(times, in_flight) if in_flight else on_host(times)
        found = measure(step, timeline, parameters(**values), agree=agree, clock=clock)
        assert found.stopped in Stop
        return step.calls

    first, second, verdicts = as_two_ranks(drive)
    assert first == second
    assert verdicts == [False] * (len(verdicts) - 1) + [True]


def test_ranks_warm_up_together() -> None:
    def drive(times: list[float], agree: Callable[[bool], bool]) -> int:
        step, timeline, clock = on_host(times)
        warm_up(step, timeline, parameters(), agree=agree, clock=clock)
        return step.calls

    first, second, _ = as_two_ranks(drive)
    assert first == second


def test_left_alone_those_ranks_would_have_taken_different_steps() -> None:
    assert len(timed(noisy(1, 0.01), budget=2.0).samples) != len(timed(noisy(2, 0.02), budget=2.0).samples)


# ---- warnings

STEADY = WarmUp([0.1] * 6, steady=True)


def kinds(samples: list[float], warmed: WarmUp = STEADY, **values: Any) -> list[str]:
    return [warning.kind for warning in warnings(warmed, Timed(samples, Stop.BUDGET), parameters(**values))]


def test_good_samples_raise_no_warning() -> None:
    assert kinds([0.1, 0.101, 0.099, 0.1, 0.1005] * 10) == []


def test_an_unsteady_warm_up_is_warned_with_what_it_took() -> None:
    warmed = WarmUp([2.0, 1.0], steady=False)
    found = warnings(warmed, Timed([0.1, 0.13, 0.1, 0.12] * 5, Stop.BUDGET), parameters())[0]
    assert found.kind == "unsteady"
    assert "2 warm-up steps (3 s)" in found.message
    assert "--warm-up" in found.remedy


def test_a_warm_up_that_was_not_steady_is_forgiven_where_the_measured_steps_are() -> None:
    assert kinds([0.1] * 20, WarmUp([2.0, 1.0], steady=False)) == []


@pytest.mark.parametrize(("after", "word"), [(0.12, "20.0% slower"), (0.08, "20.0% faster")])
def test_a_last_quarter_unlike_the_first_is_drifting(after: float, word: str) -> None:
    found = {d.kind: d for d in warnings(STEADY, Timed([0.1] * 20 + [after] * 20, Stop.BUDGET), parameters())}
    assert word in found["drifting"].message


def test_a_change_of_less_than_two_percent_is_not_yet_drifting() -> None:
    assert kinds([0.1] * 20 + [0.1019] * 20) == []


@pytest.mark.parametrize("samples", [[1.0] * 4, [0.0005] * 39])
def test_few_steps_or_little_time_is_short(samples: list[float]) -> None:
    assert "short" in kinds(samples)


@pytest.mark.parametrize("samples", [[1.0] * 5, [0.0005] * 41])
def test_enough_steps_and_time_is_not_short(samples: list[float]) -> None:
    assert kinds(samples) == []


def test_an_interval_beyond_five_percent_is_imprecise() -> None:
    assert kinds([0.1, 0.13] * 20) == ["imprecise"]
    assert kinds([0.1, 0.104] * 20) == []


def test_an_interval_as_wide_as_was_asked_for_is_precise_enough() -> None:
    assert kinds([0.1, 0.13] * 20, interval=0.3) == []


def test_one_step_has_an_unknown_interval() -> None:
    found = {d.kind: d for d in warnings(STEADY, Timed([1.0], Stop.BUDGET), parameters())}
    assert set(found) == {"short", "imprecise"}
    assert "unknown" in found["imprecise"].message


def test_more_than_a_tenth_far_away_is_noisy() -> None:
    far = [0.1] * 8 + [0.104]
    assert kinds(far * 3) == ["noisy"]
    assert kinds([0.1] * 27 + [0.104] * 3) == []


def test_rare_stalls_widen_the_mean_and_that_is_warned() -> None:
    assert kinds(([0.005] * 99 + [0.105]) * 2) == ["imprecise"]


def test_rare_stalls_keep_the_measurement_going() -> None:
    stalling = ([0.005] * 49 + [0.2]) * 100
    assert timed([0.005], budget=20.0).stopped is Stop.PRECISE
    found = timed(stalling, budget=3.0)
    assert found.stopped is Stop.BUDGET


def test_every_warning_says_what_to_do() -> None:
    found = warnings(WarmUp([1.0], steady=False), Timed([0.001], Stop.BUDGET), parameters())
    assert all(warning.message and warning.remedy for warning in found)


def test_a_device_that_waits_for_the_host_is_warned() -> None:
    steady = WarmUp([0.1] * 6, steady=True)
    starving = Timed([0.1] * 20, Stop.PRECISE, starved=15)
    assert [warning.kind for warning in warnings(steady, starving, parameters())] == ["host-bound"]
    fed = Timed([0.1] * 20, Stop.PRECISE, starved=5)
    assert warnings(steady, fed, parameters()) == []


# ---- boundaries of the rules


def stop_rule(samples: list[float], **values: Any) -> StopRule:
    rule = StopRule(parameters=parameters(**{"budget": 100.0, "min_steps": 5, "max_steps": 1000} | values))
    for sample in samples:
        rule.add(sample)
    return rule


def looked(rule: StopRule, times: int) -> list[Stop | None]:
    reasons = []
    for _ in range(times):
        rule.done()
        reasons.append(rule.reason)
    return reasons


def test_a_narrow_interval_counts_when_it_was_narrow_at_the_look_before() -> None:
    assert looked(stop_rule([0.5] * 5), 3) == [None, Stop.PRECISE, Stop.PRECISE]
    rule = stop_rule([0.5] * 5)
    assert looked(rule, 1) == [None]
    for sample in (0.9, 0.1, 0.9, 0.1):
        rule.add(sample)
    assert looked(rule, 2) == [None, None]  # wide again, so that one narrow look is none


def test_four_steps_are_too_few_to_know_a_median() -> None:
    assert looked(stop_rule([0.5] * 4, min_steps=1), 2) == [None, None]
    assert looked(stop_rule([0.5] * 5, min_steps=1), 2) == [None, Stop.PRECISE]


@pytest.mark.parametrize(("seconds", "precise"), [(0.0625, False), (0.0714285715, True)])
def test_half_a_second_of_steps_is_the_least(seconds: float, precise: bool) -> None:
    assert looked(stop_rule([seconds] * 7), 2)[-1] is (Stop.PRECISE if precise else None)


def test_half_a_second_exactly_is_enough_and_so_is_a_shorter_budget() -> None:
    assert looked(stop_rule([0.0625] * 8), 2)[-1] is Stop.PRECISE
    assert looked(stop_rule([0.03125] * 8, budget=0.25), 2)[-1] is Stop.PRECISE
    assert looked(stop_rule([0.03125] * 7, budget=0.25), 2)[-1] is None


def test_a_budget_is_spent_when_it_is_reached() -> None:
    assert looked(stop_rule([0.25, 0.5], budget=0.75), 1) == [Stop.BUDGET]
    assert looked(stop_rule([0.25, 0.5], budget=0.76), 1) == [None]
    assert not stop_rule([1.0] * 3, budget=0.5, steps=4).is_spent


def test_the_mean_may_be_three_times_as_wide_as_the_median() -> None:
    # One step in a hundred is longer: the median does not see it, the mean does.
    narrow, wide = ([0.1] * 99 + [last] for last in (0.12, 0.9))
    assert looked(stop_rule(narrow), 2)[-1] is Stop.PRECISE
    assert looked(stop_rule(wide), 2)[-1] is None
    assert looked(stop_rule(wide, interval=0.2), 2)[-1] is Stop.PRECISE


def test_a_rank_that_others_stop_has_used_its_budget() -> None:
    step, timeline, clock = on_host([0.5])
    stopped = measure(step, timeline, parameters(budget=100.0), agree=lambda _mine: True, clock=clock)
    assert (stopped.stopped, len(stopped.samples), stopped.executed) == (Stop.BUDGET, 1, 1)


def test_samples_are_known_with_their_number_at_least_once() -> None:
    step, timeline, clock = on_device([0.25], in_flight=2)
    warmed = warm_up(step, timeline, parameters(warm_up=0.0), clock=clock)
    assert len(warmed.samples) >= 1
    assert warmed.seconds == pytest.approx(0.25 * len(warmed.samples))


# ---- when a rule is asked


def asked(looks: _Looks, clock: ScriptedClock, issued: int, seconds: float = 0.0) -> None:
    class Rule(StopRule):
        def done(self) -> bool:
            clock.advance(seconds)
            return False

    assert not looks.ask(Rule(parameters=parameters()), issued)


def due(looks: _Looks, counts: range, *, spent: bool = False) -> list[int]:
    return [count for count in counts if looks.due(count, spent)]


@pytest.mark.parametrize("together", [False, True])
def test_a_rule_is_asked_after_every_step_and_then_after_every_tenth_more(together: bool) -> None:
    clock = ScriptedClock()
    looks = _Looks(together, None, clock)
    assert due(looks, range(3)) == [1, 2]
    for issued, following in ((1, 2), (9, 10), (19, 20), (20, 22), (100, 110)):
        asked(looks, clock, issued)
        assert due(looks, range(issued, following + 1)) == [following]


def test_together_a_rule_is_asked_after_the_last_step_too() -> None:
    clock = ScriptedClock()
    looks = _Looks(True, 105, clock)
    asked(looks, clock, 100)
    assert due(looks, range(100, 107)) == [105, 106]
    asked(looks, clock, 105)
    assert due(looks, range(100, 108)) == [106, 107]


def test_together_time_has_no_say_and_alone_it_has() -> None:
    clock = ScriptedClock()
    for together, expected in ((True, []), (False, [101, 102])):
        looks = _Looks(together, None, clock)
        asked(looks, clock, 100, seconds=1.0)
        assert due(looks, range(101, 103), spent=True) == expected


def test_alone_a_rule_is_asked_after_the_last_step_however_long_a_look_takes() -> None:
    clock = ScriptedClock()
    looks = _Looks(False, 105, clock)
    asked(looks, clock, 100, seconds=1.0)
    assert due(looks, range(101, 110)) == [105]


def test_alone_looks_take_a_few_thousandths_of_the_time() -> None:
    clock = ScriptedClock()
    clock.advance(1000.0)
    looks = _Looks(False, None, clock)
    asked(looks, clock, 100, seconds=0.5)
    assert due(looks, range(110, 111)) == []
    clock.advance(LOOK_SPACING * 0.5 - 0.25)
    assert due(looks, range(110, 111)) == []
    clock.advance(0.25)
    assert due(looks, range(109, 111)) == [110]


# ---- boundaries of the warnings


def test_two_percent_is_the_least_drift() -> None:
    assert "drifting" not in kinds([0.1] * 20 + [0.1019] * 20)
    assert "drifting" in kinds([0.1] * 20 + [0.1021] * 20)
    assert "drifting" in kinds([0.1] * 20 + [0.0979] * 20)


# ---- the span


LONG = WarmUp([0.1] * 20, steady=True)  # 2 s


def quiet(count: int, noise: float = 0.001) -> list[float]:
    return list(0.01 * (1.0 + noise * np.random.default_rng(5).standard_normal(count)))


def test_measuring_covers_three_quarters_of_the_span() -> None:
    assert 6.0 <= sum(timed([1 / 32], span=8.0).samples) <= 6.6
    assert sum(timed([1 / 32], span=8.0, budget=3.0).samples) == 3.0


def test_noise_that_hides_slow_settling_keeps_the_measurement_going() -> None:
    noisy_steps = list(0.01 * (1.0 + 0.02 * np.random.default_rng(6).standard_normal(4000)))
    covered = sum(timed(noisy_steps, span=8.0, budget=60.0).samples)
    assert covered == pytest.approx(10.0, rel=0.11)  # where the next look falls


def test_quiet_steps_over_the_whole_span_raise_no_warning() -> None:
    assert kinds(quiet(600), LONG, span=8.0) == []


def test_less_than_the_usual_span_is_short_and_says_how_short() -> None:
    (short,) = warnings(LONG, Timed(quiet(100), Stop.PRECISE), parameters(span=1.0))
    assert short.kind == "short"
    assert short.message == "under load for 3 s, warm-up included: what settles or changes later was not seen"
    assert short.remedy == "measure longer: --span 60s --warm-up 30s --budget 60s"
    assert kinds(quiet(100), LONG, span=0.0) == []
    assert kinds(quiet(100), LONG, span=8.0, steps=100) == []  # as many as somebody asked for


def test_too_many_steps_to_cover_the_span_are_short_with_that_remedy() -> None:
    (short,) = warnings(LONG, Timed(quiet(100), Stop.STEPS), parameters(span=8.0))
    assert short.remedy.endswith("--max-steps 1000000")


def test_slow_settling_that_noise_would_hide_is_short_with_how_much_it_may_be() -> None:
    (short,) = warnings(LONG, Timed(quiet(600, noise=0.02), Stop.BUDGET), parameters(span=8.0))
    assert short.kind == "short"
    assert re.search(r"settles slowly by up to \d+%$", short.message)


def test_slow_settling_that_is_seen_is_drifting_with_what_it_would_come_to() -> None:
    settling = [one * (1.0 + 0.1 * math.exp(-k / 1000)) for k, one in enumerate(quiet(600))]
    (drifting,) = warnings(LONG, Timed(settling, Stop.BUDGET), parameters(span=8.0))
    assert drifting.kind == "drifting"
    assert "faster than the first" in drifting.message
    assert kinds([one * (1.0 + 0.004 * (k > 300)) for k, one in enumerate(quiet(600))], LONG, span=8.0) == ["drifting"]
    assert kinds([one * (1.0 + 0.004 * (k > 300)) for k, one in enumerate(quiet(600))], LONG, span=0.0) == []


def test_what_a_change_comes_to_is_exact_for_the_slowest_settling() -> None:
    constant = 30.0
    level = [math.exp(-(k + 0.5) * 0.01 / constant) for k in range(1000)]
    drift = Drift.of([0.01 * (1.0 + 0.01 * one) for one in level], slow=True)
    assert drift is not None
    assert drift.off == pytest.approx(0.01 * float(np.mean(level)), rel=0.02)


def test_half_of_the_steps_may_wait_for_the_host() -> None:
    for starved, expected in ((10, []), (11, ["host-bound"])):
        seen = warnings(STEADY, Timed([0.1] * 20, Stop.PRECISE, starved=starved), parameters())
        assert [one.kind for one in seen] == expected


def test_an_imprecise_median_is_named_with_its_width_and_the_mean_only_without_it() -> None:
    (median,) = warnings(STEADY, Timed([0.1, 0.2] * 20, Stop.BUDGET), parameters())
    assert median.message.startswith("the interval of the median is ±")
    assert median.message.endswith("% after 40 steps")
    (mean,) = warnings(STEADY, Timed(([0.005] * 99 + [0.105]) * 2, Stop.BUDGET), parameters())
    assert mean.message.startswith("the interval of the mean is ±")


def test_a_short_measurement_says_how_short() -> None:
    (short, *_) = warnings(STEADY, Timed([1.5] * 2, Stop.BUDGET), parameters())
    assert short.message == "only 2 steps in 3 s"


# ---- the collector


class Knot:
    def __init__(self) -> None:
        self.tie = self


@pytest.mark.parametrize("works", [True, False])
def test_garbage_is_collected_before_steps_where_the_collector_works(works: bool) -> None:
    gc.disable()
    try:
        knot = weakref.ref(Knot())
        if works:
            gc.enable()
        with quiet_collector():
            assert (knot() is None) is works
            assert not gc.isenabled()
        assert gc.isenabled() is works
    finally:
        gc.enable()
