"""The configuration of the server process, and the endpoints of the open inference protocol."""

from __future__ import annotations

import json
import mmap
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paceline.core.network import FromNetwork
from paceline.core.parameters import OnOff
from paceline.core.quantity import Duration
from paceline.load import shared_memory
from paceline.load.http11 import RequestHead
from paceline.load.kserve import (
    BINARY_TYPE,
    JSON_LENGTH,
    JSON_TYPE,
    Buffer,
    Message,
    ProtocolError,
    decode_request,
    encode_response,
)
from paceline.load.shared_memory import FOLDER, PREFIX
from paceline.load.trace import HEADER, Stages
from paceline.servers._embedded.http import Connection
from paceline.servers._embedded.service import Overloaded, Service, Ticket, now
from paceline.servers.base import Artifact, Need, ServerSettings
from paceline.servers.processing import Processing
from paceline.version import VERSION

EngineName = Literal["null", "torch", "torch-compile", "torchscript", "torch-export", "onnxruntime", "openvino"]

DRAIN = 3.0  # seconds to answer what is in work when it has to end
GraphChoice = Annotated[Literal["auto", "off"], OnOff]


class EmbeddedSettings(ServerSettings):
    """How Paceline's own server computes and batches."""

    engine: EngineName = "torch"
    """What computes; null answers at once, to measure the server itself"""
    graph: GraphChoice = "auto"
    """Whether torch-compile and language models replay each batch as one CUDA graph: auto where that can be, off
    launches every kernel"""
    max_batch: int = Field(default=8, ge=1, le=65_536)
    """Samples that are computed together, at most; 1 computes each request by itself"""
    max_delay: Duration = Field(default=0.002, le=3600)
    """How long a request waits for others while an instance is free, at most"""
    preferred: tuple[int, ...] = ()
    """Batch sizes that are computed without waiting for more; also what torch-compile pads to"""
    max_sequences: int = Field(default=64, ge=1, le=4096)
    """Language models: sequences that are decoded together, at most"""
    max_length: int | None = Field(default=None, ge=2)
    """Language models: tokens of a prompt and its answer together, at most; unset is the model's context"""
    prefill_tokens: int = Field(default=2048, ge=16)
    """Language models: tokens of prompts that are computed between two steps of decoding, at most"""
    kv_blocks: int | None = Field(default=None, ge=1)
    """Language models: blocks of 16 tokens in the KV cache; unset is enough for all sequences, if there is memory"""
    prefix_caching: bool = False
    """Language models: reuse what earlier requests with the same beginning have computed"""
    max_queue: int = Field(default=1000, ge=1)
    """Requests that wait, at most; more are declined with 503"""
    instances: int = Field(default=1, ge=1, le=1024)
    """How many batches are computed side by side"""
    threads: int | None = Field(default=None, ge=1)
    """Threads of each instance; as many as it has CPUs unless set"""
    cpus: tuple[int, ...] | None = None
    """CPUs to compute on, divided among the instances; all that there are unless set"""
    host: Annotated[str, FromNetwork(never="is an address to listen at")] = "127.0.0.1"
    """Address to listen at"""
    port: int = Field(default=0, ge=0, le=65_535)
    """Port to listen at; 0 for any that is free"""
    grpc_port: int = Field(default=0, ge=0, le=65_535)
    """Port to listen at for gRPC, where requests come by it (wire: kserve-grpc); 0 for any that is free"""


class ServerConfiguration(EmbeddedSettings):
    """All that the server's process reads when it starts."""

    name: str  # of the model, as clients say it
    need: Need
    artifact: Artifact | None  # None for a language model that is asked for text
    processing: Processing | None  # of images or texts; None takes tensors


_KEY = re.compile(rf"/?({PREFIX}[A-Za-z0-9._-]{{1,200}})")
_MOST = 64  # regions; each takes a descriptor

_HEADERS_JSON = f"Content-Type: {JSON_TYPE}\r\n{HEADER}: %b\r\n".encode()
_HEADERS_BINARY = f"Content-Type: {BINARY_TYPE}\r\n{JSON_LENGTH}: %d\r\n{HEADER}: %b\r\n".encode()


