"""How well this machine keeps time: resolution of the timer, jitter of fixed work, and the system clock's error."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from paceline.core.probe import ROOT, read_text

_UNSYNCHRONISED = 0x0040  # STA_UNSYNC
_NANOSECONDS = 0x2000  # STA_NANO


class ClockState(BaseModel):
    """What the kernel knows of the system clock's error, in seconds."""

    model_config = ConfigDict(frozen=True)

    synchronised: bool
    offset: float
    largest_error: float


def timer_resolution(readings: int = 2000) -> float:
    """The smallest step that the timer was seen to make, in seconds."""
    smallest = None
    last = time.perf_counter_ns()
    for _ in range(readings):
        now = time.perf_counter_ns()
        if now > last:
            smallest = now - last if smallest is None else min(smallest, now - last)
        last = now
    # No step at all in so many readings: the timer is coarser than their whole span.
    return (smallest if smallest is not None else 1_000_000) / 1e9


def clock_source(root: Path = ROOT) -> str | None:
    """What the kernel reads the time from."""
    return read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")


def jitter(seconds: float = 0.3) -> float:
    """Coefficient of variation of the same work done over and over."""
    times: list[float] = []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        _fixed_work()
        deadline = time.perf_counter() + seconds
        while (started := time.perf_counter()) < deadline or len(times) < 2:
            _fixed_work()
            times.append(time.perf_counter() - started)
    finally:
        if was_enabled:
            gc.enable()
    return statistics.stdev(times) / statistics.fmean(times)


def _fixed_work() -> int:
    total = 0
    for number in range(10_000):
        total += number * number
    return total


class _Timex(ctypes.Structure):
    """The head of the kernel's struct timex, and room for the rest of it."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    ]


def clock_state() -> ClockState | None:
    """Asks the kernel and changes nothing; None where it does not answer."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    seen = _Timex(modes=0)
    if adjtimex(ctypes.byref(seen)) < 0:
        return None
    scale = 1e9 if seen.status & _NANOSECONDS else 1e6
    return ClockState(
        synchronised=not seen.status & _UNSYNCHRONISED, offset=seen.offset / scale, largest_error=seen.maxerror / 1e6
    )
