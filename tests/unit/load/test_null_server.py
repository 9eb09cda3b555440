"""The server that does nothing: it answers at once."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.load import null_server
from paceline.load.kserve_grpc import METHOD, GrpcClient
from paceline.load.null_server import BODY, NullProtocol, main, started
from paceline.load.request import Endpoint
from paceline.load.trace import OK, REFUSED, Log
from paceline.load.worker import WorkerTask
from paceline.measure import native

ASK = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello"
GET = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


def talk(pieces: list[bytes], body: bytes = BODY) -> bytes:
    """All that comes back for these pieces before the server closes the connection, once nothing more is sent."""

    async def run() -> bytes:
        server = await asyncio.get_running_loop().create_server(lambda: NullProtocol(body), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.002)
        writer.write_eof()
        async with asyncio.timeout(5.0):
            answers = await reader.read()
        writer.close()
        server.close()
        return answers

    return asyncio.run(run())


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
    assert talk(pieces) == ANSWER * 3


def test_it_answers_with_another_body_if_it_is_to() -> None:
    assert talk([ASK], b"[1]").endswith(b"\r\ncontent-length: 3\r\n\r\n[1]")


class Served:
    """The server's own main function in a thread, with pipes as its standard streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: str, cpu: int | None, grpc: bool) -> None:
        stdin, self._end = os.pipe()
        port, stdout = os.pipe()
        options = {"host": host, "cpu": cpu, "grpc": grpc, "body": BODY.decode()}
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
    yield lambda host="127.0.0.1", cpu=None, grpc=False: Served(monkeypatch, host, cpu, grpc)


@pytest.mark.parametrize("pinned", [False, True])
def test_it_prints_its_port_and_serves_until_its_input_ends(serve: Callable[..., Served], pinned: bool) -> None:
    here = os.sched_getaffinity(0)
    server = serve(cpu=max(here) if pinned else None)
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
        values: dict[str, Any] = {"payloads": [bytes(5_000_000)], "metadata": [(("a", "b"),)], "timeout": 5.0} | more
        values |= {"endpoint": Endpoint("kserve-grpc", host, port, METHOD, "x"), "samples": np.ones(1, np.int32)}
        client = GrpcClient(log, WorkerTask(parent=1, **values))
        for row in range(6):
            client.send(row)
            async with asyncio.timeout(10.0):
                assert await finished.get() == row
        await client.close()
        return log

    return asyncio.run(run())


def test_calls_of_grpc_of_any_size_are_answered(serve: Callable[..., Served]) -> None:
    pytest.importorskip("grpc", reason="install it with: pip install '.[serving]'")
    server = serve(grpc=True)
    log = grpc_log(server.port)
    server.end()
    assert log.status[:6] == [OK] * 6
    assert log.answers == [(0, b"")]
    for row in range(6):
        assert log.dispatched[row] <= log.sent[row] <= log.done[row]
        assert (log.first[row], log.size[row]) == (log.done[row], 0)


def test_a_call_that_meets_nobody_is_refused_and_has_no_end() -> None:
    pytest.importorskip("grpc", reason="install it with: pip install '.[serving]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        log = grpc_log(free.getsockname()[1])
    assert (log.status[:6], log.done[:6], log.answers) == ([REFUSED] * 6, [0] * 6, [])


def test_it_runs_in_a_process_of_its_own() -> None:
    with started() as (where, process):
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
        assert b"paceline.load.null_server" in Path(f"/proc/{process}/cmdline").read_bytes()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5.0)


def test_a_server_that_does_not_start_is_an_error() -> None:
    with pytest.raises(OSError, match="the null server did not start"), started(host="192.0.2.1"):
        pass


def test_it_may_have_as_many_connections_as_the_system_grants() -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, 256), most))
    try:
        with started() as (_, process):
            assert resource.prlimit(process, resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.mark.skipif(not native.is_possible(), reason="there is no C compiler")
def test_in_c_it_closes_what_it_cannot_understand_and_goes_on() -> None:
    with started(in_c=True) as (where, _):
        for ask, answer in ((ASK.replace(b": 5", b": -5"), b""), (ASK, ANSWER)):
            with socket.create_connection((where.host, where.port), timeout=20.0) as connection:
                connection.sendall(ask)
                with suppress(ConnectionResetError):
                    assert connection.recv(1000) == answer
