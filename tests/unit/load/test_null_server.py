"""The server that does nothing: it answers at once, or misbehaves as it is asked to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from paceline.load import null_server
from paceline.load.grpc_client import INFER, GrpcClient
from paceline.load.null_server import BODY, CHAT, Behaviour, NullProtocol, main, running
from paceline.load.server_timing import HEADER
from paceline.load.trace import OK, REFUSED, Log
from paceline.load.worker import WorkerTask

ASK = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello"
GET = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture(autouse=True)
def _count_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NullProtocol, "requests", 0)


def talk(behaviour: Behaviour, *connections: list[bytes], until: bytes | None = b"") -> list[bytes]:
    """What comes back on each connection for these pieces, one connection after the other.

    All that comes before the server closes it, once nothing more is sent; `until` some bytes instead; or, if that is
    None, until the server closes it on its own.
    """

    async def run() -> list[bytes]:
        server = await asyncio.get_running_loop().create_server(lambda: NullProtocol(behaviour), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        answers = []
        for pieces in connections:
            reader, writer = await asyncio.open_connection(host, port)
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.002)
            if until == b"":
                writer.write_eof()
            async with asyncio.timeout(5.0):
                answers.append(await (reader.readuntil(until) if until else reader.read()))
            writer.close()
        server.close()
        return answers

    return asyncio.run(run())


def conversation(behaviour: Behaviour, number: int) -> list[bytes]:
    """The answers to so many requests, each on a connection of its own."""
    return talk(behaviour, *[[ASK]] * number)


@pytest.mark.parametrize(
    "pieces",
    [
        [ASK * 3],
        [ASK, ASK, ASK],
        [ASK[:20], ASK[20:] + ASK[:-3], ASK[-3:] + ASK],
        [GET + ASK + GET],
        [ASK * 2 + GET[:-1], GET[-1:]],
        [ASK * 2 + GET[:-3], GET[-3:]],
        [b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 3000000\r\n\r\n" + bytes(3_000_000) + ASK + ASK],
    ],
)
def test_every_request_is_answered_however_the_network_cuts_them(pieces: list[bytes]) -> None:
    assert talk(Behaviour(), pieces) == [ANSWER * 3]
    assert NullProtocol.requests == 3


def test_it_answers_as_a_language_model_and_reports_stages_if_it_is_to() -> None:
    (answer,) = talk(Behaviour(chats=True, reports_stages=True), [ASK])
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == CHAT
    assert f"{HEADER}: d=1000,q=2000,b=3000,i=4000,p=5000,n=2".encode() in head.split(b"\r\n")
    assert b"content-length: %d" % len(CHAT) in head


@pytest.mark.parametrize("every", [1, 2, 3])
def test_every_nth_request_is_shed(every: int) -> None:
    answers = conversation(Behaviour(shed_every=every), 6)
    assert [answer == BUSY for answer in answers] == [number % every == 0 for number in range(1, 7)]
    assert set(answers) <= {BUSY, ANSWER}


def test_every_nth_answer_is_cut_and_its_connection_ends() -> None:
    assert talk(Behaviour(cut_every=2), [ASK, ASK], until=None) == [ANSWER + ANSWER[:-20]]


def test_every_nth_answer_closes_its_connection() -> None:
    assert talk(Behaviour(close_every=2), [ASK, ASK], [ASK, ASK], until=None) == [ANSWER * 2, ANSWER * 2]


def test_every_nth_answer_is_not_http() -> None:
    first, second = conversation(Behaviour(garbage_every=2), 2)
    assert first == ANSWER
    assert second.startswith(b"\0\x01\x02")


def test_a_stream_has_so_many_events_and_an_end() -> None:
    (answer,) = talk(Behaviour(pieces=3, delay=0.001), [ASK], until=b"0\r\n\r\n")
    head, _, chunks = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    word = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
    assert chunks == b"".join(
        b"%x\r\n%s\r\n" % (len(event), event) for event in (word, word, word, b"data: [DONE]\n\n")
    ) + (b"0\r\n\r\n")


def test_a_stream_ends_with_its_connection() -> None:
    async def run() -> None:
        protocol = NullProtocol(Behaviour(pieces=2))
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, sock=ours)
        transport.abort()
        protocol._stream(0)
        await asyncio.sleep(0.01)
        assert theirs.recv(100) == b""
        theirs.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("behaviour", "later"),
    [
        (Behaviour(stall_at=0.5, stall_for=3.0), ["sleep 3.0 in 0.5"]),
        (Behaviour(die_at=2.0), [f"kill {os.getpid()} {int(signal.SIGKILL)} in 2.0"]),
        (Behaviour(), []),
    ],
)
def test_it_stalls_or_dies_once_counted_from_the_first_request(
    monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, later: list[str]
) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("it must not happen here")

    def kill(process: int, number: int) -> None:
        raise AssertionError("it must not happen here")

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(os, "kill", kill)
    noted: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def note(delay: float, call: Callable[..., object], *arguments: Any) -> object:
            if call in (sleep, kill):
                noted.append(f"{call.__name__} {' '.join(str(one) for one in map(_plain, arguments))} in {delay}")
                return None
            return call_later(delay, call, *arguments)

        monkeypatch.setattr(loop, "call_later", note)
        protocol = NullProtocol(behaviour)
        ours, theirs = socket.socketpair()
        transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
        theirs.sendall(ASK * 2)
        await asyncio.sleep(0.01)
        assert theirs.recv(10_000) == ANSWER * 2
        transport.abort()
        theirs.close()

    asyncio.run(run())
    assert noted == later


def _plain(value: object) -> object:
    return int(value) if isinstance(value, int) else value


def test_every_answer_waits_for_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def call_after(seconds: float, call: Callable[..., object], *arguments: object) -> None:
        asked.append(seconds)
        call(*arguments)

    monkeypatch.setattr(null_server, "call_after", call_after)
    assert talk(Behaviour(delay=0.25, shed_every=2), [ASK * 2]) == [ANSWER + BUSY]
    assert asked == [0.25, 0.25]


class Served:
    """The server's own main function in a thread, with pipes as its standard streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, host: str, cpu: int | None) -> None:
        stdin, self._end = os.pipe()
        port, stdout = os.pipe()
        options = {"host": host, "cpu": cpu, "behaviour": asdict(behaviour)}
        self._files = [os.fdopen(stdin), os.fdopen(stdout, "w"), os.fdopen(port)]
        monkeypatch.setattr(sys, "argv", ["null_server", json.dumps(options)])
        monkeypatch.setattr(sys, "stdin", self._files[0])
        monkeypatch.setattr(sys, "stdout", self._files[1])
        self.cores: set[int] = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.port = int(self._files[2].readline())

    def _run(self) -> None:
        main()
        self.cores = os.sched_getaffinity(0)

    def end(self) -> None:
        os.close(self._end)
        self._thread.join(5.0)
        assert not self._thread.is_alive()
        for file in self._files:
            file.close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    yield lambda behaviour, host="127.0.0.1", cpu=None: Served(monkeypatch, behaviour, host, cpu)


