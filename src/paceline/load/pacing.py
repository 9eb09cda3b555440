"""Calls a function at instants that were fixed beforehand: never before, and however late the one before it was."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Sequence

from paceline.load.trace import clock

_CLOCK_MONOTONIC = 1
_NONBLOCK_AND_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1
_TIMER = struct.Struct("@llll")  # no interval, then seconds and nanoseconds
_LIBC = ctypes.CDLL(None, use_errno=True)
_SPIN = 1_500_000  # ns; event loops round their timers to a millisecond
_SHORTEST = 0.001  # s; for less some event loops do not wait at all


async def pace(due: Sequence[int], act: Callable[[int], None]) -> None:
    """Call `act(0)`, `act(1)`, ... when the clock has passed each instant (ns, in order); all that are due at once."""
    if not due:
        return
    timer = _open_timer()
    if timer is None:
        await _pace_by_spinning(due, act)
        return
    try:
        await _pace_by_timer(due, act, timer)
    finally:
        os.close(timer)


def call_after(seconds: float, call: Callable[..., object], *arguments: object) -> None:
    """Call once so much time has passed, never before: event loops may be early by the millisecond they count in."""
    instant = clock() + int(seconds * 1e9)
    asyncio.get_running_loop().call_later(seconds, _call_at, instant, call, *arguments)


def _call_at(instant: int, call: Callable[..., object], *arguments: object) -> None:
    left = instant - clock()
    if left > 0:
        asyncio.get_running_loop().call_later(max(left / 1e9, _SHORTEST), _call_at, instant, call, *arguments)
    else:
        call(*arguments)


async def _pace_by_timer(due: Sequence[int], act: Callable[[int], None], timer: int) -> None:
    """The kernel wakes the event loop through a descriptor, some ten microseconds after the instant."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    position, number = 0, len(due)

    def on_time() -> None:
        nonlocal position
        try:
            os.read(timer, 8)
            now = clock()
            while position < number and due[position] <= now:
                act(position)
                position += 1
            if position < number:
                _set_timer(timer, due[position])
            else:
                ended.set_result(None)
        except BlockingIOError:
            return
        except Exception as error:
            if not ended.done():
                ended.set_exception(error)

    loop.add_reader(timer, on_time)
    try:
        _set_timer(timer, due[0])
        await ended
    finally:
        loop.remove_reader(timer)


async def _pace_by_spinning(due: Sequence[int], act: Callable[[int], None]) -> None:
    """Where there are no such timers: sleep until shortly before, then look at the clock until it is time."""
    for position, instant in enumerate(due):
        left = instant - clock()
        if left > _SPIN:
            await asyncio.sleep((left - _SPIN) / 1e9)
        elif position % 16 == 0:
            await asyncio.sleep(0)  # answers must be read even if everything is due already
        while clock() < instant:
            await asyncio.sleep(0)
        act(position)


def _open_timer() -> int | None:
    """A timer of Linux that can be waited for like a file; Python has functions for it from 3.13 on only."""
    try:
        timer = int(_LIBC.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_AND_CLOEXEC))
    except (AttributeError, OSError):
        return None
    return timer if timer >= 0 else None


def _set_timer(timer: int, instant: int) -> None:
    seconds, nanoseconds = divmod(max(1, instant), 1_000_000_000)
    if _LIBC.timerfd_settime(timer, _ABSOLUTE, _TIMER.pack(0, 0, seconds, nanoseconds), None):
        number = ctypes.get_errno()
        raise OSError(number, f"timerfd_settime: {os.strerror(number)}")
