"""What one process of the load generator sends, when its users ask again, and what it writes down about it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.load import worker
from paceline.load.http_client import HttpClient
from paceline.load.kserve_grpc import GrpcClient
from paceline.load.request import Wire
from paceline.load.task import WorkerTask
from paceline.load.trace import (
    BROKEN,
    COLUMNS,
    FAILED,
    LONGEST_CAUSE,
    OK,
    REFUSED,
    SHED,
    TIMED_OUT,
    UNSENT,
    WRONG,
    Log,
)  # fmt: skip
from support.worker_tasks import endpoint_at, task_of, times

START = 1_000_000_000_000  # ns
SECOND = 1_000_000_000
STEP = 100_000  # ns that a turn of the event loop takes


class World:
    """A clock that goes on only while somebody waits, and a server that answers in the same turn of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START - STEP
        self.pauses: list[float] = []  # of users, and of requests on their way up
        self.oversleep = 0.0
        self.status: list[int] = []  # of answers, in their order; OK for all others
        self.size = 0
        self.sent: list[tuple[int, int]] = []  # row, and when
        self.is_closed = False
        self.silent = False
        really_sleep = asyncio.sleep

        async def sleep(seconds: float) -> None:
            self.now += int(seconds * 1e9) or STEP
            await really_sleep(0)

        def call_after(seconds: float, call: Callable[..., object], *arguments: object) -> None:
            self.pauses.append(seconds)
            self.now += int((seconds + self.oversleep) * 1e9)
            asyncio.get_running_loop().call_soon(call, *arguments)

        monkeypatch.setattr(worker, "pace", self._pace)
        monkeypatch.setattr(worker, "clock", lambda: self.now)
        monkeypatch.setattr(worker, "call_after", call_after)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(worker, "HttpClient", lambda log, _task: self._connected(log))

    async def _pace(self, due: Sequence[int], act: Callable[[int], None]) -> None:
        """As the real one, by this clock: answers are read on the way, and also if everything is due already."""
        for position, instant in enumerate(due):
            if instant - self.now > 15 * STEP:
                await asyncio.sleep((instant - self.now - 15 * STEP) / 1e9)
            elif position % 16 == 0:
                await asyncio.sleep(0)
            while self.now < instant:
                await asyncio.sleep(0)
            act(position)

    def _connected(self, log: Log) -> World:
        self.log = log
        return self

    def send(self, row: int) -> None:
        self.log.dispatched[row] = self.log.sent[row] = self.now
        self.sent.append((row, self.now))
        if not self.silent:
            asyncio.get_running_loop().call_soon(self._answer, row)

    def _answer(self, row: int) -> None:
        self.log.status[row] = self.status[row] if row < len(self.status) else OK
        self.log.size[row] = self.size
        self.log.done[row] = self.now
        self.log.finished(row)

    async def close(self) -> None:
        self.is_closed = True

    def complete(self, task: WorkerTask) -> dict[str, Any]:
        async def run() -> dict[str, Any]:
            made = worker._Run(task)
            async with asyncio.timeout(5.0):
                await made.complete(START)
            return vars(made.results(START, 0.5).trace)

        result = asyncio.run(run())
        assert self.is_closed
        return result


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def closed(**more: Any) -> WorkerTask:
    return task_of(loop="closed", **more)


# When requests go.


def test_an_open_loop_sends_each_request_at_its_time_and_counts_from_there(world: World) -> None:
    result = world.complete(task_of(intended=times(0.0, 4.0, 8.0), kinds=np.array([2, 0, 1], np.int32)))
    assert world.sent == [(0, START), (1, START + 4 * SECOND), (2, START + 8 * SECOND)]
    assert result["intended"].tolist() == [0.0, 4.0, 8.0]
    assert result["sent"].tolist() == [0.0, 4.0, 8.0]
    assert result["status"].tolist() == [OK] * 3
    assert result["kind"].tolist() == [2, 0, 1]


def test_requests_leave_in_the_order_in_which_their_way_up_ends(world: World) -> None:
    task = task_of(intended=times(0.0, 4.0, 4.5), up=times(8.0, 0.5, 0.25), kinds=np.zeros(3, np.int32))
    result = world.complete(task)
    assert world.sent == [(1, START + 4_500_000_000), (2, START + 4_750_000_000), (0, START + 8 * SECOND)]
    assert result["intended"].tolist() == [0.0, 4.0, 4.5]
    assert result["sent"].tolist() == [0.0, 4.0, 4.5]  # as the user sent it


def test_a_share_without_requests_is_done_at_once(world: World) -> None:
    result = world.complete(task_of(kinds=np.zeros(0, np.int32)))
    assert world.sent == []
    assert {len(result[name]) for name in (*COLUMNS, "dispatched", "stages")} == {0}
    assert (result["batch"], result["chunks"]) == (None, None)
    assert result["kind"].dtype == np.int32


