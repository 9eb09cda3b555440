"""What each timeline puts into a sample, and what it leaves out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.devices.timeline import EventTimeline, HostTimeline, monotonic
from support.scripted import ScriptedClock, ScriptedDevice, ScriptedEvent


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()


@pytest.fixture
def device(clock: ScriptedClock) -> ScriptedDevice:
    return ScriptedDevice(clock)


def take(timeline: HostTimeline | EventTimeline, step: Callable[[], None]) -> list[float]:
    timeline.begin()
    step()
    return timeline.end()


def test_a_step_on_the_host_lasts_from_begin_to_end(clock: ScriptedClock) -> None:
    timeline = HostTimeline(clock)
    samples = [take(timeline, lambda seconds=seconds: clock.advance(seconds)) for seconds in (0.25, 0.5, 0.125)]
    assert samples == [[0.25], [0.5], [0.125]]
    assert timeline.finish() == []


def test_the_device_is_waited_for_before_the_clock_is_read(clock: ScriptedClock, device: ScriptedDevice) -> None:
    timeline = device.host_timeline()
    # Issuing costs the host nothing here, so a clock read before the synchronisation would say 0.
    assert take(timeline, lambda: device.issue(0.75)) == [0.75]


def test_the_order_is_work_then_synchronisation_then_clock() -> None:
    order: list[str] = []

    def clock() -> float:
        order.append("clock")
        return 0.0

    timeline = HostTimeline(clock, lambda: order.append("synchronize"))
    take(timeline, lambda: order.append("step"))
    assert order == ["clock", "step", "clock", "synchronize", "clock"]


@pytest.mark.parametrize(("issuing", "working", "starved"), [(0.01, 0.001, 6), (0.001, 0.01, 0), (1e-5, 1e-4, 0)])
def test_a_step_that_is_waited_for_tells_who_was_waited_for(
    device: ScriptedDevice, issuing: float, working: float, starved: int
) -> None:
    def step() -> None:  # in ten parts, each issued, then worked off
        for _ in range(10):
            device.clock.advance(issuing / 10)
            device.issue(working / 10)

    timeline = device.host_timeline()
    for _ in range(6):
        take(timeline, step)
    assert timeline.starved == starved


def test_what_happens_between_end_and_begin_is_in_no_sample(clock: ScriptedClock, device: ScriptedDevice) -> None:
    timeline = device.host_timeline()
    samples = []
    for _ in range(3):
        samples += take(timeline, lambda: device.issue(0.5))
        clock.advance(10.0)
    assert samples == [0.5, 0.5, 0.5]


def test_the_record_can_say_whether_each_step_was_waited_for() -> None:
    assert "synchronised before the clock is read" in HostTimeline(synchronize=lambda: None).description
    assert "synchronised" not in HostTimeline().description
    assert "3 steps in flight" in ScriptedDevice(ScriptedClock()).event_timeline(3).description


def test_the_host_clock_never_goes_back() -> None:
    readings = [monotonic() for _ in range(1000)]
    assert readings == sorted(readings)


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_event_samples_are_the_steps_in_order_and_add_up(in_flight: int, device: ScriptedDevice) -> None:
    durations = [0.5, 0.25, 1.0, 0.125, 0.125, 2.0, 0.75]
    timeline = device.event_timeline(in_flight)
    samples: list[float] = []
    for seconds in durations:
        samples += take(timeline, lambda seconds=seconds: device.issue(seconds))
    samples += timeline.finish()
    assert samples == pytest.approx(durations)
    assert sum(samples) == pytest.approx(device.busy_until)


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_never_more_than_the_bound_is_in_flight(in_flight: int, device: ScriptedDevice) -> None:
    timeline = device.event_timeline(in_flight)
    known = 0
    for issued in range(1, 21):
        known += len(take(timeline, lambda: device.issue(1.0)))
        assert issued - known == min(issued, in_flight)
        # The host has waited for exactly the steps that are no longer in flight.
        assert device.clock.now == pytest.approx(max(0, issued - in_flight))
    assert len(timeline.finish()) == in_flight
    assert timeline.finish() == []


def test_a_host_that_is_late_makes_the_step_longer_because_the_device_idled(device: ScriptedDevice) -> None:
    timeline = device.event_timeline(1)
    take(timeline, lambda: device.issue(1.0))
    device.clock.advance(3.0)
    take(timeline, lambda: device.issue(1.0))
    assert sum(timeline.finish()) == pytest.approx(3.0)  # 2 s of nothing, 1 s of work


def test_work_issued_before_the_first_begin_is_in_no_sample(device: ScriptedDevice) -> None:
    timeline = device.event_timeline(2)
    assert timeline.lead_in == 2
    for _ in range(timeline.lead_in):
        device.issue(100.0)
    samples = take(timeline, lambda: device.issue(0.5)) + timeline.finish()
    assert samples == pytest.approx([0.5])


def test_events_are_reused_rather_than_made_for_every_step(device: ScriptedDevice) -> None:
    timeline = device.event_timeline(2)
    for _ in range(100):
        take(timeline, lambda: device.issue(0.25))
    timeline.finish()
    assert len(device.events) <= 5


def test_an_end_without_a_begin_is_refused(device: ScriptedDevice) -> None:
    timeline = device.event_timeline(0)
    with pytest.raises(RuntimeError, match="without begin"):
        timeline.end()


def drive(device: ScriptedDevice, timeline: EventTimeline, issuing: float, working: float, steps: int = 6) -> None:
    for _ in range(timeline.lead_in):
        device.issue(working)
    for _ in range(steps):
        timeline.begin()
        device.clock.advance(issuing)
        device.issue(working)
        timeline.end()
    timeline.finish()


def test_a_device_that_waits_for_the_host_is_starved(device: ScriptedDevice) -> None:
    timeline = device.event_timeline(2)
    drive(device, timeline, issuing=1.0, working=0.01)
    assert timeline.starved == 6


def test_a_device_that_is_kept_busy_starves_never(device: ScriptedDevice) -> None:
    timeline = device.event_timeline(2)
    drive(device, timeline, issuing=0.1, working=1.0)
    assert timeline.starved == 0


def test_a_full_launch_queue_is_no_starvation(device: ScriptedDevice) -> None:
    """The host waits inside a launch until the device has come near: every step before has ended, and it is busy."""
    timeline = device.event_timeline(2)
    for _ in range(6):
        timeline.begin()
        device.issue(1.0)
        device.clock.advance(max(0.0, device.busy_until - device.clock.now - 0.5))  # half a step fits into the queue
        timeline.end()
    timeline.finish()
    assert timeline.starved == 0


class DriftingEvent(ScriptedEvent):
    """Of a device whose clock is faster than the host's by this part."""

    drift = 0.0

    def elapsed_time(self, end: ScriptedEvent, /) -> float:
        return super().elapsed_time(end) * (1.0 + self.drift)


