"""Over which connection a request goes, how long its answer is waited for, and what became of it."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from paceline.load import http_client
from paceline.load.http_client import HttpClient
from paceline.load.request import Endpoint
from paceline.load.task import WorkerTask
from paceline.load.trace import BROKEN, OK, OUT_OF_SOCKETS, REFUSED, SHED, TIMED_OUT, UNREADABLE, Log

TIMEOUT = 10.0


def test_the_wait_for_a_connection_is_part_of_the_wait_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose queue of connections is full lets nobody in for a while, and then does not answer either."""
    now = 1.0
    monkeypatch.setattr(http_client, "clock", lambda: int(now * 1e9))

    async def run() -> Log:
        nonlocal now
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        finished = asyncio.Event()
        log = Log([0], 0, lambda _row: finished.set())
        log.add(1)
        what = {"payloads": [b"x"], "metadata": [], "samples": np.ones(1, np.int32), "limit": 1, "timeout": TIMEOUT}
        where = Endpoint("kserve-json", host, port, "/", "x")
        client = HttpClient(log, WorkerTask(**what, parent=1, endpoint=where))
        client.send(0)
        now += 0.9 * TIMEOUT  # the connection is opened no sooner than in the next turn of the event loop
        while not client.busy:
            await asyncio.sleep(0.01)
        now += 0.2 * TIMEOUT
        async with asyncio.timeout(5.0):
            await finished.wait()
        await client.close()
        server.close()
        return log

    assert asyncio.run(run()).status[0] == TIMED_OUT


# One request after the other, against a server that does what the test says.


class Peer:
    """The other end of a connection."""

    def __init__(self, handle: socket.socket) -> None:
        self.handle = handle
        self._loop = asyncio.get_running_loop()

    async def receive(self) -> bytes:
        return await self._loop.sock_recv(self.handle, 65536)

    async def answer(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.handle, data)

    def reset(self) -> None:
        """End the connection as a process does that is killed."""
        self.handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.handle.close()


class Talk:
    """A client, its log, and connections that the test accepts."""

    def __init__(self, keep: int = 0, **more: Any) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.peers: list[Peer] = []
        self.rows: list[int] = []  # in the order of their ends
        self.log = Log([0, 1], keep, self.rows.append)
        self.log.add(4)
        self.client = HttpClient(self.log, self.task(**more))

    def task(self, *, tls: bool = False, **more: Any) -> WorkerTask:
        where = Endpoint("kserve-json", "127.0.0.1", self.listener.getsockname()[1], "/", "x", tls=tls)
        what = {"payloads": [b"first kind", b"second kind"], "metadata": [], "samples": np.ones(2, np.int32)}
        return WorkerTask(**{"parent": 1, "endpoint": where} | what | more)

    async def accept(self) -> Peer:
        handle, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        handle.setblocking(False)
        self.peers.append(Peer(handle))
        return self.peers[-1]

    async def ended(self, number: int) -> list[int]:
        """Statuses of the requests that have ended, once there are so many."""
        async with asyncio.timeout(5.0):
            while len(self.rows) < number:
                await asyncio.sleep(0.001)
        assert len(self.rows) == number
        return [self.log.status[row] for row in self.rows]

    async def free(self, connections: int) -> None:
        """Until so many are left."""
        async with asyncio.timeout(5.0):
            while self.client.connections != connections:
                await asyncio.sleep(0.001)


def talk(check: Callable[[Talk], Coroutine[Any, Any, None]], keep: int = 0, **more: Any) -> None:
    async def run() -> None:
        made = Talk(keep, **more)
        try:
            async with asyncio.timeout(5.0):
                await check(made)
        finally:
            await made.client.close()
            for handle in (made.listener, *(peer.handle for peer in made.peers)):
                handle.close()

    asyncio.run(run())


GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def test_a_connection_that_is_free_is_used_again_and_requests_are_of_their_kinds() -> None:
    async def check(talk: Talk) -> None:
        talk.client.send(0)
        peer = await talk.accept()
        assert await peer.receive() == b"first kind"
        await peer.answer(GOOD)
        assert await talk.ended(1) == [OK]
        await asyncio.sleep(0.02)
        talk.client.send(3)
        assert await peer.receive() == b"second kind"
        await peer.answer(GOOD)
        assert await talk.ended(2) == [OK, OK]
        assert talk.client.connections == 1
        assert talk.client.busy == set()
        assert talk.log.size[0] == len(GOOD)
        for row in (0, 3):
            log = talk.log
            assert 0 < log.dispatched[row] <= log.sent[row] <= log.first[row] <= log.done[row]

    talk(check, limit=1)


def test_no_request_waits_for_the_connection_of_another_and_there_are_only_so_many() -> None:
    async def check(talk: Talk) -> None:
        for row in range(3):
            talk.client.send(row)
        assert await talk.ended(1) == [OUT_OF_SOCKETS]
        assert talk.rows == [2]
        assert talk.client.connections == 2
        assert (talk.log.sent[2], talk.log.done[2]) == (0, 0)
        peers = [await talk.accept() for _ in range(2)]
        for peer in peers:
            await peer.receive()
            await peer.answer(GOOD)
        assert await talk.ended(3) == [OUT_OF_SOCKETS, OK, OK]

    talk(check, limit=2)


def test_a_server_that_is_not_there_refuses_and_leaves_room() -> None:
    async def check(talk: Talk) -> None:
        talk.listener.close()
        talk.client.send(0)
        assert await talk.ended(1) == [REFUSED]
        assert talk.client.connections == 0
        assert talk.log.sent[0] == 0

    talk(check, limit=1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.EMFILE, "too many"), OUT_OF_SOCKETS),
        (OSError(errno.EADDRNOTAVAIL, "no port"), OUT_OF_SOCKETS),
        (OSError(errno.EHOSTUNREACH, "no way"), REFUSED),
        (TimeoutError(), TIMED_OUT),
    ],
)
@pytest.mark.parametrize("tls", [False, True])
def test_why_a_connection_cannot_be_opened_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, error: OSError, status: int, tls: bool
) -> None:
    async def check(talk: Talk) -> None:
        asked: list[dict[str, Any]] = []

        async def create(_protocol: object, host: str, port: int, **more: Any) -> None:
            assert (host, port) == talk.listener.getsockname()
            asked.append(more)
            raise error

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create)
        talk.client.send(1)
        assert await talk.ended(1) == [status]
        assert talk.client.connections == 0
        ((more),) = asked
        assert isinstance(more["ssl"], ssl.SSLContext) is tls
        assert more["server_hostname"] == ("127.0.0.1" if tls else None)

    talk(check, tls=tls)


@pytest.mark.parametrize(
    ("data", "is_reset", "status"),
    [
        (b"", False, BROKEN),
        (GOOD[:-1], False, BROKEN),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", False, OK),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", True, BROKEN),
        (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", False, SHED),
        (b"\x00 is not the protocol \r\n\r\n", False, UNREADABLE),
        (GOOD + b"more", False, UNREADABLE),
    ],
)
def test_what_ends_with_its_connection_has_a_status_and_leaves_room(data: bytes, is_reset: bool, status: int) -> None:
    async def check(talk: Talk) -> None:
        talk.client.send(0)
        peer = await talk.accept()
        await peer.receive()
        await peer.answer(data)
        if is_reset:
            while not talk.log.first[0]:
                await asyncio.sleep(0.001)
            peer.reset()
        else:
            peer.handle.shutdown(socket.SHUT_WR)
        assert await talk.ended(1) == [status]
        await talk.free(0)
        assert talk.client.idle == []
        assert talk.client.busy == set()
        assert (talk.log.done[0] > 0) is (status >= OK)
        assert await talk.ended(1) == [status]

    talk(check, keep=1)


