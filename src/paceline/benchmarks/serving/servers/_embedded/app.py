"""The endpoints of the open inference protocol, and the life of the server process."""

from __future__ import annotations

import json
from typing import Any

from paceline.benchmarks.serving.protocol import shared_memory
from paceline.benchmarks.serving.protocol.kserve import (
    BINARY_TYPE,
    JSON_LENGTH,
    JSON_TYPE,
    Buffer,
    Message,
    Request,
    decode_request,
    encode_response,
)
from paceline.benchmarks.serving.protocol.stages import HEADER, Stages
from paceline.benchmarks.serving.protocol.values import ProtocolError
from paceline.benchmarks.serving.servers._embedded.batcher import Waiting
from paceline.benchmarks.serving.servers._embedded.http import Connection, Head
from paceline.benchmarks.serving.servers._embedded.regions import Regions
from paceline.benchmarks.serving.servers._embedded.service import Overloaded, Service, now
from paceline.version import VERSION

_TYPE_JSON = f"Content-Type: {JSON_TYPE}\r\n".encode()
_HEADERS_JSON = f"Content-Type: {JSON_TYPE}\r\n{HEADER}: %b\r\n".encode()
_HEADERS_BINARY = f"Content-Type: {BINARY_TYPE}\r\n{JSON_LENGTH}: %d\r\n{HEADER}: %b\r\n".encode()


class App:
    """Routes requests; until it has a service, and once it is told to end, it is alive but not ready."""

    def __init__(self, name: str, platform: str, regions: Regions | None = None) -> None:
        self.service: Service | None = None
        self.is_ending = False
        self.name = name
        self.platform = platform
        self.regions = regions  # None takes no tensors from shared memory
        self._model = f"/v2/models/{name}"
        self._infer = f"{self._model}/infer"

    @property
    def _extensions(self) -> list[str]:
        shared = ["system_shared_memory"] if self.regions is not None else []
        return ["binary_tensor_data", "model_statistics", *shared]

    @property
    def is_ready(self) -> bool:
        return self.reason_not_ready() is None

    def reason_not_ready(self) -> str | None:
        """Why no request is taken; None if they are."""
        if self.service is None:
            return f"the model '{self.name}' is being loaded"
        return f"the model '{self.name}' is shutting down" if self.is_ending else None

    def explain(self, error: Exception) -> str:
        """What became of a request that was taken but not answered well."""
        if isinstance(error, ProtocolError):
            return str(error)
        return f"the engine failed: {type(error).__name__}: {error}"[:2000]

    def handle(self, connection: Connection, head: Head, body: Buffer) -> None:
        received = now()
        if head.path == self._infer and head.method == "POST":
            self._answer_inference(connection, head, body, received)
        elif self.regions is not None and head.path.startswith(shared_memory.PATH):
            self._answer_about_memory(connection, head, body, self.regions)
        elif head.method == "GET":
            self._answer_question(connection, head.path)
        else:
            allowed = "POST" if head.path == self._infer else "GET"
            connection.answer_error(
                405, f"{head.path} takes {allowed}, not {head.method}", f"Allow: {allowed}\r\n".encode(), close=True
            )

    def gone(self, connection: Connection) -> None:
        if self.service is not None and isinstance(connection.ticket, Waiting):
            self.service.cancel(connection.ticket)

    def _answer_inference(self, connection: Connection, head: Head, body: Buffer, received: int) -> None:
        reason = self.reason_not_ready()
        if reason is not None:
            connection.answer_error(503, reason, b"Retry-After: 1\r\n")
            return
        service = self.service
        assert service is not None

        def answer(found: Message | Exception, stages: Stages | None) -> None:
            connection.ticket = None
            if isinstance(found, Exception):
                connection.answer_error(400 if isinstance(found, ProtocolError) else 500, self.explain(found))
                return
            told, length = str(stages).encode(), found.json_length
            headers = _HEADERS_JSON % told if length is None else _HEADERS_BINARY % (length, told)
            connection.answer(200, found.parts, headers)

        try:
            waiting = service.submit(self._read(body, head.json_length), received, answer, encode_response)
        except ProtocolError as error:
            service.statistics.requests["refused"] += 1
            connection.answer_error(400, str(error))
        except Overloaded as error:
            connection.answer_error(503, str(error), b"Retry-After: 1\r\n")
        else:
            if not waiting.payload.is_answered:
                connection.ticket = waiting

    def _read(self, body: Buffer, json_length: int | None) -> Request:
        return decode_request(body, json_length, None if self.regions is None else self.regions.part)

    def _answer_about_memory(self, connection: Connection, head: Head, body: Buffer, regions: Regions) -> None:
        """Register a region, forget one or all, or tell of them."""
        words = head.path.removeprefix(shared_memory.PATH).split("/")
        match head.method, *words:
            case "GET", "status":
                found = regions.describe()
            case "GET", "region", name, "status":
                found = regions.describe(name)
            case "POST", "unregister":
                regions.unregister()
                found = []
            case "POST", "region", name, "unregister":
                regions.unregister(name)
                found = []
            case "POST", "region", name, "register":
                try:
                    regions.register(name, json.loads(bytes(body)))
                except ProtocolError as error:
                    connection.answer_error(400, str(error))
                    return
                except (ValueError, RecursionError) as error:
                    connection.answer_error(400, f"the body is not JSON: {error}")
                    return
                found = []
            case _:
                connection.answer_error(404, f"no {head.path[:200]} here for {head.method}")
                return
        connection.answer(200, (json.dumps(found).encode() if head.method == "GET" else b"{}",), _TYPE_JSON)

    def _answer_question(self, connection: Connection, path: str) -> None:
        if path == "/v2":
            found: Any = {"name": "paceline", "version": VERSION, "extensions": self._extensions}
        elif path == "/v2/health/live":
            found = {"live": True}
        elif path in ("/v2/health/ready", f"{self._model}/ready"):
            body = json.dumps({"name": self.name, "ready": self.is_ready}).encode()
            connection.answer(200 if self.is_ready else 503, (body,), _TYPE_JSON)
            return
        elif path in (self._model, f"{self._model}/stats"):
            if self.service is None:
                connection.answer_error(503, f"the model '{self.name}' is being loaded", b"Retry-After: 1\r\n")
                return
            found = self.service.describe() if path.endswith("/stats") else self._metadata(self.service)
        elif path.startswith("/v2/models/") and not path.startswith(f"{self._model}/"):
            connection.answer_error(404, f"there is no model for {path[:200]}; this server has '{self.name}'")
            return
        else:
            status = 405 if path == self._infer else 404
            connection.answer_error(status, f"{path[:200]} takes POST" if status == 405 else f"no {path[:200]} here")
            return
        connection.answer(200, (json.dumps(found).encode(),), _TYPE_JSON)

    def _metadata(self, service: Service) -> dict[str, Any]:
        return {
            "name": self.name,
            "versions": ["1"],
            "platform": self.platform,
            "inputs": [spec.metadata for spec in service.takes],
            "outputs": [spec.metadata for spec in service.outputs],
        }