@dataclass(frozen=True)
class Region:
    """A part of named memory, under a name of its own."""

    key: str
    offset: int
    size: int
    memory: mmap.mmap


class Regions:
    """What clients have registered. A region stays mapped as long as a request uses it, also if it is unregistered.

    A client that truncates the memory of a region ends the server that uses it: those on this machine are trusted.
    """

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def register(self, name: str, region: Any) -> None:
        """Map {"key": ..., "offset": ..., "byte_size": ...}; ProtocolError if that is not possible."""
        if not isinstance(region, Mapping):
            raise ProtocolError("the body must be a JSON object with 'key', 'offset' and 'byte_size'")
        key, offset, size = region.get("key"), region.get("offset", 0), region.get("byte_size")
        match = _KEY.fullmatch(key) if isinstance(key, str) else None
        if match is None:
            raise ProtocolError(f"key: {key!r:.80} is not the name of shared memory for this, like /{PREFIX}1")
        if type(offset) is not int or type(size) is not int or offset < 0 or size < 1:
            raise ProtocolError(f"offset {offset!r:.40} and byte_size {size!r:.40} must be numbers of bytes")
        if name in self._regions:
            raise ProtocolError(f"there is a region '{name}' already: unregister it, or choose another name")
        if len(self._regions) >= _MOST:
            raise ProtocolError(f"there are {_MOST} regions already: unregister some")
        self._regions[name] = Region(str(key), offset, size, _mapped(FOLDER / match[1], offset + size))

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all of them."""
        if name is None:
            self._regions.clear()
        else:
            self._regions.pop(name, None)

    def part(self, name: str, offset: int, size: int) -> memoryview:
        """So many bytes of a region; ProtocolError if it is missing or too small."""
        region = self._regions.get(name)
        if region is None:
            raise ProtocolError(f"there is no region '{name}'; register it first")
        if offset + size > region.size:
            raise ProtocolError(f"region '{name}' has {region.size} bytes, not {offset} + {size}")
        begin = region.offset + offset
        return memoryview(region.memory)[begin : begin + size]

    def describe(self, name: str | None = None) -> list[dict[str, Any]]:
        """All regions, or the one of this name."""
        return [
            {"name": one, "key": region.key, "offset": region.offset, "byte_size": region.size}
            for one, region in self._regions.items()
            if name in (None, one)
        ]


def _mapped(path: Path, size: int) -> mmap.mmap:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ProtocolError(f"shared memory '{path.name}' cannot be opened: {error.strerror}") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ProtocolError(f"'{path.name}' is not shared memory")
        if size > status.st_size:
            raise ProtocolError(f"shared memory '{path.name}' has {status.st_size} bytes, not {size}")
        # Its pages are looked up now, not by the first requests.
        return mmap.mmap(handle, size, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise ProtocolError(f"shared memory '{path.name}' cannot be mapped: {error}") from None
    finally:
        with suppress(OSError):
            os.close(handle)


class App:
    """Routes requests; until it has a service, and once it has to end, it is alive but not ready."""

    def __init__(self, name: str, platform: str, regions: Regions | None = None) -> None:
        self.service: Service | None = None
        self.is_ending = False
        self.name = name
        self.platform = platform
        self.regions = regions  # None takes no tensors from shared memory
        self._model = f"/v2/models/{name}"
        self._infer = f"{self._model}/infer"

    @property
    def is_ready(self) -> bool:
        return self.reason_not_ready() is None

    def reason_not_ready(self) -> str | None:
        """Why requests are declined; None if they are accepted."""
        if self.service is None:
            return f"the model '{self.name}' is being loaded"
        return f"the model '{self.name}' is shutting down" if self.is_ending else None

    def explain(self, error: Exception) -> str:
        """The message for a request that was accepted but failed."""
        if isinstance(error, ProtocolError):
            return str(error)
        return f"the engine failed: {type(error).__name__}: {error}"[:2000]

    def handle(self, connection: Connection, head: RequestHead, body: Buffer) -> None:
        """Leads to exactly one `connection.answer()`, now or later, unless the client is `gone`.

        The body is valid until it is answered, and must not be a part of the answer.
        """
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
        """The client left before it had its answer."""
        if self.service is not None and isinstance(connection.ticket, Ticket):
            self.service.cancel(connection.ticket)

    def _answer_inference(self, connection: Connection, head: RequestHead, body: Buffer, received: int) -> None:
        reason = self.reason_not_ready()
        if reason is not None:
            connection.answer_error(503, reason, b"Retry-After: 1\r\n")
            return
        service = self.service
        assert service is not None

        def answer(result: Message | Exception, stages: Stages | None) -> None:
            connection.ticket = None
            if isinstance(result, Exception):
                connection.answer_error(400 if isinstance(result, ProtocolError) else 500, self.explain(result))
                return
            timing, length = str(stages).encode(), result.json_length
            headers = _HEADERS_JSON % timing if length is None else _HEADERS_BINARY % (length, timing)
            connection.answer(200, result.parts, headers)

        try:
            request = decode_request(body, head.json_length, None if self.regions is None else self.regions.part)
            ticket = service.submit(request, received, answer, encode_response)
        except ProtocolError as error:
            service.statistics.requests["refused"] += 1
            connection.answer_error(400, str(error))
        except Overloaded as error:
            connection.answer_error(503, str(error), b"Retry-After: 1\r\n")
        else:
            if not ticket.is_answered:
                connection.ticket = ticket

    def _answer_about_memory(self, connection: Connection, head: RequestHead, body: Buffer, regions: Regions) -> None:
        """Register a region, unregister one or all, or list them."""
        result: Any = {}
        match head.method, *head.path.removeprefix(shared_memory.PATH).split("/"):
            case "GET", "status":
                result = regions.describe()
            case "GET", "region", name, "status":
                result = regions.describe(name)
            case "POST", "unregister":
                regions.unregister()
            case "POST", "region", name, "unregister":
                regions.unregister(name)
            case "POST", "region", name, "register":
                try:
                    regions.register(name, json.loads(bytes(body)))
                except ProtocolError as error:
                    connection.answer_error(400, str(error))
                    return
                except (ValueError, RecursionError) as error:
                    connection.answer_error(400, f"the body is not JSON: {error}")
                    return
            case _:
                connection.answer_error(404, f"no {head.path[:200]} here for {head.method}")
                return
        connection.answer_json(result)

    def _answer_question(self, connection: Connection, path: str) -> None:
        service = self.service
        if path == "/v2":
            shared = ["system_shared_memory"] if self.regions is not None else []
            extensions = ["binary_tensor_data", "model_statistics", *shared]
            connection.answer_json({"name": "paceline", "version": VERSION, "extensions": extensions})
        elif path == "/v2/health/live":
            connection.answer_json({"live": True})
        elif path in ("/v2/health/ready", f"{self._model}/ready"):
            connection.answer_json({"name": self.name, "ready": self.is_ready}, 200 if self.is_ready else 503)
        elif path in (self._model, f"{self._model}/stats") and service is None:
            connection.answer_error(503, f"the model '{self.name}' is being loaded", b"Retry-After: 1\r\n")
        elif path == self._model and service is not None:
            model = {"name": self.name, "versions": ["1"], "platform": self.platform}
            tensors = {"inputs": service.takes, "outputs": service.outputs}
            connection.answer_json(model | {key: [spec.metadata for spec in specs] for key, specs in tensors.items()})
        elif path == f"{self._model}/stats" and service is not None:
            connection.answer_json(service.describe())
        elif path == self._infer:
            connection.answer_error(405, f"{path[:200]} takes POST")
        elif path.startswith("/v2/models/") and not path.startswith(f"{self._model}/"):
            connection.answer_error(404, f"there is no model for {path[:200]}; this server has '{self.name}'")
        else:
            connection.answer_error(404, f"no {path[:200]} here")
