"""A clock, a device and its events that do exactly what a test says, so that every number has a known answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat

from paceline.devices.cpu import CpuDevice
from paceline.devices.timeline import EventTimeline, HostTimeline


class ScriptedClock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class ScriptedDevice(CpuDevice):
    """Works off one queue, asynchronously to the host that shares its clock."""

    def __init__(self, clock: ScriptedClock) -> None:
        super().__init__()
        self.name = "scripted device"
        self.clock = clock  # type: ignore[method-assign,assignment]
        self.busy_until = 0.0
        self.events: list[ScriptedEvent] = []

    def issue(self, seconds: float) -> None:
        """Queue work; the host does not wait."""
        self.busy_until = max(self.busy_until, self.clock.now) + seconds

    def synchronize(self) -> None:
        self.clock.now = max(self.clock.now, self.busy_until)

    def new_event(self) -> ScriptedEvent:
        event = ScriptedEvent(self)
        self.events.append(event)
        return event

    def host_timeline(self) -> HostTimeline:
        return HostTimeline(self.clock, self.synchronize)

    def event_timeline(self, in_flight: int) -> EventTimeline:
        return EventTimeline(self.new_event, in_flight, self.clock)


class ScriptedEvent:
    """A mark in the device's queue."""

    def __init__(self, device: ScriptedDevice) -> None:
        self._device = device
        self._at: float | None = None
        self.waited_for = 0

    def record(self) -> None:
        self._at = max(self._device.busy_until, self._device.clock.now)

    def synchronize(self) -> None:
        self.waited_for += 1
        self._device.clock.now = max(self._device.clock.now, self.at)

    def query(self) -> bool:
        return self._device.clock.now >= self.at

    def elapsed_time(self, end: ScriptedEvent, /) -> float:
        if end.at > self._device.clock.now:
            raise RuntimeError("the event has not completed: its time may not be asked for yet")
        return (end.at - self.at) * 1e3

    @property
    def at(self) -> float:
        assert self._at is not None, "never recorded"
        return self._at


class ScriptedStep:
    """Takes the durations of a script one by one, then the last of them for ever."""

    def __init__(self, spend: Callable[[float], None], durations: Iterable[float]) -> None:
        script = list(durations)
        self._spend = spend
        self._durations: Iterator[float] = chain(script, repeat(script[-1]))
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        self._spend(next(self._durations))
