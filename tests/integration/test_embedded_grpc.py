"""Paceline's own server over gRPC, as a process: the answers of HTTP, and the same manners in bad company."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.benchmarks.serving.requests import encode
from paceline.load import kserve_grpc
from paceline.load.generator import drive
from paceline.load.kserve import Array
from paceline.load.parameters import LoadParameters
from paceline.load.request import Endpoint
from paceline.servers.base import Need, ServerFailed
from paceline.servers.embedded import MODEL, Embedded, EmbeddedSettings
from support.embedded import WEIGHTS, artifact_of, product
from support.embedded_client import ask
from support.stages import stages_of

grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install '.[serving]'")
Start = Callable[..., Embedded]
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A server that serves x @ WEIGHTS, started."""
    made: list[Embedded] = []

    def start(**settings: object) -> Embedded:
        folder = tmp_path / f"server-{len(made)}"
        folder.mkdir()
        need = Need("made-by-hand", wire="kserve-grpc")
        server = Embedded(EmbeddedSettings.read(settings), need, folder, lambda _: None)
        server.artifact = artifact_of(product(tmp_path / "model.onnx"))
        made.append(server)
        server.start()
        return server

    yield start
    for server in made:
        server.stop()


def called(where: Endpoint, message: bytes, method: str = "ModelInfer") -> tuple[bytes, dict[str, Any]]:
    """The answer to one call, and what came behind it."""
    with grpc.insecure_channel(f"{where.host}:{where.port}") as channel:
        answer, call = channel.unary_unary(f"/{kserve_grpc.SERVICE}/{method}").with_call(message, timeout=30)
        return answer, dict(call.trailing_metadata())


def refusal(where: Endpoint, message: bytes, method: str = "ModelInfer") -> tuple[str, str]:
    """The code of a call that fails, and what it says."""
    with pytest.raises(grpc.RpcError) as failure:
        called(where, message, method)
    return failure.value.code().name, failure.value.details()


def infer(x: Array, model: str = MODEL) -> bytes:
    return kserve_grpc.encode_request(model, {"x": x})


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_answers_and_stages_are_those_of_http(start: Start) -> None:
    server = start(engine="onnxruntime")
    message, trailer = called(server.endpoint("kserve-grpc"), infer(X))
    _, by_http = ask(server.endpoint("kserve-binary"), X)
    assert isinstance(by_http, dict)
    found = kserve_grpc.decode_response(message)
    assert found.keys() == by_http.keys()
    assert np.array_equal(found["y"], by_http["y"]) and np.allclose(found["y"], X @ WEIGHTS)
    stages = stages_of(trailer["x-paceline"])
    assert stages is not None and stages.size == 2 and stages.inference > 0 and stages.pre == 0
    assert server.statistics()["requests"]["ok"] == 2


def test_it_has_inference_alone(start: Start) -> None:
    where = start(engine="null").endpoint("kserve-grpc")
    assert refusal(where, b"", "ModelLoad")[0] == "UNIMPLEMENTED"


def test_malformed_calls_are_refused_and_harm_nobody(start: Start) -> None:
    server = start(engine="null", max_batch=2)
    where = server.endpoint("kserve-grpc")
    good = infer(X)
    wrong = [
        (b"", "the list is empty"),
        (b"\xff" * 20, "longer than 64 bits"),
        (good[:-1], "bytes, but only"),
        (kserve_grpc.encode_request(MODEL, {"x": X, "z": X}), "the model takes x"),
        (infer(X.astype(np.float64)), "'x' is FP64; the model takes FP32"),
        (infer(np.zeros((1, 4), np.float32)), "has the shape"),
        (infer(np.zeros((3, 3), np.float32)), r"the request has 3 samples; the server takes 1 to 2 (max_batch)"),
    ]
    for message, said in wrong:
        code, details = refusal(where, message)
        assert (code, said in details) == ("INVALID_ARGUMENT", True), (code, details)
    assert refusal(where, infer(X, "other"))[0] == "NOT_FOUND"
    with socket.create_connection((where.host, where.port)) as nonsense:
        nonsense.sendall(b"\x16\x03\x01 GET / HTTP/1.1\r\n\r\n")
        assert called(where, good)[0]
    assert server.is_alive()
    assert server.statistics()["requests"]["refused"] == len(wrong)
    assert "Traceback" not in server.logs()


def test_more_than_may_wait_is_declined_and_counted(start: Start) -> None:
    server = start(engine="null", max_batch=8, max_delay="2s", max_queue=3)
    load = LoadParameters(arrival="constant", rate=100, requests=20)
    where = server.endpoint("kserve-grpc")
    trace = drive(where, [encode({"x": X[:1]}, where)], load)
    counted = server.statistics()["requests"]
    assert int(trace.shed.sum()) == counted["shed"] > 0
    assert int(trace.ok.sum()) == counted["ok"] > 0
    assert set(trace.status) == {200, 429}
    assert np.isfinite(trace.stages["queue"][trace.ok]).all()


def test_a_cancelled_call_gives_its_place_away(start: Start) -> None:
    server = start(engine="null", max_batch=8, max_delay="10min", max_queue=1)
    where = server.endpoint("kserve-grpc")
    with grpc.insecure_channel(f"{where.host}:{where.port}") as channel:
        call = channel.unary_unary(where.path).future(infer(X))
        until(lambda: server.statistics()["queue"] == 1)
        assert refusal(where, infer(X))[0] == "RESOURCE_EXHAUSTED"
        call.cancel()
        until(lambda: server.statistics()["requests"]["cancelled"] == 1)
    assert server.statistics()["queue"] == 0
    with grpc.insecure_channel(f"{where.host}:{where.port}") as channel:
        with pytest.raises(grpc.RpcError) as failure:
            channel.unary_unary(where.path)(infer(X), timeout=0.3)
        assert failure.value.code().name == "DEADLINE_EXCEEDED"
    until(lambda: server.statistics()["requests"]["cancelled"] == 2)


def test_what_was_accepted_is_answered_before_it_ends(start: Start) -> None:
    server = start(engine="null", max_batch=8, max_delay="1s")
    where = server.endpoint("kserve-grpc")
    found: list[bytes] = []
    client = threading.Thread(target=lambda: found.append(called(where, infer(X))[0]))
    client.start()
    until(lambda: server.statistics()["queue"] == 1)
    server.stop()
    client.join(20)
    assert [kserve_grpc.decode_response(one).keys() for one in found] == [{"output"}]


def test_a_port_in_use_is_told_plainly(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerFailed, match=f"port {port} of 127.0.0.1 is in use; choose another one"):
            start(engine="null", grpc_port=port)
    assert start(engine="null", grpc_port=port).endpoint("kserve-grpc").port == port
