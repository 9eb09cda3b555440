"""Runs a computation and a collective at the same time, or one of them alone, and tells when each had ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.devices import Device
from paceline.devices.timeline import monotonic


@dataclass(frozen=True)
class Seen:
    """Seconds from the common begin to the end of each; zero for what did not run."""

    computed: float
    arrived: float

    @property
    def whole(self) -> float:
        """Until both had ended."""
        return max(self.computed, self.arrived)


class Runner(Protocol):
    """Runs a computation, a collective, or both; returns when they have ended."""

    how: str  # for the record: how the time is taken

    def __call__(self, compute: Callable[[], object] | None, start: Callable[[], Any] | None) -> Seen:
        """`compute` issues the computation; `start` begins the collective and returns its handle."""


def runner_on(device: Device) -> Runner:
    """How it is done on this device."""
    return DeviceRunner(device) if device.kind.is_accelerator else HostRunner()


class HostRunner:
    """The collective runs in the backend's threads while this thread computes."""

    how = "host monotonic clock; the collective's end is noted by the thread that carried it out"

    def __call__(self, compute: Callable[[], object] | None, start: Callable[[], Any] | None) -> Seen:
        begun = monotonic()
        ended = start().get_future().then(lambda _: monotonic()) if start else None
        if compute:
            compute()
        computed = monotonic() - begun if compute else 0.0
        return Seen(computed, ended.wait() - begun if ended else 0.0)


class DeviceRunner:
    """The collective runs on the backend's stream while the computation runs on the current one.

    Issuing takes microseconds and returns long before the work is done: the events are read after the device was
    synchronised, never a clock before it.
    """

    how = "device events on the stream of each, read after the device was synchronised"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._beside = device.stream()
        self._begun, self._computed, self._arrived = device.event(), device.event(), device.event()

    def __call__(self, compute: Callable[[], object] | None, start: Callable[[], Any] | None) -> Seen:
        self._device.synchronize()
        self._begun.record()
        if start:
            handle = start()
            with self._device.on_stream(self._beside):
                handle.wait()  # makes this stream wait, neither the host nor the computation
                self._arrived.record()
        if compute:
            compute()
            self._computed.record()
        self._device.synchronize()
        return Seen(
            self._begun.elapsed_time(self._computed) * 1e-3 if compute else 0.0,
            self._begun.elapsed_time(self._arrived) * 1e-3 if start else 0.0,
        )
