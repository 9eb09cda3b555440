"""Whether a device was measured at the pace that it keeps up, or before its power limit and heat slowed it down.

A device that has rested runs above the pace that it can sustain: a GPU until its power limit holds its clocks down, a
processor as long as its turbo lasts. Both paces are real. Which one was measured follows from how long the device was
under load, and from its own counters where it has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from paceline.core.errors import Unsupported
from paceline.core.quantity import show_duration
from paceline.core.subject import Pace
from paceline.devices import Device
from paceline.devices.base import DeviceKind, Step
from paceline.devices.timeline import HostTimeline, Phases, Timeline, TimelineEvent
from paceline.machine.conditions import Conditions, power_limited_share

BURST_SECONDS = 5e-3  # of load that is timed
LEAD_IN_SECONDS = 2e-3  # of load before it, which wakes up clocks that fell during the rest
LONGEST_BURST = 0.05  # a call that takes longer is no burst
REST_SECONDS = 0.1  # before each burst, at least
REST_SHARE = 10.0  # how many times as long as the load before it a rest lasts, at least
EARLY_SHARE = 0.1  # the part of the measured time that may lie before a device has settled
LIMITED_SHARE = 0.5  # of the time at its power limit: a device no longer runs above it


def lasting_pace(kind: DeviceKind, load_before: float, measured: float, before: Conditions, after: Conditions) -> Pace:
    """The pace of samples that follow one another without a rest; two looks at the machine enclose them."""
    limited = power_limited_share(before, after)
    is_settled = kind.boost_seconds - load_before <= EARLY_SHARE * measured
    is_limited = limited is not None and limited >= LIMITED_SHARE
    return Pace(
        kind="sustained" if is_settled or is_limited else "short",
        load_before=load_before,
        measured=measured,
        boost=kind.boost_seconds,
        power_limited=limited,
    )


@dataclass(frozen=True)
class Burst:
    """What a burst is made of: blocks of work that lead in, blocks that are timed, and the rest before them."""

    leading: int
    timed: int
    seconds: float  # of one block
    rest: float

    @classmethod
    def of(cls, seconds: float, kind: DeviceKind) -> Self:
        """As many blocks of so many seconds as fill it."""
        if seconds > LONGEST_BURST:
            takes = f"one call takes {show_duration(seconds)} on this {kind.noun}"
            raise Unsupported(f"{takes}, but a burst at most {show_duration(LONGEST_BURST)}: choose a smaller size")
        leading, timed = (max(1, round(length / seconds)) for length in (LEAD_IN_SECONDS, BURST_SECONDS))
        return cls(leading, timed, seconds, max(REST_SECONDS, REST_SHARE * (leading + timed) * seconds))

    @property
    def load(self) -> float:
        """Seconds of work."""
        return (self.leading + self.timed) * self.seconds

    @property
    def timed_share(self) -> float:
        """The part of the time that is timed."""
        return self.timed * self.seconds / (self.load + self.rest)

    def pace(self, kind: DeviceKind, before: Conditions, after: Conditions) -> Pace:
        """The pace of bursts; two looks at the machine enclose them."""
        limited = power_limited_share(before, after)
        if limited is not None:  # of the time under load
            limited = min(1.0, limited * (self.load + self.rest) / self.load)
        return Pace(
            kind="burst",
            load_before=self.leading * self.seconds,
            measured=self.timed * self.seconds,
            boost=kind.boost_seconds,
            rest=self.rest,
            power_limited=limited,
        )


class BurstTimeline(Timeline):
    """Times steps that each begin after a rest: by device events, or on the host's clock where there are none."""

    def __init__(self, device: Device, lead_in: Step, rest: float) -> None:
        self._device = device
        self._lead_in = lead_in
        self._rest = rest
        self._clock = HostTimeline(device.clock, device.synchronize)
        self._begun: TimelineEvent | None = None
        self.phases: list[Phases] = []
        by = "device events" if device.kind.is_accelerator else "host monotonic clock"
        self.description = f"{by}, each sample a burst after a rest of {rest:.3g} s and an untimed lead-in"

    def mark(self, phase: str) -> None:
        """A burst has no phases."""

    def begin(self) -> None:
        self._device.rest(self._rest)
        self._lead_in()
        if self._device.kind.is_accelerator:
            self._begun = self._device.event()
            self._begun.record()
        else:
            self._clock.begin()

    def end(self) -> list[float]:
        if self._begun is None:
            return self._clock.end()
        ended = self._device.event()
        ended.record()
        ended.synchronize()
        return [self._begun.elapsed_time(ended) * 1e-3]