def test_each_user_sends_once_however_short_the_duration_is(world: World) -> None:
    assert len(world.complete(closed(users=3, duration=0.0))["sent"]) == 3


@pytest.mark.parametrize(("users", "requests", "expected"), [(2, 5, 5), (3, 2, 2), (1, 1, 1)])
def test_users_together_send_as_many_requests_as_are_asked_for(
    world: World, users: int, requests: int, expected: int
) -> None:
    assert len(world.complete(closed(users=users, requests=requests))["sent"]) == expected


def test_of_users_who_think_at_the_same_time_only_as_many_go_on_as_requests_are_left(world: World) -> None:
    assert len(world.complete(closed(users=3, requests=4, think_time=0.5))["sent"]) == 4
    assert world.pauses == [0.5] * 3


def test_nobody_sends_at_the_end_of_the_duration_or_thinks_until_then(world: World) -> None:
    world.complete(closed(duration=1.0, think_time=0.25))
    assert world.sent == [(0, START), (1, START + SECOND // 4), (2, START + SECOND // 2), (3, START + 3 * SECOND // 4)]
    assert world.pauses == [0.25] * 3


def test_a_user_who_is_ready_just_before_the_end_of_the_duration_still_sends(world: World) -> None:
    world.complete(closed(duration=4.000000003, think_time=4.0))
    assert len(world.sent) == 2


def test_a_user_who_wakes_up_after_the_end_sends_nothing_more(world: World) -> None:
    world.oversleep = 2.0
    world.complete(closed(duration=1.0, think_time=0.25))
    assert len(world.sent) == 1


def test_the_intended_time_is_when_a_user_is_ready_or_the_start_of_a_burst(world: World) -> None:
    ready = world.complete(closed(users=1, requests=3, think_time=0.5))
    assert ready["intended"].tolist() == [0.0, 0.5, 1.0]
    world.now = START - STEP
    burst = world.complete(task_of(loop="burst", users=1, requests=3, think_time=0.5))
    assert burst["intended"].tolist() == [0.0, 0.0, 0.0]
    assert burst["sent"].tolist() == [0.0, 0.5, 1.0]


def test_a_users_request_is_held_back_on_its_way_up_and_delays_repeat(world: World) -> None:
    result = world.complete(closed(users=1, requests=4, up=times(0.5, 0.25, 1.0)))
    assert world.pauses == [0.5, 0.25, 1.0, 0.5]
    assert result["intended"].tolist() == [0.0, 0.5, 0.75, 1.75]
    assert result["sent"].tolist() == result["intended"].tolist()


def test_a_user_asks_again_once_the_whole_answer_has_come_down(world: World) -> None:
    world.size = 500
    task = closed(users=1, requests=5, think_time=1.0, down=times(0.25, 0.5, 0.125), down_bandwidth=1000.0)
    result = world.complete(task)
    assert world.pauses == [1.75, 2.0, 1.625, 1.75]
    assert (result["done"] - result["sent"]).tolist() == [0.75, 1.0, 0.625, 0.75, 1.0]


def test_without_a_bandwidth_the_size_of_an_answer_takes_no_time(world: World) -> None:
    world.size = 500
    result = world.complete(closed(users=1, requests=2, down=times(0.25)))
    assert world.pauses == [0.25]
    assert (result["done"] - result["sent"]).tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("status", "think_time", "pauses"),
    [
        (OK, 0.0, []),
        (SHED, 0.0, []),
        (TIMED_OUT, 0.0, []),
        (REFUSED, 0.0, [0.01]),
        (BROKEN, 0.0, [0.01]),
        (BROKEN, 0.5, [0.5]),
    ],
)
def test_a_user_without_a_connection_does_not_try_again_at_once(
    world: World, status: int, think_time: float, pauses: list[float]
) -> None:
    world.status = [status]
    world.complete(closed(users=1, requests=2, think_time=think_time))
    assert world.pauses == pauses


# How it ends.


@pytest.mark.parametrize("times_asked", [1, 2])
def test_when_the_parent_ends_the_load_what_is_under_way_is_broken_and_the_rest_unsent(
    world: World, times_asked: int
) -> None:
    world.silent = True
    send = world.send

    def send_and_end(row: int) -> None:
        send(row)
        for _ in range(times_asked):
            os.kill(os.getpid(), signal.SIGTERM)

    world.send = send_and_end  # type: ignore[method-assign]
    result = world.complete(task_of(intended=times(0.0, 1e6), kinds=np.zeros(2, np.int32)))
    assert result["status"].tolist() == [BROKEN, UNSENT]
    assert np.isnan(result["sent"]).tolist() == [False, True]


def faulty(world: World, raise_it: Callable[[asyncio.AbstractEventLoop], object]) -> dict[str, Any]:
    send = world.send

    def send_with_a_fault(row: int) -> None:
        raise_it(asyncio.get_running_loop())
        send(row)

    world.send = send_with_a_fault  # type: ignore[method-assign]
    return world.complete(task_of(intended=times(0.0, 0.25), kinds=np.zeros(2, np.int32)))


def test_an_error_that_nobody_caught_ends_the_worker(world: World) -> None:
    def fail() -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        faulty(world, lambda loop: loop.call_soon(fail))


def test_an_error_without_an_exception_ends_the_worker_too(world: World) -> None:
    with pytest.raises(RuntimeError, match="something is wrong"):
        faulty(world, lambda loop: loop.call_exception_handler({"message": "something is wrong"}))


def test_a_connection_that_fails_somewhere_does_not_end_the_worker(world: World) -> None:
    context = {"message": "lost", "exception": ConnectionResetError("lost")}
    assert faulty(world, lambda loop: loop.call_exception_handler(context))["status"].tolist() == [OK, OK]


def test_of_several_errors_the_first_is_reported(world: World) -> None:
    def twice(loop: asyncio.AbstractEventLoop) -> None:
        for word in ("first", "second"):
            loop.call_exception_handler({"message": word, "exception": LookupError(word)})

    with pytest.raises(LookupError, match="first"):
        faulty(world, twice)


# What is written down.


def in_loop(check: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(check())


def test_calls_of_grpc_and_requests_over_http_have_clients_of_their_own() -> None:
    pytest.importorskip("grpc", reason="needs it: pip install '.[serving]'")

    async def check() -> None:
        wires: dict[Wire, type] = {"kserve-grpc": GrpcClient, "kserve-json": HttpClient}
        for wire, kind in wires.items():
            run = worker._Run(task_of(endpoint=endpoint_at(9, wire)))
            assert isinstance(run._client, kind)
            await run._client.close()

    in_loop(check)


def written(
    task: WorkerTask, number: int, bodies: dict[int, bytes] | None = None, **columns: list[Any]
) -> dict[str, Any]:
    """The trace of a log that holds this, and its answers."""
    result: dict[str, Any] = {}

    async def check() -> None:
        run = worker._Run(task)
        run._log.add(number)
        run._log.bodies |= bodies or {}
        for name, values in columns.items():
            getattr(run._log, name)[: len(values)] = values
        results = run.results(SECOND, 0.5)
        result.update(vars(results.trace), answers=results.answers)
        await run._client.close()

    in_loop(check)
    return result


def test_times_are_seconds_since_the_start_with_the_emulated_network_added() -> None:
    result = written(
        task_of(
            kinds=np.array([0, 2], np.int32), up=times(0.5, 1.0), down=times(0.25, 2.0), down_bandwidth=4.0, users=1
        ),
        3,
        intended=[3 * SECOND, 4 * SECOND, 5 * SECOND],
        dispatched=[4 * SECOND, 6 * SECOND, 7 * SECOND],
        sent=[5 * SECOND, 7 * SECOND, 8 * SECOND],
        first=[6 * SECOND, 8 * SECOND, 9 * SECOND],
        done=[7 * SECOND, 9 * SECOND, 0],
        status=[OK, SHED, BROKEN],
        size=[8, 16, 0],
    )
    assert result["intended"].tolist() == [2.0, 3.0, 4.0]
    assert result["dispatched"].tolist() == [2.5, 4.0, 5.5]
    assert result["sent"].tolist() == [3.5, 5.0, 6.5]
    assert result["first"].tolist() == [5.25, 9.0, 8.25]
    assert result["done"][:2].tolist() == [8.25, 14.0]
    assert np.isnan(result["done"][2])
    assert result["kind"].tolist() == [0, 2, 0]
    assert result["samples"].tolist() == [1, 3, 1]
    assert result["status"].tolist() == [OK, SHED, BROKEN]


def test_without_an_emulated_network_times_are_those_of_the_clock() -> None:
    result = written(
        task_of(), 1, dispatched=[2 * SECOND], sent=[3 * SECOND], first=[4 * SECOND], done=[5 * SECOND], size=[100]
    )
    assert [result[name].tolist() for name in ("dispatched", "sent", "first", "done")] == [[1.0], [2.0], [3.0], [4.0]]


def test_only_what_was_never_sent_is_unsent() -> None:
    result = written(task_of(), 4, sent=[0, 1, SECOND, SECOND], status=[UNSENT, UNSENT, UNSENT, TIMED_OUT])
    assert result["status"].tolist() == [UNSENT, BROKEN, BROKEN, TIMED_OUT]
    assert np.isnan(result["sent"]).tolist() == [True, False, False, False]
    assert result["sent"][1] == pytest.approx(-1.0)


def test_an_error_within_a_stream_that_began_well_is_a_failure() -> None:
    piece, error = b'{"choices":[{"text":"a"}]}', b'{"error":{"message":"no memory"}}'
    result = written(
        task_of(streaming=True, down=times(0.5, 4.0)),
        5,
        status=[OK, OK, SHED, OK, OK],
        events=[
            [(2 * SECOND, piece), (3 * SECOND, error)],
            [(4 * SECOND, piece), (5 * SECOND, piece), (6 * SECOND, b"[DONE]")],
            [(6 * SECOND, error)],
            None,
            [],
        ],
    )
    assert result["status"].tolist() == [FAILED, OK, SHED, WRONG, WRONG]
    assert [times.tolist() for times in result["chunks"]] == [[1.5], [7.0, 8.0], [], [], []]


@pytest.mark.parametrize("before", ["", "a" * (LONGEST_CAUSE - 22), "a" * (LONGEST_CAUSE - 51)])
def test_a_secret_that_the_server_repeats_is_in_no_cause(before: str) -> None:
    """Not even its beginning, where a long text is cut."""
    secret = "sesame-0123456789"
    error = json.dumps({"error": {"message": f"{before} wrong key: {secret}"}}).encode()
    endpoint = replace(endpoint_at(9, "openai-chat"), hidden=(secret,))
    task = task_of(streaming=True, endpoint=endpoint)
    streamed = [(2 * SECOND, error)]
    result = written(task, 2, status=[401, OK], events=[[], streamed], bodies={0: error})
    assert sum(result["causes"].values()) == 2
    assert all("sesame" not in cause and len(cause) <= LONGEST_CAUSE + 3 for cause in result["causes"])


def test_pieces_stages_and_batches_are_there_where_they_were_reported() -> None:
    plain = written(task_of(), 2, status=[OK, OK])
    assert (plain["batch"], plain["chunks"], plain["stages"], plain["answers"]) == (None, None, {}, [])
    reported = written(
        task_of(), 2, status=[OK, OK], timing=[b"q=2000000000,n=3", None], answers=[(1, b"ab"), (0, b"c")]
    )
    assert reported["batch"].tolist() == [3, 0]
    assert reported["stages"]["queue"][0] == 2.0
    assert reported["answers"] == [(1, b"ab"), (0, b"c")]


# Waiting.


def test_a_call_after_a_while_waits_again_until_its_instant_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    callbacks: list[Callable[[], None]] = []
    called: list[tuple[object, ...]] = []
    now = START

    def call_later(seconds: float, call: Callable[[], None]) -> None:
        waits.append(seconds)
        callbacks.append(call)

    monkeypatch.setattr(worker, "clock", lambda: now)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(call_later=call_later))
    worker.call_after(4.0, lambda *arguments: called.append(arguments), 1, "a")
    for early in (SECOND // 2, 50_000, 1):  # ns
        now = START + 4 * SECOND - early
        callbacks.pop()()
    assert waits == [4.0, 0.5, 0.001, 0.001]
    assert called == []
    now = START + 4 * SECOND
    callbacks.pop()()
    assert called == [(1, "a")]
    assert callbacks == []


def test_a_call_is_made_at_its_very_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    due = time.monotonic_ns()
    looks = iter(range(100))

    def clock() -> int:
        next(looks)
        return due

    called: list[int] = []
    monkeypatch.setattr(worker, "clock", clock)
    asyncio.run(worker.pace([due, due], called.append))
    assert called == [0, 1]


def test_calls_by_a_timer_that_is_ended_in_the_same_moment_do_no_harm() -> None:
    faults: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: faults.append(context))

        def end(_position: int) -> None:
            pacing.cancel()

        pacing = asyncio.ensure_future(worker.pace([time.monotonic_ns()], end))
        with suppress(asyncio.CancelledError):
            await pacing
        assert pacing.cancelled()

    asyncio.run(run())
    assert faults == []


def test_without_timers_the_loop_sleeps_and_then_looks_until_it_is_time(world: World) -> None:
    sleeps: list[float] = []
    really = asyncio.sleep

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        await really(seconds)

    world.now = START
    called: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep)
        asyncio.run(worker.pace([START + 4 * SECOND, START + 4 * SECOND + STEP], lambda _: called.append(world.now)))
    assert sleeps == [4.0 - 0.0015, *[0] * 15, 0]
    assert called == [START + 4 * SECOND, START + 4 * SECOND + STEP]


def test_answers_are_read_now_and_then_even_if_everything_is_due_already(world: World) -> None:
    called: list[int] = []
    asyncio.run(worker.pace([START] * 40, lambda _: called.append((world.now - START) // STEP)))
    assert called == [0] * 16 + [1] * 16 + [2] * 8
