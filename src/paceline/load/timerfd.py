"""Timers of Linux that an event loop can wait for like a file; Python has functions for them from 3.13 on only."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress

_LIBC = ctypes.CDLL(None, use_errno=True)
_TFD_TIMER_ABSTIME = 1
_ITIMERSPEC = struct.Struct("@llll")  # no interval, then seconds and nanoseconds


def open_timer() -> int:
    """A descriptor that can be read once the timer has expired."""
    timer = int(_LIBC.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    if timer < 0:
        raise _error("timerfd_create")
    return timer


def set_timer(timer: int, instant: int) -> None:
    """Let it expire at this time of `time.monotonic_ns()`."""
    seconds, nanoseconds = divmod(max(1, instant), 1_000_000_000)
    if _LIBC.timerfd_settime(timer, _TFD_TIMER_ABSTIME, _ITIMERSPEC.pack(0, 0, seconds, nanoseconds), None):
        raise _error("timerfd_settime")


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


class Alarm:
    """Calls back once at or after a time of `time.monotonic_ns()`."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._due: int | None = None
        self._timer = open_timer()
        self._loop.add_reader(self._timer, self._ring)

    def set(self, due: int | None) -> None:
        """When to call, instead of what was set before; None for not at all."""
        # An alarm that rings too early costs one check; setting it anew for every request costs more.
        if due is None or (self._due is not None and self._due <= due):
            return
        self._due = due
        set_timer(self._timer, due)

    def close(self) -> None:
        self._due = 0  # it is set no more
        self._loop.remove_reader(self._timer)
        os.close(self._timer)

    def _ring(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._timer, 8)
        self._due = None
        self._call()
