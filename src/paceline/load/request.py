"""Where a server listens, and requests that are ready to go: encoded once, sent many times, alone or in conversations.

Workers import this: nothing but the standard library.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from paceline.core.errors import InputError
from paceline.load.expected import Expected

# Letters of a word that is chosen as a prompt is sent: many common words have as many, and most tokenizers take each as
# one token.
WIDTH = 4
MOST_WORDS = 5  # of them in a prompt: of 64 words, enough for a thousand million prompts


@dataclass(frozen=True)
class Slot:
    """Where the words of one kind of request go."""

    at: int = 0  # bytes into the request
    words: int = 0  # how many; none for a request that is sent as it is


NO_SLOT = Slot()


@dataclass(frozen=True)
class FreshWords:
    """The words to choose from, so that no cache of prefixes has seen a prompt, and which prompts are this worker's.

    They have one length, so that a request stays as long as it was prepared.
    """

    words: tuple[str, ...] = ()
    first: int = 0
    step: int = 1

    @classmethod
    def drawn(cls, words: Sequence[str]) -> FreshWords:
        """Prompts that begin anywhere, so that those of an earlier load are hardly ever met again."""
        fitting = tuple(dict.fromkeys(word for word in words if len(word) == WIDTH and word.isascii()))
        return cls(fitting, secrets.randbelow(len(fitting) ** MOST_WORDS) if fitting else 0)

    def of_worker(self, number: int, workers: int) -> FreshWords:
        """Those of one of several workers."""
        return replace(self, first=self.first + number, step=workers)

    def put_into(self, payload: bytes, slot: Slot, row: int) -> bytes:
        """The request with the words of this row; the first word changes from each prompt to the next."""
        number, chosen = self.first + row * self.step, []
        for _ in range(slot.words):
            number, index = divmod(number, len(self.words))
            chosen.append(self.words[index])
        text = " ".join(chosen).encode()
        return payload[: slot.at] + text + payload[slot.at + len(text) :]


NO_WORDS = FreshWords()
_LENGTH = b"content-length: %d\r\n"


@dataclass(frozen=True)
class Turn:
    """What one kind of request is to the others of its conversation; kinds are counted from 0.

    A conversation, an agent with parallel calls and a request that stands alone are the same thing here: kinds of
    requests, some of which follow others.
    """

    follows: tuple[int, ...] = ()  # kinds whose answers it waits for; none for one that begins a conversation
    wait: float = 0.0  # seconds after the last of them
    quotes: tuple[tuple[int, int], ...] = ()  # bytes into the request, and the kind whose answer goes there; in order
    depth: int = 1  # how many requests one after the other, with this one
    close_after: float = 0.0  # seconds after which its user has gone, if there is no whole answer by then
    close_chunks: int = 0  # the same by the pieces of text that have come


ALONE = Turn()


def followers(turns: Sequence[Turn]) -> dict[int, list[int]]:
    """The kinds that follow each kind."""
    found: dict[int, list[int]] = {}
    for kind, turn in enumerate(turns):
        for before in turn.follows:
            found.setdefault(before, []).append(kind)
    return found


def sizes(turns: Iterable[Turn]) -> list[int]:
    """How many requests each conversation has; its first one comes before the others, and those before the next."""
    counts: list[int] = []
    for turn in turns:
        if turn.follows:
            counts[-1] += 1
        else:
            counts.append(1)
    return counts


def longest_wait(turns: Sequence[Turn], timeout: float) -> float:
    """Seconds from the end of a first request to the end of the last one that follows it, at most."""
    until: list[float] = []
    for turn in turns:
        until.append(max(until[kind] for kind in turn.follows) + turn.wait + timeout if turn.follows else 0.0)
    return max(until, default=0.0)


def quoting(payload: bytes, turn: Turn, answers: Mapping[int, str]) -> bytes:
    """The request with the answers in their places, and the length that it has with them."""
    parts, last = [], 0
    for at, kind in turn.quotes:
        parts += [payload[last:at], json.dumps(answers[kind])[1:-1].encode()]
        last = at
    whole = b"".join([*parts, payload[last:]])
    body = len(payload) - payload.index(b"\r\n\r\n") - 4
    return whole.replace(_LENGTH % body, _LENGTH % (body + len(whole) - len(payload)), 1)


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
