"""Calls come in order, none before its instant, and a late one delays no other."""

from __future__ import annotations

import asyncio
import importlib
import time

import pytest

from paceline.load import worker
from paceline.load.trace import clock


def paced(offsets: list[int], stall_after: int = -1, stall: float = 0.0) -> tuple[list[int], list[int]]:
    """Positions in the order of their calls, and how late (ns) each was."""
    start = clock() + 5_000_000
    due = [start + offset for offset in offsets]
    called: list[int] = []
    late: list[int] = []

    def act(position: int) -> None:
        late.append(clock() - due[position])
        called.append(position)
        if position == stall_after:
            time.sleep(stall)

    asyncio.run(worker.pace(due, act))
    return called, late


def test_every_call_is_made_once_in_order_and_never_early() -> None:
    called, late = paced([0, 0, 300_000, 301_000, 5_000_000, 20_000_000])
    assert called == list(range(6))
    assert min(late) >= 0


def test_after_a_stall_all_that_is_due_goes_at_once_and_the_rest_in_time() -> None:
    stall = 0.1
    called, late = paced([0, 20_000_000, 40_000_000, 60_000_000, 250_000_000], stall_after=0, stall=stall)
    assert called == list(range(5))
    # Those that fell into the stall are as late as the rest of it; the schedule itself has not moved.
    for position in (1, 2, 3):
        assert late[position] >= stall * 1e9 - position * 20_000_000 - 1
    assert late[4] < late[1]


def test_an_error_in_a_call_ends_the_pacing() -> None:
    def act(_position: int) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        asyncio.run(worker.pace([clock()], act))


def test_nothing_to_do_takes_no_time() -> None:
    asyncio.run(worker.pace([], lambda _position: None))


@pytest.mark.parametrize("package", ["asyncio", "uvloop"])
def test_a_call_after_a_while_is_never_early(package: str) -> None:
    """Delays between whole milliseconds, asked for when the loop's own clock is behind: there a loop is early."""
    pytest.importorskip(package, reason="needs it: pip install '.[serving]'")
    early: list[int] = []

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        ended = [loop.create_future() for _ in range(40)]
        for number, one in enumerate(ended):
            time.sleep(0.0003)
            delay = 0.0001 + number * 0.00037
            due = clock() + int(delay * 1e9)

            def come(one: asyncio.Future[None] = one, due: int = due) -> None:
                early.append(due - clock())
                one.set_result(None)

            worker.call_after(delay, come)
        await asyncio.gather(*ended)

    loop: asyncio.AbstractEventLoop = importlib.import_module(package).new_event_loop()
    try:
        loop.run_until_complete(ask())
    finally:
        loop.close()
    assert len(early) == 40
    assert max(early) <= 0
