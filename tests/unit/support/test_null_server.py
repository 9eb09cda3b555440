"""The null server that misbehaves as it is asked to."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from paceline.load.null_server import BODY
from paceline.load.trace import HEADER
from support import null_server
from support.null_server import CHAT, Behaviour, MisbehavingProtocol

ASK = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture(autouse=True)
def _count_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MisbehavingProtocol, "requests", 0)


def talk(behaviour: Behaviour, *connections: list[bytes], until: bytes | None = b"") -> list[bytes]:
    """What comes back on each connection for these pieces, one connection after the other.

    All that comes before the server closes it, once nothing more is sent; `until` some bytes instead; or, if that is
    None, until the server closes it on its own.
    """

    async def run() -> list[bytes]:
        server = await asyncio.get_running_loop().create_server(lambda: MisbehavingProtocol(behaviour), "127.0.0.1", 0)
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
        protocol = MisbehavingProtocol(Behaviour(pieces=2))
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
        protocol = MisbehavingProtocol(behaviour)
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
