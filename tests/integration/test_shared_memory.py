"""Tensors in memory that client and server share: the same answers, plain refusals, and nothing left behind."""

from __future__ import annotations

import http.client
import json
import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.benchmarks.serving.requests import decode
from paceline.core.errors import CaseError, Unsupported
from paceline.core.record import Outcome
from paceline.load import shared_memory
from paceline.load.generator import drive
from paceline.load.kserve import encode_shared_request
from paceline.load.parameters import LoadParameters
from paceline.load.request import Endpoint, Prepared
from paceline.load.shared_memory import shared_requests
from paceline.servers.base import Need
from paceline.servers.embedded import Embedded, EmbeddedSettings
from support.cli import Sandbox
from support.embedded import WEIGHTS, artifact_of, product
from support.refused import refused

MEMORY = Path("/dev/shm")
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Embedded]:
    pytest.importorskip("onnxruntime", reason="needs it: pip install '.[serving]'")
    settings = EmbeddedSettings(engine="onnxruntime", instances=2)
    made = Embedded(settings, Need("made-by-hand", wire="kserve-shm"), tmp_path, lambda _: None)
    made.artifact = artifact_of(product(tmp_path / "model.onnx"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def region() -> Iterator[str]:
    """The name of 24 bytes of shared memory with the values of X."""
    path = MEMORY / f"paceline-test-{os.getpid()}-{secrets.token_hex(4)}"
    path.write_bytes(X.tobytes())
    yield path.name
    path.unlink()


def call(where: Endpoint, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(where.host, where.port, timeout=30)
    try:
        connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body))
        answer = connection.getresponse()
        said = answer.read()
        return answer.status, said if method == "POST" and answer.status == 200 else json.loads(said)
    finally:
        connection.close()


def left_behind() -> set[str]:
    return {path.name for path in MEMORY.glob(f"paceline-{os.getpid()}-*")}


def test_each_request_is_answered_from_its_own_place(server: Embedded) -> None:
    random = np.random.default_rng(4)
    batches = [{"x": random.normal(size=(rows, 3)).astype(np.float32)} for rows in (1, 5, 8, 3)]
    where = server.endpoint("kserve-shm")
    prepared = shared_requests(batches, where)
    assert left_behind() == set()
    assert [one.samples for one in prepared] == [1, 5, 8, 3]
    found: dict[int, bytes] = {}
    load = LoadParameters(arrival="closed", users=8, requests=200)
    trace = drive(where, prepared, load, keep=1, on_answer=lambda kind, body: found.setdefault(kind, body) and None)
    assert trace.ok.all()
    for kind, body in found.items():
        assert np.allclose(decode(body, "kserve-shm")["y"], batches[kind]["x"] @ WEIGHTS)
    assert len(found) == 4


def test_a_region_is_registered_told_of_and_forgotten(server: Embedded, region: str) -> None:
    where, path = server.endpoint("kserve-shm"), "/v2/systemsharedmemory"
    assert "system_shared_memory" in call(where, "GET", "/v2")[1]["extensions"]
    assert call(where, "POST", f"{path}/region/mine/register", {"key": f"/{region}", "byte_size": 24})[0] == 200
    told = [{"name": "mine", "key": f"/{region}", "offset": 0, "byte_size": 24}]
    assert call(where, "GET", f"{path}/status") == (200, told)
    assert call(where, "GET", f"{path}/region/mine/status") == (200, told)
    asked = encode_shared_request({"x": X[1:]}, "mine", {"x": 12}).body
    status, answer = call(where, "POST", where.path, asked)
    assert status == 200
    assert np.allclose(decode(answer, "kserve-shm")["y"], X[1:] @ WEIGHTS)
    assert call(where, "POST", f"{path}/region/mine/unregister")[0] == 200
    assert call(where, "GET", f"{path}/status") == (200, [])
    assert call(where, "POST", where.path, asked) == (400, {"error": "there is no region 'mine'; register it first"})


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"key": "/../etc/passwd", "byte_size": 1}, "is not the name of shared memory"),
        ({"key": "..", "byte_size": 1}, "is not the name of shared memory"),
        ({"key": 7, "byte_size": 1}, "is not the name of shared memory"),
        ({"key": "/paceline-nobody", "byte_size": 1}, "cannot be opened"),
        ({"key": "/REGION", "byte_size": 25}, "has 24 bytes, not 25"),
        ({"key": "/REGION", "offset": 20, "byte_size": 5}, "has 24 bytes, not 25"),
        ({"key": "/REGION", "byte_size": 0}, "must be numbers of bytes"),
        ({"key": "/REGION", "byte_size": True}, "must be numbers of bytes"),
        ({"key": "/REGION", "offset": -1, "byte_size": 5}, "must be numbers of bytes"),
        ([], "must be a JSON object"),
        (b"{", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        ({"key": "/psm_of_somebody", "byte_size": 1}, "is not the name of shared memory for this"),
    ],
)
def test_what_cannot_be_mapped_is_refused(server: Embedded, region: str, wanted: Any, says: str) -> None:
    if isinstance(wanted, dict) and wanted["key"] == "/REGION":
        wanted = wanted | {"key": f"/{region}"}
    where = server.endpoint("kserve-shm")
    status, said = call(where, "POST", "/v2/systemsharedmemory/region/mine/register", wanted)
    assert status == 400
    assert says in said["error"]
    assert call(where, "GET", "/v2/systemsharedmemory/status") == (200, [])


