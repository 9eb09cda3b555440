"""A timer of an event loop that is exact to some ten microseconds; the loop's own count in milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from collections.abc import Callable

_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class Alarm:
    """Calls back once at or after a time of `time.monotonic_ns()`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._due: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._libc, self._descriptor = _timer()
        if self._descriptor >= 0:
            loop.add_reader(self._descriptor, self._ring)

    def set(self, due: int | None) -> None:
        """When to call, instead of what was set before; None for not at all."""
        # An alarm that rings too early costs one look; setting it anew for every request costs more.
        if due is None or (self._due is not None and self._due <= due):
            return
        self._due = due
        if self._descriptor >= 0:
            seconds, nanoseconds = divmod(max(due, 1), 1_000_000_000)
            spec = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, nanoseconds))
            self._libc.timerfd_settime(self._descriptor, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)
        else:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_later(max(0, due - time.monotonic_ns()) / 1e9, self._ring)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        if self._handle is not None:
            self._handle.cancel()

    def _ring(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(BlockingIOError):
                os.read(self._descriptor, 8)
        self._due = None
        self._call()


def _timer() -> tuple[ctypes.CDLL, int]:
    """The kernel's timer; -1 where there is none (not Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        return libc, int(libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    except AttributeError:
        return libc, -1
