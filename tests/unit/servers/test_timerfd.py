"""The timer rings once, not too early, and at the earliest of what was asked."""

from __future__ import annotations

import asyncio
import time

from paceline.servers._embedded.service import Alarm


def test_it_rings_at_the_earliest_time_and_can_be_set_again() -> None:
    rung: list[int] = []

    async def story() -> list[int]:
        loop = asyncio.get_running_loop()
        due = []
        bell = Alarm(loop, lambda: rung.append(time.monotonic_ns()))
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