def test_a_link_out_of_shared_memory_is_not_followed(server: Embedded, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 100)
    link = MEMORY / f"paceline-test-link-{os.getpid()}"
    link.symlink_to(tmp_path / "secret")
    try:
        where = server.endpoint("kserve-shm")
        wanted = {"key": f"/{link.name}", "byte_size": 10}
        assert call(where, "POST", "/v2/systemsharedmemory/region/mine/register", wanted)[0] == 400
    finally:
        link.unlink()


def test_what_is_no_memory_does_not_hold_the_server_up(server: Embedded) -> None:
    pipe = MEMORY / f"paceline-test-pipe-{os.getpid()}"
    os.mkfifo(pipe)
    try:
        where = server.endpoint("kserve-shm")
        wanted = {"key": f"/{pipe.name}", "byte_size": 10}
        status, said = call(where, "POST", "/v2/systemsharedmemory/region/mine/register", wanted)
        assert (status, said["error"]) == (400, f"'{pipe.name}' is not shared memory")
    finally:
        pipe.unlink()


def test_there_is_an_end_to_regions(server: Embedded, region: str) -> None:
    where, wanted = server.endpoint("kserve-shm"), {"key": f"/{region}", "byte_size": 24}
    path = "/v2/systemsharedmemory/region"
    assert {call(where, "POST", f"{path}/r{number}/register", wanted)[0] for number in range(64)} == {200}
    assert "64 regions already" in call(where, "POST", f"{path}/more/register", wanted)[1]["error"]


def test_a_region_may_be_forgotten_while_requests_look_at_it(server: Embedded, region: str) -> None:
    where, wanted = server.endpoint("kserve-shm"), {"key": f"/{region}", "byte_size": 24}
    asked = Prepared(encode_shared_request({"x": X}, "mine", {"x": 0}).body, samples=2)
    with ThreadPoolExecutor(1) as pool:
        load = LoadParameters(arrival="closed", users=8, requests=3000)
        running = pool.submit(drive, where, [asked], load)
        while not running.done():
            call(where, "POST", "/v2/systemsharedmemory/region/mine/register", wanted)
            call(where, "POST", "/v2/systemsharedmemory/region/mine/unregister")
        status = running.result().status
    assert set(status.tolist()) == {200, 400}
    assert server.is_alive()


def test_a_tensor_beyond_its_region_is_refused(server: Embedded, region: str) -> None:
    where = server.endpoint("kserve-shm")
    wanted = {"key": f"/{region}", "byte_size": 24}
    for name in ("mine", "yours"):
        assert call(where, "POST", f"/v2/systemsharedmemory/region/{name}/register", wanted)[0] == 200
    again = call(where, "POST", "/v2/systemsharedmemory/region/mine/register", wanted)
    assert again[0] == 400
    assert "already" in again[1]["error"]
    status, said = call(where, "POST", where.path, encode_shared_request({"x": X}, "mine", {"x": 4}).body)
    assert (status, said["error"]) == (400, "region 'mine' has 24 bytes, not 4 + 24")
    assert call(where, "POST", "/v2/systemsharedmemory/unregister")[0] == 200
    assert call(where, "GET", "/v2/systemsharedmemory/status") == (200, [])


def test_a_server_that_was_not_told_to_takes_none(tmp_path: Path) -> None:
    made = Embedded(EmbeddedSettings(engine="null"), Need("made-by-hand"), tmp_path, lambda _: None)
    made.artifact = artifact_of(product(tmp_path / "model.onnx"))
    made.start()
    try:
        where = made.endpoint("kserve-binary")
        with pytest.raises(CaseError, match="the server does not map shared memory"):
            shared_requests([{"x": X}], where)
        assert left_behind() == set()
        asked = encode_shared_request({"x": X}, "mine", {"x": 0}).body
        assert call(where, "POST", where.path, asked)[1]["error"].endswith("takes no tensors from shared memory")
    finally:
        made.stop()


def test_too_little_room_is_told(server: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int, _offset: int, _length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused("shared-memory-full", key="requests.distinct", value=1):
        shared_requests([{"x": X}], server.endpoint("kserve-shm"))
    assert left_behind() == set()


def test_where_there_is_no_shared_memory_another_wire_is_named(
    server: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path / "none")
    with pytest.raises(Unsupported, match=r"none cannot be written to \(No such file or directory\): use wire kserve-"):
        shared_requests([{"x": X}], server.endpoint("kserve-shm"))


@pytest.mark.long
def test_a_run_says_where_its_requests_were(sandbox: Sandbox) -> None:
    case = {
        "benchmark": "serve",
        "model": "resnet18",
        "scale": "tiny",
        "wire": "kserve-shm",
        "requests": {"samples": "uniform(1, 8)", "distinct": 8},
        "load": {"arrival": "closed", "users": 4, "duration": "1s"},
        "warm_up": "0.2s",
    }
    done = sandbox.ask("run", sandbox.suite(case), "--no-report", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = sandbox.load().records
    assert record.outcome is Outcome.OK
    assert record.facts["wire"] == "kserve-shm"
    assert "in shared memory" in record.facts["requests"]
    assert int(record.facts["answers_checked"].partition(",")[0]) > 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--requests.form", "image"), "requests.form = image"),
        (("--clients.hosts", "localhost"), "clients.hosts"),
        (("--load.network", "wifi"), "load.network"),
        (("--server.host", "0.0.0.0"), "server.host = 0.0.0.0"),
    ],
)
def test_what_would_travel_does_not_go_with_it(sandbox: Sandbox, flags: tuple[str, ...], says: str) -> None:
    done = sandbox.ask("run", "serve", "--wire", "kserve-shm", "--load.rate", "5", *flags, "--no-report")
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{says} does not go with wire kserve-shm" in done.stderr
