"""Bodies that are received where they will stay: over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from paceline.load.http11 import RequestHead
from paceline.load.kserve import Buffer
from paceline.servers._embedded import http
from paceline.servers._embedded.http import LARGE_BODY, Connection, Rooms, listen

LARGE = 4 * LARGE_BODY + 12_345  # more than what may come with the head

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(work)

    return run


class Digest:
    """Answers with the digest of a body: at once, or never."""

    def __init__(self) -> None:
        self.is_silent = False
        self.held: list[Buffer] = []
        self.left = asyncio.Event()

    def handle(self, connection: Connection, head: RequestHead, body: Buffer) -> None:
        if self.is_silent:
            self.held.append(body)
            return
        connection.answer(200, (digest(body),), b"")

    def gone(self, connection: Connection) -> None:
        self.left.set()


def digest(body: Buffer) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def content(seed: int, length: int) -> bytes:
    return (hashlib.sha256(b"%d" % seed).digest() * (length // 32 + 1))[:length]


def request_of(body: bytes) -> bytes:
    return b"POST /infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return await reader.readexactly(64)


async def opened(server: asyncio.Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.sockets[0].getsockname()[:2]
    return await asyncio.open_connection(host, port)


def test_every_body_arrives_as_it_was_sent(run: Run) -> None:
    async def client(server: asyncio.Server, number: int) -> None:
        reader, writer = await opened(server)
        # In one go, so that the next request is there before the one before is answered.
        bodies = [content(10 * number + at, length) for at, length in enumerate((LARGE, 3, LARGE, 2 * LARGE, 0, LARGE))]
        writer.write(b"".join(map(request_of, bodies)))
        assert [await answer(reader) for _ in bodies] == [digest(body) for body in bodies]
        for body in bodies:  # and cut where the body is not yet large enough to be one
            whole = request_of(body)
            for piece in (whole[:7], whole[7:90], whole[90 : LARGE // 2], whole[LARGE // 2 :]):
                writer.write(piece)
                await asyncio.sleep(0)
            assert await answer(reader) == digest(body)
        writer.close()

    async def work() -> None:
        server, _ = await listen(Digest(), "127.0.0.1", 0)
        await asyncio.gather(*(client(server, number) for number in range(4)))
        server.close()

    run(work())


def test_a_client_that_leaves_in_the_middle_harms_nobody(run: Run) -> None:
    async def work() -> None:
        server, connections = await listen(Digest(), "127.0.0.1", 0)
        _, leaving = await opened(server)
        leaving.write(request_of(content(1, LARGE))[: LARGE // 2])
        await leaving.drain()
        leaving.transport.abort()
        reader, writer = await opened(server)
        body = content(2, LARGE)
        writer.write(request_of(body))
        assert await answer(reader) == digest(body)
        writer.close()
        while connections:
            await asyncio.sleep(0.01)
        server.close()

    run(work())


def test_what_is_still_computed_with_is_not_written_over(run: Run) -> None:
    async def work() -> None:
        handler = Digest()
        server, _ = await listen(handler, "127.0.0.1", 0)
        handler.is_silent = True
        _, leaving = await opened(server)
        body = content(1, LARGE)
        leaving.write(request_of(body))
        while not handler.held:
            await asyncio.sleep(0.01)
        leaving.transport.abort()
        await handler.left.wait()
        handler.is_silent = False
        reader, writer = await opened(server)
        for seed in (2, 3):
            writer.write(request_of(content(seed, LARGE)))
            await answer(reader)
        assert bytes(handler.held[0]) == body
        writer.close()
        server.close()

    run(work())


def test_rooms_are_used_again_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_ROOM", 25)
    rooms = Rooms()
    first, second, third = (rooms.take(10) for _ in range(3))
    for room in (first, second, third):
        rooms.give_back(room)
    assert rooms.take(11) is not first
    assert [rooms.take(10) is room for room in (second, third)] == [True, True]
    assert all(rooms.take(10) is not room for room in (first, second, third))
