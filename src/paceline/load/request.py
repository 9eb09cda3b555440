"""Where a server listens, and requests that are ready to go: encoded once, sent many times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from paceline.core.errors import InputError
from paceline.load.expected import Expected
from paceline.load.fresh import NO_SLOT, Slot
from paceline.load.turn import ALONE, Turn

# kserve-json: the JSON body of the open inference protocol, at whatever path; kserve-binary: tensors as raw bytes
# behind a JSON header; kserve-grpc; kserve-shm: JSON that says where in shared memory the tensors lie; http: whatever
# the user's own requests are; the others are what servers of language models speak.
Wire = Literal[
    "kserve-json", "kserve-binary", "kserve-grpc", "kserve-shm", "openai-chat", "openai-completions",
    "openai-responses", "anthropic-messages", "openai-embeddings", "rerank", "http",
]  # fmt: skip
LANGUAGE_PATHS: dict[Wire, str] = {
    "openai-chat": "/v1/chat/completions",
    "openai-completions": "/v1/completions",
    "openai-responses": "/v1/responses",
    "anthropic-messages": "/v1/messages",
    "openai-embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
}
WIRE_HEADERS: dict[Wire | None, dict[str, str]] = {"anthropic-messages": {"anthropic-version": "2023-06-01"}}
TEXT_WIRES = tuple(LANGUAGE_PATHS)[:4]  # whose answers are texts, as a whole or piece by piece
ClientName = Literal["c", "python"]  # which one sends
ClientChoice = Literal["auto", "c", "python"]
Form = Literal["image", "text"]  # what a sample may be that is not yet a tensor


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, and what it speaks."""

    wire: Wire
    host: str
    port: int
    path: str  # of an inference request; the method's name for gRPC
    model: str  # as the server calls it
    tls: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets: never in results
    hidden: tuple[str, ...] = field(default=(), repr=False)  # secrets, which a server may repeat in its errors
    method: str = "POST"
    expected: Expected | None = None  # what a good answer is, where the status 200 alone does not say it

    @property
    def is_grpc(self) -> bool:
        return self.wire == "kserve-grpc"

    @property
    def is_language(self) -> bool:
        return self.wire in LANGUAGE_PATHS


@dataclass(frozen=True)
class Prepared:
    """One kind of request, encoded."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    samples: int = 1  # the batch of this request
    before: float = 0.0  # seconds that its user's machine needs to make it, before it is sent
    after: float = 0.0  # seconds that it needs to process the answer
    path: str = ""  # where it is not the endpoint's
    fresh: Slot = NO_SLOT  # words of a prompt that are chosen when it is sent; counted from the begin of the body
    turn: Turn = ALONE  # of a conversation; bytes counted from the begin of the body, too


def http_bytes(endpoint: Endpoint, prepared: Prepared) -> bytes:
    """The whole request as it goes through the socket; its own headers win over those of the endpoint."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    headers = {"host": f"{host}:{endpoint.port}"}
    has_body = bool(prepared.body) or endpoint.method in ("POST", "PUT", "PATCH")
    headers |= WIRE_HEADERS.get(endpoint.wire, {}) | ({"content-type": "application/json"} if has_body else {})
    for name, value in (*endpoint.headers.items(), *prepared.headers.items()):
        headers[name.lower()] = value
    headers |= {"content-length": str(len(prepared.body))} if has_body else {}
    lines = [
        f"{endpoint.method} {prepared.path or endpoint.path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if any(ord(character) < 32 or ord(character) == 127 for line in lines for character in line):
        message = "a header or the path of the endpoint holds a control character; remove it"
        raise InputError("control-character", message)  # without its value: a header may hold a secret
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + prepared.body


def grpc_metadata(endpoint: Endpoint, prepared: Prepared) -> tuple[tuple[str, str], ...]:
    """The headers of a gRPC call."""
    merged = {name.lower(): value for name, value in (*endpoint.headers.items(), *prepared.headers.items())}
    return tuple(merged.items())
