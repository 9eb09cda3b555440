"""Timers of the kernel: when they expire, and what is said where there is none; alarms ring once, not too early."""

from __future__ import annotations

import asyncio
import os
import select
import struct
import time
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.load import timerfd
from paceline.load.trace import clock


def is_expired(timer: int) -> bool:
    return bool(select.select([timer], [], [], 0)[0])


@pytest.fixture
def timer() -> Any:
    opened = timerfd.open_timer()
    yield opened
    os.close(opened)


@pytest.mark.parametrize("instant", [0, 1, -5])
def test_a_time_that_has_passed_expires_at_once(timer: int, instant: int) -> None:
    timerfd.set_timer(timer, instant)
    assert is_expired(timer)
    os.read(timer, 8)
    assert not is_expired(timer)


def test_a_time_that_is_to_come_does_not(timer: int) -> None:
    timerfd.set_timer(timer, clock() + 3600 * 10**9)
    assert not is_expired(timer)


@pytest.mark.parametrize(
    ("instant", "expected"), [(0, (0, 1)), (5 * 10**9 + 7, (5, 7)), (999_999_999, (0, 999_999_999))]
)
def test_the_kernel_is_told_seconds_and_nanoseconds_and_no_repetition(
    monkeypatch: pytest.MonkeyPatch, instant: int, expected: tuple[int, int]
) -> None:
    asked: list[Any] = []
    libc = SimpleNamespace(timerfd_settime=lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(timerfd, "_LIBC", libc)
    timerfd.set_timer(3, instant)
    ((timer, flags, content, old),) = asked
    assert (timer, flags, struct.unpack("@llll", content), old) == (3, 1, (0, 0, *expected), None)


@pytest.mark.parametrize("created", [0, 7])
def test_a_timer_is_a_descriptor(monkeypatch: pytest.MonkeyPatch, created: int) -> None:
    monkeypatch.setattr(timerfd, "_LIBC", SimpleNamespace(timerfd_create=lambda *_: created))
    assert timerfd.open_timer() == created


def test_a_timer_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timerfd, "_LIBC", SimpleNamespace(timerfd_create=lambda *_: -1))
    with pytest.raises(OSError, match="timerfd_create"):
        timerfd.open_timer()


def test_what_is_no_timer_is_an_error() -> None:
    with pytest.raises(OSError, match="timerfd_settime"):
        timerfd.set_timer(-1, 5)


def test_an_alarm_rings_at_the_earliest_time_and_can_be_set_again() -> None:
    rung: list[int] = []

    async def story() -> list[int]:
        due = []
        bell = timerfd.Alarm(lambda: rung.append(time.monotonic_ns()))
        for count in (1, 2):
            due.append(time.monotonic_ns() + 3_000_000)
            bell.set(due[-1] + 10**12)
            bell.set(due[-1])
            bell.set(due[-1] + 5_000_000)
            bell.set(None)
            deadline = time.monotonic() + 20
            while len(rung) < count and time.monotonic() < deadline:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        bell.close()
        return due

    due = asyncio.run(story())
    assert len(rung) == 2
    assert all(at >= wanted - 1_000_000 for at, wanted in zip(rung, due, strict=True))
