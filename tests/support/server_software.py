"""Real serving software in a test: installed once in a checkout, started, asked, and seen to be gone."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from paceline.load import kserve, kserve_grpc
from paceline.load.kserve import Array
from paceline.load.request import Endpoint
from paceline.servers import SERVERS, _environment
from paceline.servers._program import Program
from paceline.servers.base import Need, Server, ServerFailed
from paceline.servers.export import export

MODEL = "generated/fc:layers=2,width=16"
NEED = Need(model=MODEL, allow_import=True)
GENEROUS = 300.0  # seconds; only what hangs takes so long


@pytest.fixture(scope="session")
def environments() -> Path:
    """Where environments are made and kept for the next session; $PACELINE_TEST_SERVERS names another folder."""
    own = Path(__file__).parent.parent.parent / ".cache" / "servers"
    return Path(os.environ.get("PACELINE_TEST_SERVERS", own))


@dataclass
class Software:
    """What a test needs to install and start servers."""

    folder: Path

    def install(self, name: str) -> _environment.Installed:
        server = SERVERS.registry().get(name)
        assert issubclass(server, Program)
        assert server.requirements is not None
        return _environment.install(server.requirements, print)

    @contextmanager
    def started(self, name: str, need: Need = NEED, **settings: Any) -> Iterator[Server]:
        """A server that is ready; with the block it is gone, and so is all that it had started."""
        self.install(name)
        server = self.make(name, need, **settings)
        server.prepare()
        try:
            server.start()
            pids = server.processes()
            assert pids
            yield server
            pids = sorted({*pids, *server.processes()})
        except ServerFailed as failed:
            print(failed.logs)
            raise
        finally:
            server.stop()
        assert not server.is_alive()
        assert [pid for pid in pids if psutil.pid_exists(pid)] == []

    def make(self, name: str, need: Need = NEED, **settings: Any) -> Server:
        kind = SERVERS.registry().get(name)
        read = kind.Settings.read({"kind": name, "ready_timeout": GENEROUS} | settings)
        kind.check(read, need)
        # As long as a folder of somebody may be: sockets in it would have too long a path.
        folder = self.folder / f"{name}-{len(list(self.folder.iterdir()))}-{'x' * 60}"
        folder.mkdir()
        return kind(read, need, folder, print)


@pytest.fixture
def software(
    environments: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Software:
    """Servers in environments that are kept, models in a cache of this session."""
    monkeypatch.setenv("XDG_DATA_HOME", str(environments))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    # Half of the time of an installation is compiling modules, few of which a server imports: it compiles those itself.
    monkeypatch.setenv("PIP_COMPILE", "0")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (tmp_path / "servers").mkdir()
    return Software(tmp_path / "servers")


def samples(count: int, seed: int = 0) -> dict[str, Array]:
    """Inputs for `MODEL`."""
    rows = np.random.default_rng(seed).standard_normal((count, 16), np.float32)
    return {"vectors": rows}


def expected(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What `MODEL` answers, by ONNX Runtime in this process."""
    import onnxruntime

    artifact = export(Need(MODEL), "onnx")
    session = onnxruntime.InferenceSession(str(artifact.path), providers=["CPUExecutionProvider"])
    names = [spec.name for spec in artifact.outputs]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def ask(endpoint: Endpoint, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """One request as the endpoint wants it."""
    if endpoint.wire == "kserve-grpc":
        import grpc

        with grpc.insecure_channel(f"{endpoint.host}:{endpoint.port}") as channel:
            answer = channel.unary_unary(endpoint.path)(kserve_grpc.encode_request(endpoint.model, inputs), timeout=60)
        return kserve_grpc.decode_response(answer)
    message = kserve.encode_request(inputs, binary=endpoint.wire == "kserve-binary")
    headers = {"Content-Type": message.content_type}
    if message.json_length is not None:
        headers[kserve.JSON_LENGTH] = str(message.json_length)
    with post(endpoint, message.body, headers) as answer:
        length = answer.headers.get(kserve.JSON_LENGTH)
        return kserve.decode_response(answer.read(), int(length) if length else None)


def post(endpoint: Endpoint, body: bytes, headers: Mapping[str, str]) -> Any:
    url = f"http://{endpoint.host}:{endpoint.port}{endpoint.path}"
    return urllib.request.urlopen(urllib.request.Request(url, body, dict(headers)), timeout=60)


def assert_right(answer: Mapping[str, Array], inputs: Mapping[str, Array]) -> None:
    right = expected(inputs)
    assert set(answer) == set(right)
    for name, array in right.items():
        assert answer[name].shape == array.shape
        np.testing.assert_allclose(answer[name], array, rtol=1e-4, atol=1e-5)


def status_of(endpoint: Endpoint, body: object) -> int:
    """What is answered to a body that may be wrong."""
    try:
        with post(endpoint, json.dumps(body).encode(), {"Content-Type": "application/json"}) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            psutil.Process(pid).kill()
        except psutil.NoSuchProcess:
            continue


def wait_until_dead(server: Server) -> None:
    end = time.monotonic() + 30
    while server.is_alive() and time.monotonic() < end:
        time.sleep(0.05)
    assert not server.is_alive()


def listened_at(pids: list[int]) -> set[str]:
    """Addresses at which these processes accept connections."""
    found = set()
    for pid in pids:
        try:
            found |= {c.laddr.ip for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN}
        except psutil.NoSuchProcess:
            continue
    return {address.removeprefix("::ffff:") for address in found}
