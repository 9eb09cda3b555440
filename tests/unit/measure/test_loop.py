"""Reports, rest of the garbage collector, agreement of ranks and when a rule is asked, on scripted clocks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from paceline.measure.loop import LOOK_SPACING, Stop, StopRule, _Looks, measure, quiet_collector, warm_up
from support.scripted import ScriptedClock
from support.scripted_loop import on_device, on_host, parameters, timed

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
