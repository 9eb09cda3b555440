"""How long an answer is waited for."""

from __future__ import annotations

import asyncio

import pytest

from paceline.load import http_client
from paceline.load.http_client import HttpClient
from paceline.load.trace import TIMED_OUT, Log
from paceline.load.worker import WorkerTask

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
        where = {"transport": "http", "host": host, "port": port, "path": "/", "tls": False}
        client = HttpClient(log, WorkerTask(**where, parent=1, payloads=[b"x"], metadata=[], limit=1, timeout=TIMEOUT))
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