@pytest.mark.parametrize("drift", [1e-4, -1e-4])
@pytest.mark.parametrize(("working", "starved"), [(5e-5, 4000), (2e-3, 0)])
def test_clocks_that_run_apart_neither_hide_starvation_nor_invent_it(
    device: ScriptedDevice, monkeypatch: pytest.MonkeyPatch, drift: float, working: float, starved: int
) -> None:
    monkeypatch.setattr(DriftingEvent, "drift", drift)
    timeline = EventTimeline(lambda: DriftingEvent(device), 2, device.clock)
    drive(device, timeline, issuing=1e-3, working=working, steps=4000)
    assert timeline.starved == starved


def test_phases_of_a_step_add_up_to_it_on_the_host(clock: ScriptedClock) -> None:
    timeline = HostTimeline(clock)
    timeline.begin()
    clock.advance(0.5)
    timeline.mark("forward")
    clock.advance(0.25)
    timeline.mark("backward")
    clock.advance(0.125)  # what comes after the last mark is of the last phase
    assert timeline.end() == [0.875]
    assert timeline.phases == [{"forward": 0.5, "backward": 0.375}]


@pytest.mark.parametrize("in_flight", [1, 3])
def test_phases_are_timed_by_events_without_waiting(in_flight: int, device: ScriptedDevice) -> None:
    timeline = device.event_timeline(in_flight)
    samples: list[float] = []
    for number in range(1, 6):
        timeline.begin()
        begun = device.clock.now
        device.issue(0.5 * number)
        timeline.mark("forward")
        device.issue(0.25)
        timeline.mark("backward")
        device.issue(0.125)  # after the last mark: of the last phase
        assert device.clock.now == begun  # a mark never makes the host wait
        samples += timeline.end()
    samples += timeline.finish()
    expected = [{"forward": pytest.approx(0.5 * n), "backward": pytest.approx(0.375)} for n in range(1, 6)]
    assert timeline.phases == expected
    assert [sum(phases.values()) for phases in timeline.phases] == pytest.approx(samples)


def test_a_phase_that_comes_twice_in_a_step_is_summed(clock: ScriptedClock) -> None:
    timeline = HostTimeline(clock)
    timeline.begin()
    for name in ("forward", "backward", "forward"):
        clock.advance(0.5)
        timeline.mark(name)
    timeline.end()
    assert timeline.phases == [{"forward": 1.0, "backward": 0.5}]


def test_marks_of_lead_in_steps_are_in_no_phase(device: ScriptedDevice) -> None:
    timeline = device.event_timeline(2)
    for _ in range(timeline.lead_in):
        device.issue(100.0)
        timeline.mark("forward")
    take(timeline, lambda: (device.issue(0.5), timeline.mark("forward"))[1])
    timeline.finish()
    assert timeline.phases == [{"forward": pytest.approx(0.5)}]
