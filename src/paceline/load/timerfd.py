"""Timers of Linux that an event loop can wait for like a file; Python has functions for them from 3.13 on only."""

from __future__ import annotations

import ctypes
import os
import struct
import time

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
