"""Throughput is work over time, whatever the noise."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.core.metric import Merge, Metric
from paceline.core.parameters import MeasuringParameters
from paceline.core.record import Measurement
from paceline.devices.timeline import HostTimeline
from paceline.measure.loop import measure
from support.scripted import ScriptedClock, ScriptedDevice, ScriptedStep

TIME = Metric(name="step_time", unit="s", merge=Merge.SLOWEST)
RATE = Metric(name="throughput", unit="samples/s", merge=Merge.SUM)

seconds = st.floats(1e-6, 1e3)
noisy = st.lists(seconds, min_size=1, max_size=80)
work = st.floats(1e-3, 1e15)


def throughput(times: list[float], work: float) -> float:
    return Measurement.of_rate(RATE, work, Measurement.of_samples(TIME, times)).value


@given(noisy, work)
def test_throughput_is_total_work_over_total_time(times: list[float], work: float) -> None:
    assert throughput(times, work) == pytest.approx(work * len(times) / math.fsum(times), rel=1e-9)


@given(noisy, work)
def test_throughput_lies_between_that_of_the_slowest_and_of_the_fastest_step(times: list[float], work: float) -> None:
    found = throughput(times, work)
    assert work / max(times) * (1 - 1e-9) <= found <= work / min(times) * (1 + 1e-9)


@given(noisy, work)
def test_throughput_is_below_the_mean_of_rates_unless_all_steps_are_equal(times: list[float], work: float) -> None:
    assume(max(times) > 1.01 * min(times))
    mean_of_rates = math.fsum(work / time for time in times) / len(times)
    assert throughput(times, work) < mean_of_rates * (1 - 1e-9)


@given(seconds, st.integers(1, 50), work)
def test_throughput_of_equal_steps_is_the_rate_of_each(time: float, count: int, work: float) -> None:
    assert throughput([time] * count, work) == pytest.approx(work / time, rel=1e-9)


@given(noisy, work)
def test_the_order_of_steps_does_not_matter(times: list[float], work: float) -> None:
    assert throughput(times[::-1], work) == pytest.approx(throughput(times, work), rel=1e-9)


@settings(max_examples=20)  # measuring collects garbage first, which takes its time
@given(noisy, work, st.floats(0.0, 100.0))
def test_measured_on_the_host_throughput_counts_the_steps_time_alone(
    times: list[float], work: float, between: float
) -> None:
    clock = ScriptedClock()
    step = ScriptedStep(clock.advance, times)
    # Everything that the harness does between two steps takes its time, too.
    found = measure(
        step,
        HostTimeline(clock),
        MeasuringParameters(steps=len(times)),
        agree=lambda mine: clock.advance(between) or mine,
        clock=clock,
    )
    expected = work * len(times) / math.fsum(times)
    assert throughput(found.samples, work) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=20)
@given(noisy, work, st.integers(1, 4))
def test_measured_in_flight_throughput_is_work_over_the_device_s_time(
    times: list[float], work: float, in_flight: int
) -> None:
    clock = ScriptedClock()
    device = ScriptedDevice(clock)
    step = ScriptedStep(device.issue, [1.0] * in_flight + times)
    found = measure(step, device.event_timeline(in_flight), MeasuringParameters(steps=len(times)), clock=clock)
    expected = work * len(times) / math.fsum(times)
    assert len(found.samples) == len(times)
    assert throughput(found.samples, work) == pytest.approx(expected, rel=1e-6)
