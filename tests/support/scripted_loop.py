"""The measuring loop on scripted clocks: steps of the durations that a test gives, and what the loop makes of them."""

from __future__ import annotations

from typing import Any

from paceline.core.parameters import MeasuringParameters
from paceline.devices.timeline import HostTimeline, Timeline
from paceline.measure.loop import Timed, measure
from support.scripted import ScriptedClock, ScriptedDevice, ScriptedStep


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


def timed(durations: list[float], **values: Any) -> Timed:
    step, timeline, clock = on_host(durations)
    found = measure(step, timeline, parameters(**values), clock=clock)
    assert len(found.samples) == step.calls
    return found
