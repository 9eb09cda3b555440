"""Paceline's own server inside the test: real sockets, an event loop in a thread, an engine of the test's making."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from paceline.load.kserve import JSON_LENGTH, Array, TensorSpec, decode_response, encode_request
from paceline.servers._embedded.app import App
from paceline.servers._embedded.engines import Arrays, InferenceEngine, InferenceSession
from paceline.servers._embedded.http import listen
from paceline.servers._embedded.service import Policy, Service
from paceline.servers.base import Artifact
from paceline.servers.processing import Processing

PATH = "/v2/models/m/infer"
WEIGHTS = np.arange(9, dtype=np.float32).reshape(3, 3)


def artifact_of(path: Path | None = None, *, width: int = 3) -> Artifact:
    """One input x of some width (-1 for any), one output y."""
    x, y = TensorSpec("x", "FP32", (width,)), TensorSpec("y", "FP32", (width,))
    return Artifact("made-by-hand", "tiny", "eager" if path is None else "onnx", "fp32", 1, path, (x,), (y,))


def product(path: Path) -> Path:
    """y = x @ WEIGHTS as ONNX, which OpenVINO reads too."""
    onnx = pytest.importorskip("onnx", reason="needs it: pip install '.[serving]'")
    tensor = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [tensor("x", onnx.TensorProto.FLOAT, ["batch", 3])],
        [tensor("y", onnx.TensorProto.FLOAT, ["batch", 3])],
        [onnx.numpy_helper.from_array(WEIGHTS, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


@dataclass
class Doubling(InferenceEngine):
    """y = 2 x, after a while; remembers what it was given."""

    artifact: Artifact = field(default_factory=artifact_of)
    device: str = "cpu"
    pads: bool = False
    wait: Callable[[], object] = lambda: None
    seen: list[Array] = field(default_factory=list)

    def session(self, threads: int) -> InferenceSession:
        def run(inputs: Arrays) -> Arrays:
            self.wait()
            self.seen.append(inputs["x"])
            if np.isnan(inputs["x"]).any():
                raise FloatingPointError("not a number")
            return {"y": inputs["x"] * np.float32(2)}

        return run


@dataclass
class Running:
    """A server at a port of 127.0.0.1."""

    port: int
    service: Service
    app: App

    def ask(
        self, x: Array, *, binary: bool = True, name: str = "x"
    ) -> tuple[http.client.HTTPResponse, dict[str, Array] | bytes]:
        """One request on a connection of its own; the answer, read if it is one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            message = encode_request({name: x}, binary=binary)
            headers = {} if message.json_length is None else {JSON_LENGTH: str(message.json_length)}
            connection.request("POST", PATH, message.body, headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                return answer, body
            length = answer.headers.get(JSON_LENGTH)
            return answer, decode_response(body, int(length) if length else None)
        finally:
            connection.close()

    def wait(self, until: Callable[[], bool], seconds: float = 20.0) -> None:
        """Look until something has happened."""
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.002)


@contextmanager
def running(
    engine: InferenceEngine,
    *,
    max_batch: int = 4,
    max_delay: float = 0.002,
    max_queue: int = 100,
    instances: int = 1,
    sizes: tuple[int, ...] = (1,),
    processing: Processing | None = None,
) -> Iterator[Running]:
    """The server with this engine until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Running:
        app = App("m", "test")
        policy = Policy(max_batch, round(max_delay * 1e9), max_queue)
        service = Service("m", engine, policy, [(None, 1)] * instances, sizes, processing)
        server, _ = await listen(app, "127.0.0.1", 0)
        await service.start()
        app.service = service
        loop.server = server  # type: ignore[attr-defined]
        return Running(server.sockets[0].getsockname()[1], service, app)

    async def stop(made: Running) -> None:
        loop.server.close()  # type: ignore[attr-defined]
        made.service.close()

    try:
        made = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
        if isinstance(engine, Doubling):
            engine.seen.clear()  # of the warming up
        yield made
        asyncio.run_coroutine_threadsafe(stop(made), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