def test_the_first_byte_and_the_last_have_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10
    monkeypatch.setattr(http_client, "clock", lambda: now)

    async def check(talk: Talk) -> None:
        nonlocal now
        talk.client.send(0)
        peer = await talk.accept()
        await peer.receive()
        for instant, part in ((20, GOOD[:10]), (30, GOOD[10:20]), (40, GOOD[20:])):
            now = instant
            await peer.answer(part)
            while not talk.log.first[0]:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.005)
        assert await talk.ended(1) == [OK]
        assert (talk.log.dispatched[0], talk.log.sent[0]) == (10, 10)
        assert (talk.log.first[0], talk.log.done[0]) == (20, 40)

    talk(check)


def test_the_first_good_answers_of_a_kind_are_kept() -> None:
    async def check(talk: Talk) -> None:
        talk.client.send(0)
        peer = await talk.accept()
        answers = [b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno", GOOD, GOOD.replace(b"ok", b"OK")]
        for number, answer in enumerate(answers):
            await peer.receive()
            await peer.answer(answer)
            await talk.ended(number + 1)
            talk.client.send(0)
        assert talk.log.answers == [(0, b"ok")]
        assert talk.log.events[0] is None

    talk(check, keep=1)


def test_pieces_of_a_stream_are_written_down() -> None:
    async def check(talk: Talk) -> None:
        talk.client.send(0)
        peer = await talk.accept()
        await peer.receive()
        await peer.answer(b"HTTP/1.1 200 OK\r\nx-paceline: q=5\r\ncontent-length: 18\r\n\r\ndata: a\n\ndata: b\n\n")
        assert await talk.ended(1) == [OK]
        assert [event for _, event in talk.log.events[0] or ()] == [b"a", b"b"]
        assert (talk.log.timing[0] or b"").strip() == b"q=5"

    talk(check, streaming=True)


def test_a_server_that_speaks_without_being_asked_loses_its_connection() -> None:
    async def check(talk: Talk) -> None:
        talk.client.send(0)
        peer = await talk.accept()
        await peer.receive()
        await peer.answer(GOOD)
        await talk.ended(1)
        await peer.answer(b"HTTP/1.1 408 Timeout\r\n\r\n")
        await talk.free(0)
        talk.client.send(1)
        peer = await talk.accept()
        await peer.receive()
        await peer.answer(GOOD)
        assert await talk.ended(2) == [OK, OK]
        assert talk.rows == [0, 1]

    talk(check, limit=1)


@pytest.mark.parametrize(("age", "is_looked_at"), [(10_000_000, False), (10_000_001, True)])
def test_a_connection_that_was_free_for_a_while_is_looked_at_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, age: int, is_looked_at: bool
) -> None:
    now = 1_000_000_000
    monkeypatch.setattr(http_client, "clock", lambda: now)

    async def check(talk: Talk) -> None:
        nonlocal now
        talk.client.send(0)
        peer = await talk.accept()
        await peer.receive()
        await peer.answer(GOOD)
        await talk.ended(1)
        ready = select.poll()
        ready.register(talk.client.idle[0]._transport.get_extra_info("socket").fileno(), select.POLLIN)
        peer.handle.close()
        assert ready.poll(5000)  # the event loop has not been there yet
        now += age
        talk.client.send(1)
        peer = await talk.accept()
        await peer.receive()
        await peer.answer(GOOD)
        assert await talk.ended(2) == [OK, OK]
        assert talk.client.log.retried == (0 if is_looked_at else 1)

    talk(check)


