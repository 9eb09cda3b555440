"""Timelines turn the steps of a loop into durations, one way for each kind of device.

A step on the CPU, or one that is waited for, is timed by the host's monotonic clock from its begin to its end,
so that what the harness does between two steps is in no sample. Steps on a GPU that follow one another without
a stop are timed by device events, each from the completion of the step before: a few steps stay in flight, the
device never idles because of the measurement, and the samples add up to the time that passed.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

Clock = Callable[[], float]

# A device that ends a step this soon after the host had issued it (or in this part of the step) had nothing queued.
STARVED_SECONDS = 1e-4
STARVED_SHARE = 0.03
# The same of a step that is waited for, where learning that the device is through takes this long by itself.
STARVED_WAIT = 3e-5


def monotonic() -> float:
    """The host's monotonic clock, in seconds."""
    return time.perf_counter_ns() * 1e-9


# Seconds by name. Each phase begins where the one before it ended, and the last ends with the step: they add up to it.
Phases = dict[str, float]


class Timeline(ABC):
    """Begin, step, end; and so on."""

    lead_in = 0  # steps to issue, untimed, before the first begin
    starved = 0  # steps for which the device waited for the host
    description: str  # for the record: how the time was taken
    phases: list[Phases]  # of each step that has ended, in the order of the samples; empty ones if nothing was marked

    @abstractmethod
    def mark(self, phase: str) -> None:
        """Within a step: the phase of this name has just been issued."""

    @abstractmethod
    def begin(self) -> None:
        """The next step is about to be issued."""

    @abstractmethod
    def end(self) -> list[float]:
        """A step was issued; the durations of steps that are now known to have ended."""

    def finish(self) -> list[float]:
        """Wait for the rest."""
        return []


class HostTimeline(Timeline):
    """Times each step on the host's clock, after waiting for the device if there is one.

    A device that is through as soon as the host has issued the last of a step had been waiting for more to do.
    """

    def __init__(self, clock: Clock = monotonic, synchronize: Callable[[], None] | None = None) -> None:
        self._clock = clock
        self._synchronize = synchronize
        self._begun = 0.0
        self.phases: list[Phases] = []
        self._marks: list[tuple[str, float]] = []
        waited = "each step waited for, device synchronised before the clock is read" if synchronize else "each step"
        self.description = f"host monotonic clock, {waited}"

    def mark(self, phase: str) -> None:
        if self._synchronize is not None:  # a step that is waited for may wait at its phases too
            self._synchronize()
        self._marks.append((phase, self._clock()))

    def begin(self) -> None:
        self._marks.clear()
        self._begun = self._clock()

    def end(self) -> list[float]:
        issued = ended = self._clock()
        if self._synchronize is not None:
            self._synchronize()
            ended = self._clock()
            self.starved += ended - issued < max(STARVED_WAIT, STARVED_SHARE * (ended - self._begun))
        self.phases.append(_between(self._begun, self._marks, ended))
        return [ended - self._begun]


class ReportedTimeline(Timeline):
    """For steps that time themselves, in native code or in a program of their own: takes what they report."""

    def __init__(self, description: str) -> None:
        self.description = description
        self.phases: list[Phases] = []
        self._samples: list[float] = []

    def mark(self, phase: str) -> None:
        """Whoever times itself has reported all there is."""

    def tell(self, samples: Iterable[float]) -> None:
        """To be called by the step: the durations that it saw, in seconds."""
        self._samples += samples

    def begin(self) -> None:
        self._samples.clear()

    def end(self) -> list[float]:
        samples, self._samples = self._samples, []
        return samples


class TimelineEvent(Protocol):
    """A mark on a device's stream."""

    def record(self) -> None:
        """Put the mark behind the work issued so far."""

    def synchronize(self) -> None:
        """Wait until the device has passed the mark."""

    def elapsed_time(self, end: TimelineEvent, /) -> float:
        """Milliseconds from this mark to that."""