@pytest.mark.parametrize("pinned", [False, True])
def test_it_prints_its_port_and_serves_until_its_input_ends(serve: Callable[..., Served], pinned: bool) -> None:
    here = os.sched_getaffinity(0)
    server = serve(Behaviour(), cpu=max(here) if pinned else None)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5.0) as connection:
        connection.sendall(ASK)
        assert connection.recv(1000) == ANSWER
    server.end()
    assert server.cores == ({max(here)} if pinned else here)


def grpc_log(port: int, host: str = "127.0.0.1", **more: Any) -> Log:
    """Three calls of one kind, one after the other."""

    async def run() -> Log:
        finished: asyncio.Queue[int] = asyncio.Queue()
        log = Log([0], 1, finished.put_nowait)
        log.add(6)
        where: dict[str, Any] = {"transport": "grpc", "host": host, "port": port, "path": INFER, "tls": False}
        values: dict[str, Any] = {"payloads": [bytes(5_000_000)], "metadata": [(("a", "b"),)], "timeout": 5.0} | more
        client = GrpcClient(log, WorkerTask(**where, parent=1, **values))
        for row in range(6):
            client.send(row)
            async with asyncio.timeout(10.0):
                assert await finished.get() == row
        await client.close()
        return log

    return asyncio.run(run())


def test_calls_of_grpc_of_any_size_are_answered(serve: Callable[..., Served]) -> None:
    pytest.importorskip("grpc", reason="install it with: pip install 'paceline[serving]'")
    server = serve(Behaviour(grpc=True))
    log = grpc_log(server.port)
    server.end()
    assert log.status[:6] == [OK] * 6
    assert log.answers == [(0, b"")]
    for row in range(6):
        assert log.dispatched[row] <= log.sent[row] <= log.done[row]
        assert (log.first[row], log.size[row]) == (log.done[row], 0)


def test_a_call_that_meets_nobody_is_refused_and_has_no_end() -> None:
    pytest.importorskip("grpc", reason="install it with: pip install 'paceline[serving]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        log = grpc_log(free.getsockname()[1])
    assert (log.status[:6], log.done[:6], log.answers) == ([REFUSED] * 6, [0] * 6, [])


def test_it_runs_in_a_process_of_its_own() -> None:
    with running() as where:
        assert (where.wire, where.host, where.path, where.model) == (
            "kserve-json",
            "127.0.0.1",
            null_server.PATH,
            "null",
        )
        with socket.create_connection((where.host, where.port), timeout=5.0) as connection:
            connection.sendall(ASK)
            assert connection.recv(1000) == ANSWER
        port = where.port
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5.0)


def test_a_server_that_does_not_start_is_an_error() -> None:
    with pytest.raises(OSError, match="the null server did not start"), running(host="192.0.2.1"):
        pass