def test_a_new_connection_that_dies_before_an_answer_is_not_tried_again() -> None:
    """Nor is one that dies in the middle of an answer: the server has seen the request."""

    async def check(talk: Talk) -> None:
        talk.client.send(0)
        peer = await talk.accept()
        await peer.receive()
        await peer.answer(GOOD)
        await talk.ended(1)
        talk.client.send(1)
        await peer.receive()
        await peer.answer(GOOD[:20])
        peer.handle.close()
        assert await talk.ended(2) == [OK, BROKEN]
        talk.client.send(2)
        peer = await talk.accept()
        await peer.receive()
        peer.handle.close()
        assert await talk.ended(3) == [OK, BROKEN, BROKEN]
        assert talk.client.log.retried == 0

    talk(check)


def test_a_connection_that_is_being_closed_is_not_used() -> None:
    async def check(talk: Talk) -> None:
        talk.client.send(0)
        peer = await talk.accept()
        await peer.receive()
        await peer.answer(GOOD)
        await talk.ended(1)
        talk.client.idle[0]._transport.abort()
        talk.client.send(1)
        peer = await talk.accept()
        await peer.receive()
        await peer.answer(GOOD)
        assert await talk.ended(2) == [OK, OK]

    talk(check)


def test_a_connection_that_was_closed_when_it_was_accepted_breaks_its_request() -> None:
    async def check(talk: Talk) -> None:
        left, right = socket.socketpair()
        talk.client.connections = 1
        connection = http_client._Connection(talk.client)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: connection, sock=left)
        right.close()
        await talk.free(0)
        assert talk.rows == []
        connection.ask(2, 0, b"x", 77)
        assert await talk.ended(1) == [BROKEN]
        assert (talk.rows, talk.log.sent[2], talk.log.status[1]) == ([2], 77, 0)
        assert transport.is_closing()

    talk(check)


def test_only_those_who_wait_for_as_long_as_the_timeout_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000_000
    monkeypatch.setattr(http_client, "clock", lambda: now)

    async def check(talk: Talk) -> None:
        nonlocal now
        talk.client.send(0)
        now += 1
        talk.client.send(1)
        for _ in range(2):
            await (await talk.accept()).receive()
        now = 1_000_000_000 + 4_000_000_000
        talk.client._sweep()
        assert await talk.ended(1) == [TIMED_OUT]
        assert talk.rows == [0]
        await talk.free(1)
        now += 1
        talk.client._sweep()
        assert await talk.ended(2) == [TIMED_OUT, TIMED_OUT]

    talk(check, timeout=4.0)


@pytest.mark.parametrize(("timeout", "every"), [(30.0, 0.1), (1.0, 0.1), (0.5, 0.05)])
def test_waits_are_looked_at_ten_times_until_the_timeout_or_ten_times_a_second(timeout: float, every: float) -> None:
    async def check(talk: Talk) -> None:
        assert talk.client._sweep_every == every

    talk(check, timeout=timeout)


def test_what_is_under_way_when_the_client_is_closed_has_no_status() -> None:
    async def check(talk: Talk) -> None:
        talk.client.send(0)
        await (await talk.accept()).receive()
        talk.client.send(1)
        await talk.client.close()
        await asyncio.sleep(0.01)
        assert talk.rows == []
        assert talk.log.status[:2] == [0, 0]

    talk(check)


@pytest.mark.parametrize(
    ("addresses", "listening", "expected", "tried"),
    [
        (["10.0.0.1"], [], "10.0.0.1", []),  # there is no choice
        (["10.0.0.1", "10.0.0.2"], ["10.0.0.2"], "10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
        (["10.0.0.1", "10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.2"], "10.0.0.1", ["10.0.0.1"]),
        (["10.0.0.1", "10.0.0.2"], [], "10.0.0.1", ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_of_several_addresses_the_first_that_accepts_is_used(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], listening: list[str], expected: str, tried: list[str]
) -> None:
    attempts: list[str] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        assert (address[1], timeout) == (80, 2.0)
        attempts.append(address[0])
        if address[0] not in listening:
            raise ConnectionRefusedError
        return socket.socket()

    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    monkeypatch.setattr(socket, "create_connection", connect)
    assert http_client.reachable_address("server", 80) == expected
    assert attempts == tried
