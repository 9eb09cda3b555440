"""Paceline's own server as a process: engines, bad clients, bad days, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from paceline.load.kserve import JSON_LENGTH, Array, encode_request
from paceline.load.request import Endpoint
from paceline.servers import SERVERS
from paceline.servers._program import answers
from paceline.servers.base import Artifact, Need, ServerFailed
from paceline.servers.embedded import Embedded, EmbeddedSettings
from support.embedded import WEIGHTS, artifact_of, product
from support.embedded_client import ask, raw
from support.refused import refused

Start = Callable[..., Embedded]
NOTHING = {"x": np.zeros((1, 3), np.float32)}
SMALL_TRANSFORMER = "generated/transformer:layers=2,width=128,heads=4,sequence=16"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Start]:
    """A server that serves x @ WEIGHTS, or whatever artifact is given; not started."""
    made: list[Embedded] = []

    def make(artifact: Artifact | None = None, **settings: object) -> Embedded:
        folder = tmp_path / f"server-{len(made)}"
        folder.mkdir()
        server = Embedded(EmbeddedSettings.read(settings), Need("made-by-hand"), folder, lambda _: None)
        server.artifact = artifact or artifact_of(product(tmp_path / "model.onnx"))
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()


def has_ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while not all(map(has_ended, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_an_engine_answers_what_the_model_says(make: Start, engine: str) -> None:
    pytest.importorskip(engine, reason="needs it: pip install '.[serving]'")
    server = make(engine=engine, instances=2)
    assert server.start() > 0
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for wire in ("kserve-json", "kserve-binary"):
        _, found = ask(server.endpoint(wire), x)
        assert isinstance(found, dict)
        assert np.allclose(found["y"], x @ WEIGHTS)
    facts = server.describe()
    assert facts["versions"][engine]
    assert len(facts["threads"]) == 2
    assert server.statistics()["requests"]["ok"] == 2
    pids = server.processes()
    assert pids
    server.stop()
    assert not server.is_alive()
    assert gone(pids)


def test_it_is_found_by_its_name() -> None:
    assert SERVERS.registry().get("embedded") is Embedded


def test_cpus_that_are_not_there_are_told(make: Start) -> None:
    with pytest.raises(ServerFailed, match=r"cpus = \[99999\]: this process may use"):
        make(engine="null", cpus=[99999]).start()


def test_malformed_requests_are_answered_and_harm_nobody(make: Start) -> None:
    server = make(engine="null")
    server.start()
    where = server.endpoint("kserve-json")
    assert raw(where, b"\x16\x03\x01 nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(where, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").startswith(b"HTTP/1.1 411")
    huge = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n"
    assert raw(where, huge).startswith(b"HTTP/1.1 413")
    assert raw(where, b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000).startswith(b"HTTP/1.1 431")
    with socket.create_connection((where.host, where.port)) as half:
        half.sendall(b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Le")
        assert ask(where, np.zeros((1, 3), np.float32))[0] == 200
    assert server.is_alive()
    assert "Traceback" not in server.logs()


def test_killed_under_load_clients_get_errors_and_nothing_is_left(make: Start) -> None:
    server = make(engine="null", max_batch=4)
    server.start()
    where, pids = server.endpoint("kserve-binary"), server.processes()
    ends: list[str] = []
    clients = [threading.Thread(target=until_it_ends, args=(where, ends)) for _ in range(4)]
    for client in clients:
        client.start()
    deadline = time.monotonic() + 20
    while server.statistics()["requests"]["ok"] < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for client in clients:
        client.join(20)
    assert ends == ["error"] * 4
    assert gone(pids)
    assert not server.is_alive()
    with pytest.raises(ServerFailed, match="reports no statistics"):
        server.statistics()
    server.stop()


def until_it_ends(where: Endpoint, ends: list[str], inputs: Mapping[str, Array] = NOTHING) -> None:
    message = encode_request(inputs, binary=True)
    head = f"POST {where.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(message.body)}\r\n"
    request = f"{head}{JSON_LENGTH}: {message.json_length}\r\n\r\n".encode() + message.body
    try:
        with socket.create_connection((where.host, where.port), timeout=60) as connection:
            while True:
                connection.sendall(request)
                if not connection.recv(65_536):
                    raise ConnectionResetError
    except TimeoutError:
        ends.append("hung")
    except OSError:
        ends.append("error")


def test_what_was_accepted_is_answered_before_it_ends(make: Start) -> None:
    server = make(engine="null", max_batch=8, max_delay="1s")
    server.start()
    where = server.endpoint("kserve-binary")
    statuses: list[int] = []
    client = threading.Thread(target=lambda: statuses.append(ask(where, np.zeros((1, 3), np.float32))[0]))
    client.start()
    deadline = time.monotonic() + 20
    while server.statistics()["queue"] == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    server.stop()
    client.join(20)
    assert statuses == [200]
    assert not answers(where.host, where.port, "/v2/health/live")


def test_a_port_in_use_is_told_plainly(make: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = make(engine="null", port=port)
        with pytest.raises(ServerFailed, match=f"port {port} of 127.0.0.1 is in use; choose another one"):
            server.start()
    assert not server.is_alive()
    assert server.processes() == []
    server.start()  # now it is free
    assert server.endpoint("kserve-json").port == port


def test_an_engine_that_is_never_ready_is_given_up(make: Start, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs it: pip install '.[serving]'")
    endless = tmp_path / "endless.onnx"
    os.mkfifo(endless)  # whoever reads it waits for ever
    server = make(replace(artifact_of(endless), format="onnx"), engine="onnxruntime", ready_timeout="2s")
    with pytest.raises(ServerFailed, match="not ready after 2 s"):
        server.start()
    assert not server.is_alive()


def test_an_engine_that_cannot_read_the_model_says_so(make: Start, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs it: pip install '.[serving]'")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    server = make(artifact_of(tmp_path / "broken.onnx"), engine="onnxruntime")
    with pytest.raises(ServerFailed, match=r"the engine onnxruntime failed: .*broken\.onnx") as failure:
        server.start()
    assert "Traceback" in failure.value.logs


@pytest.mark.parametrize(
    ("settings", "device", "code"),
    [
        ({"preferred": [2, 9]}, "cpu", "out-of-range"),
        ({"cpus": [0, 0]}, "cpu", "duplicate-cpu"),
        ({"cpus": []}, "cpu", "empty-list"),
        ({"engine": "openvino"}, "cuda:0", "needs-cpu"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], device: str, code: str) -> None:
    with refused(code, key=f"server.{next(iter(settings))}"):
        Embedded.check(EmbeddedSettings.read(settings), Need("resnet18", device=device))


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        "torch",
        "torchscript",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("torch-export", "torch-compile")),
    ],
)
def test_engines_of_torch_answer_what_the_eager_model_says(make: Start, tmp_path: Path, engine: str) -> None:
    import torch

    from paceline.servers.export import export, load_module, sample_inputs

    model = "generated/transformer"
    kind = engine if engine in ("torchscript", "torch-export") else "eager"
    artifact = export(Need(model, "tiny"), kind, tmp_path)  # type: ignore[arg-type]
    module = load_module(artifact)
    server = make(artifact, engine=engine, max_batch=2, threads=1, ready_timeout="10min")
    server.start()
    where = server.endpoint("kserve-binary")
    for sample in sample_inputs(artifact, 3, seed=1):
        [(name, x)] = sample.items()
        status, found = ask(where, x[None], name=name)
        assert status == 200
        assert isinstance(found, dict)
        with torch.no_grad():
            expected = module(torch.from_numpy(x[None])).numpy()
        assert np.allclose(found[artifact.outputs[0].name], expected, rtol=1e-3, atol=1e-4)
    assert (server.describe()["padded_to"] == [1, 2]) == (engine == "torch-compile")


@pytest.mark.long
def test_batching_pays_where_small_work_is_computed_with_much_ado(make: Start, tmp_path: Path) -> None:
    from paceline.servers.export import export, sample_inputs

    artifact = export(Need(SMALL_TRANSFORMER), "eager", tmp_path)
    [sample] = sample_inputs(artifact, 1, seed=1)
    served = {}
    for max_batch in (1, 8):
        server = make(artifact, engine="torch", max_batch=max_batch, threads=1)
        server.start()
        where = server.endpoint("kserve-binary")
        ends: list[str] = []
        inputs = {name: x[None] for name, x in sample.items()}
        clients = [threading.Thread(target=until_it_ends, args=(where, ends, inputs)) for _ in range(16)]
        for client in clients:
            client.start()
        time.sleep(3)
        counted = server.statistics()
        served[max_batch] = counted["requests"]["ok"] / counted["instances"][0]["busy_seconds"]
        server.stop()
        for client in clients:
            client.join(20)
        assert max(map(int, counted["batches"])) == max_batch
    assert served[8] > 1.5 * served[1]
