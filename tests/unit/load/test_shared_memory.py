"""Tensors are put where the server sees them, each at a place of its own, and requests say where."""

from __future__ import annotations

import errno
import http.client
import json
import os
import stat
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from paceline.core.errors import CaseError, Unsupported
from paceline.load import kserve, shared_memory
from paceline.load.kserve import Tensors
from paceline.load.request import Endpoint
from paceline.load.shared_memory import shared_requests
from support.refused import refused

PAGE = 4096


class Server:
    """Looks into the memory when it is registered, as that has no name any more afterwards."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b""
        self.is_silent = False
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.memory = b""
        self.mode = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                region = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.asked.append((self.path, region))
                path = shared_memory.FOLDER / region["key"].removeprefix("/")
                server.memory, server.mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
                if not server.is_silent:
                    self.send_response(server.status)
                    self.end_headers()
                    self.wfile.write(server.body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = Endpoint("kserve-shm", "127.0.0.1", self.http.server_port, "/v2/models/x/infer", "x")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    made = Server()
    thread = Thread(target=made.http.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


def batches() -> list[Tensors]:
    random = np.random.default_rng(4)
    return [
        {"x": random.random((2, 3)).astype(np.float32), "y": random.random((2, PAGE)).astype(np.float64)},
        {"x": random.random((5, 3)).astype(np.float32), "y": random.random((5, 1)).astype(np.float64)},
        {"x": random.random((1, PAGE // 4)).astype(np.float32), "y": random.random((1, 1)).astype(np.float64)},
    ]


def test_every_tensor_has_pages_of_its_own_and_its_request_says_which(server: Server, tmp_path: Path) -> None:
    made = batches()
    before = os.umask(0)
    try:
        prepared = shared_requests(made, server.endpoint)
    finally:
        os.umask(before)
    ((path, region),) = server.asked
    name = region["key"].removeprefix("/")
    assert name.startswith(f"paceline-{os.getpid()}-")
    assert path == f"/v2/systemsharedmemory/region/{name}/register"
    begins = [0, 1, 17, 18, 19, 20]  # pages
    assert region == {"key": f"/{name}", "offset": 0, "byte_size": 21 * PAGE}
    assert len(server.memory) == 21 * PAGE
    assert server.mode == 0o600
    arrays = [array for batch in made for array in batch.values()]
    for begin, array in zip(begins, arrays, strict=True):
        assert server.memory[begin * PAGE : begin * PAGE + array.nbytes] == array.tobytes()
    places = [{"x": PAGE * x, "y": PAGE * y} for x, y in zip(begins[::2], begins[1::2], strict=True)]
    bodies = [kserve.encode_shared_request(one, name, at).body for one, at in zip(made, places, strict=True)]
    assert [one.body for one in prepared] == bodies
    assert [one.samples for one in prepared] == [2, 5, 1]
    assert [one.headers[kserve.JSON_LENGTH] for one in prepared] == [str(len(one)) for one in bodies]
    assert list(tmp_path.iterdir()) == []


def test_requests_without_a_byte_have_memory_all_the_same(server: Server) -> None:
    (prepared,) = shared_requests([{"x": np.zeros((2, 0), np.float32)}], server.endpoint)
    assert server.asked[0][1]["byte_size"] == len(server.memory) == 1
    assert prepared.samples == 2


def test_a_server_that_does_not_map_memory_says_why(server: Server, tmp_path: Path) -> None:
    server.status, server.body = 400, b'{"error":"no such thing"}'
    with pytest.raises(CaseError, match="does not map shared memory: no such thing"):
        shared_requests(batches(), server.endpoint)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_waited_for_a_minute(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.is_silent = True
    waits: list[float] = []

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            waits.append(self.timeout or 0.0)
            super().connect()

    monkeypatch.setattr(http.client, "HTTPConnection", Connection)
    with pytest.raises(CaseError, match="did not answer whether it maps shared memory"):
        shared_requests(batches(), server.endpoint)
    assert waits == [60.0]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", Path("/proc/nowhere"))
    with pytest.raises(Unsupported, match="/proc/nowhere cannot be written to"):
        shared_requests(batches(), server.endpoint)


def failing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def allocate(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", allocate)


def test_requests_that_do_not_fit_are_refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, errno.ENOSPC)
    with refused("shared-memory-full", says="the requests take 84 KiB", key="requests.distinct", value=3):
        shared_requests(batches(), server.endpoint)
    assert list(tmp_path.iterdir()) == []


def test_memory_that_fails_otherwise_is_an_error_of_the_case(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, errno.EIO)
    with pytest.raises(CaseError, match="cannot hold the requests"):
        shared_requests(batches(), server.endpoint)
    assert server.asked == []
    assert list(tmp_path.iterdir()) == []