class EventTimeline(Timeline):
    """Times steps by device events while a few of them are in flight.

    It also counts for how many steps the device had to wait for the host. That a step has ended when the host has
    issued the next ones does not show it: a driver takes only so many launches ahead (about a thousand) and makes the
    host wait inside a launch. What shows it is how far the device lags: how long after the host had issued all of
    a step the device ended it. A device that is kept busy lags by what is queued; one that waits, by next to nothing.
    For that the device's clock is tied to the host's before the first step and after the last: the two run apart by
    some millionths, which in seconds is as much as a short step's lag.
    """

    def __init__(self, new_event: Callable[[], TimelineEvent], in_flight: int, clock: Clock = monotonic) -> None:
        self.lead_in = in_flight
        self.description = f"device events, from completion to completion, {in_flight} steps in flight"
        self._new_event = new_event
        self._in_flight = in_flight
        self._clock = clock
        self.phases: list[Phases] = []
        self._marks: list[tuple[str, TimelineEvent]] = []
        self._pending: deque[_InFlight] = deque()
        self._spare: list[TimelineEvent] = []
        self._previous: TimelineEvent | None = None
        self._anchor = new_event()
        self._anchor.record()
        self._anchor.synchronize()
        self._device_zero = clock()  # the host's time at the anchor
        self._device_now = 0.0  # time on the device, since the anchor, of the last step known to have ended
        self._ended: list[_Ended] = []

    def mark(self, phase: str) -> None:
        self._marks.append((phase, self._recorded()))

    def begin(self) -> None:
        for _, event in self._marks:  # of lead-in steps, which are in no sample
            self._spare.append(event)
        self._marks = []
        if self._previous is None:
            self._previous = self._recorded()

    def end(self) -> list[float]:
        marks, self._marks = self._marks, []
        self._pending.append(_InFlight(self._recorded(), marks, self._clock()))
        return [self._settle()] if len(self._pending) > self._in_flight else []

    def finish(self) -> list[float]:
        samples = [self._settle() for _ in range(len(self._pending))]
        if samples:
            self.starved = self._count_starved()
        return samples

    def _settle(self) -> float:
        if self._previous is None:
            raise RuntimeError("end() without begin()")
        step = self._pending.popleft()
        event, issued = step.end, step.issued
        event.synchronize()
        if self._device_now == 0.0:
            self._device_now = self._anchor.elapsed_time(self._previous) * 1e-3
        seconds = self._previous.elapsed_time(event) * 1e-3
        self._device_now += seconds
        self._ended.append(_Ended(self._device_now, issued, seconds))
        begun = self._previous
        marks = [(name, begun.elapsed_time(mark) * 1e-3) for name, mark in step.marks]
        self.phases.append(_between(0.0, marks, seconds))
        self._spare += [begun, *(mark for _, mark in step.marks)]
        self._previous = event
        return seconds

    def _count_starved(self) -> int:
        assert self._previous is not None
        tie = self._recorded()
        tie.synchronize()
        passed_on_host = self._clock() - self._device_zero
        passed_on_device = self._device_now + self._previous.elapsed_time(tie) * 1e-3
        self._spare.append(tie)
        rate = passed_on_host / passed_on_device if passed_on_device > 0 else 1.0
        lags = ((self._device_zero + rate * step.at - step.issued, step.seconds) for step in self._ended)
        return sum(lag < max(STARVED_SECONDS, STARVED_SHARE * seconds) for lag, seconds in lags)

    def _recorded(self) -> TimelineEvent:
        event = self._spare.pop() if self._spare else self._new_event()
        event.record()
        return event


@dataclass(frozen=True)
class _InFlight:
    """A step that was issued."""

    end: TimelineEvent
    marks: list[tuple[str, TimelineEvent]]
    issued: float  # when the host had issued all of it


@dataclass(frozen=True)
class _Ended:
    """A step that has ended."""

    at: float  # on the device's clock, since the anchor
    issued: float  # on the host's clock
    seconds: float


def _between(begun: float, marks: list[tuple[str, float]], ended: float) -> Phases:
    """How long each phase took, from the instants that mark their ends; one that comes twice is summed.

    What a step does after its last mark, such as freeing what it kept, is of its last phase.
    """
    phases: Phases = {}
    for number, (name, marked) in enumerate(marks, start=1):
        until = marked if number < len(marks) else ended
        phases[name] = phases.get(name, 0.0) + until - begun
        begun = until
    return phases
