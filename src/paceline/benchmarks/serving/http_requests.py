"""Requests of the user's own: a body with placeholders, filled in before the load begins, and one try of it."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.benchmarks.serving.requests import Requests
from paceline.benchmarks.serving.texts import WORDS, bad_dataset
from paceline.core.errors import InputError, unknown
from paceline.load.http11 import AnswerReader, Unreadable
from paceline.load.parameters import PROMPT
from paceline.load.request import Endpoint, Prepared, http_bytes
from paceline.models.sources.given import InputSpec, parse_inputs
from paceline.servers._any_http import AnyHttpSettings
from paceline.servers.base import ServerFailed

PLACEHOLDERS = ("index", "random", "text", "input")
MOST_BYTES = 256 * 2**20  # of all requests together, which every process that sends has
_PLACEHOLDER = re.compile(rb"\{\{\s*(\w+)\s*\}\}")
_RECEIVE = 65536
_MOST_ANSWER = 2**22  # bytes of the first answer


@dataclass(frozen=True)
class HttpTemplate:
    """What each request is made of."""

    body: bytes
    path: str
    is_json: bool
    lines: Sequence[bytes]  # of the user's file, one for each request; none without one
    specs: tuple[InputSpec, ...]  # of random numbers, where there is no file
    parameters: ServeParameters

    @classmethod
    def of(cls, parameters: ServeParameters, settings: AnyHttpSettings, path: str = "") -> HttpTemplate:
        """The template that the settings describe; InputError for one that cannot be filled in."""
        body, path = _read_body(settings.body or ""), path or settings.path or ""
        dataset = parameters.requests.dataset
        names = [name.decode() for text in (body, path.encode()) for name in _PLACEHOLDER.findall(text)]
        for name in names:
            if name not in PLACEHOLDERS:
                known = [f"{{{{{one}}}}}" for one in PLACEHOLDERS]
                raise unknown("placeholder in server.body", f"{{{{{name}}}}}", known, key="server.body")
        if "input" in names and dataset is None and parameters.input is None:
            message = (
                "{{input}} in server.body is a line of a file or random numbers: "
                "name the file with --requests.dataset lines.jsonl, or the shape with --input 1x3x224x224"
            )
            raise InputError("missing-key", message, key="requests.dataset")
        if dataset is not None and "input" not in names:
            message = "requests.dataset is not used: write {{input}} where its lines go, or --server.body '{{input}}'"
            raise InputError("conflicting-keys", message, key="requests.dataset", value=str(dataset))
        lines = _read_lines(dataset) if dataset is not None else []
        specs = parse_inputs(parameters.input) if parameters.input is not None and not lines else ()
        template = cls(body, path, settings.is_json and bool(body), lines, specs, parameters)
        template._require_json(template.request(0))
        return template

    @property
    def count(self) -> int:
        """How many different requests there are."""
        if self.lines:
            return len(self.lines)
        return self.parameters.requests.different if self.is_varied else 1

    @property
    def is_varied(self) -> bool:
        return _PLACEHOLDER.search(self.body) is not None or _PLACEHOLDER.search(self.path.encode()) is not None

    def request(self, index: int) -> Prepared:
        """One of them; the same for the same seed, whichever others are made."""
        random = np.random.default_rng(np.random.SeedSequence(self.parameters.seed, spawn_key=(4, index)))

        def fill(text: bytes, encode: Callable[[str], str]) -> bytes:
            return _PLACEHOLDER.sub(lambda match: encode(self._value(match[1].decode(), index, random)).encode(), text)

        path = fill(self.path.encode(), lambda value: quote(value, safe="")).decode() if self.is_varied else ""
        return Prepared(fill(self.body, lambda value: value), path=path)

    def _value(self, name: str, index: int, random: np.random.Generator) -> str:
        if name == "index":
            return str(index)
        if name == "random":
            return f"{random.random():.6f}"
        if name == "text":
            (length,) = (self.parameters.requests.prompt_tokens or PROMPT).draw(1, random)
            return " ".join(random.choice(WORDS, size=int(length)))
        if self.lines:
            return self.lines[index].decode()
        values = [_numbers(spec, random) for spec in self.specs]
        return json.dumps(values[0] if len(values) == 1 else values)

    def _require_json(self, request: Prepared) -> None:
        if not self.is_json:
            return
        try:
            json.loads(request.body)
        except (ValueError, RecursionError) as error:
            message = (
                f"server.body is not JSON when its placeholders are filled in: {error}; "
                "correct it, or say what it is with --server.header 'Content-Type: text/plain'"
            )
            raise InputError("not-json", message, key="server.body") from None


def http_requests(parameters: ServeParameters, settings: AnyHttpSettings, endpoint: Endpoint) -> Requests:
    """All different requests of a case."""
    template = HttpTemplate.of(parameters, settings, endpoint.path)
    prepared: list[Prepared] = []
    size = 0
    for index in range(template.count):
        request = template.request(index)
        size += len(request.body)
        if size > MOST_BYTES:
            message = f"the requests take more than {MOST_BYTES // 2**20} MiB: use fewer lines or requests.distinct"
            raise InputError("too-large", message, key="requests.distinct")
        prepared.append(request)
    dataset = parameters.requests.dataset
    source = f"lines of the user's file {dataset.name}, {settings.order}" if dataset is not None else "the user's own"
    return Requests(prepared, source, in_turn=settings.order == "in-turn")


def facts(settings: AnyHttpSettings, requests: Sequence[Prepared]) -> dict[str, Any]:
    """What was sent and what counted as good, without bodies and the values of headers."""
    digest = hashlib.sha256()
    for request in requests:
        digest.update(len(request.body).to_bytes(8, "little") + request.body)
    return {
        "method": settings.effective_method,
        "path": settings.path or "",
        "headers": sorted(settings.headers),
        "body_digest": f"sha256:{digest.hexdigest()}",
        "good_answer": str(settings.expected()),
    }


def try_request(endpoint: Endpoint, request: Prepared, timeout: float) -> None:
    """Send one request as the load does; ServerFailed with what came, if that is not a good answer."""
    expected = endpoint.expected
    assert expected is not None
    path = (request.path or endpoint.path).partition("?")[0]
    try:
        status, body = _exchange(endpoint, http_bytes(endpoint, request), timeout)
        problem = expected.problem(status, body)
    except (OSError, Unreadable) as error:
        problem = f"no answer in HTTP: {type(error).__name__}: {error}"
    if problem:
        size = f"{len(request.body):,} bytes" if request.body else "no body"
        raise ServerFailed(
            f"{endpoint.host}:{endpoint.port} did not answer as expected: {problem}\n"
            f"  sent:   {endpoint.method} {path}, {size}  (--server.method, --server.path, --server.body)\n"
            f"  status: {', '.join(expected.status)}  (--server.expect-status)\n"
            f"  JSON:   {', '.join(expected.json) or 'anything'}  (--server.expect-json)\n"
            f"  text:   {expected.text or 'anything'}  (--server.expect-text)"
        )


def _exchange(endpoint: Endpoint, request: bytes, timeout: float) -> tuple[int, bytes]:
    reader = AnswerReader()
    reader.expect(wants_body=True, wants_events=False)
    handle = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout)
    with closing(handle):
        if endpoint.tls:
            handle = ssl.create_default_context().wrap_socket(handle, server_hostname=endpoint.host)
        handle.sendall(request)
        is_whole = False
        while not is_whole:
            data = handle.recv(_RECEIVE)
            if not data and not reader.end():
                raise ConnectionResetError("the connection ended before the whole answer had come")
            is_whole = not data or reader.feed(data, 0) or reader.size > _MOST_ANSWER
    return reader.status, bytes(reader.body or b"")


def _read_body(body: str) -> bytes:
    if not body.startswith("@"):
        return body.encode()
    try:
        return Path(body[1:]).expanduser().read_bytes()
    except OSError as error:
        message = f"body = '{body}': the file cannot be read: {error.strerror}"
        raise InputError("unreadable-file", message, key="server.body", value=body) from None


def _read_lines(path: Path) -> list[bytes]:
    """The lines of a file, each a JSON value."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise bad_dataset("unreadable-file", path, f"cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                json.loads(line)
        except (ValueError, RecursionError) as error:
            message = f"the line is not JSON: {error}; write one request on each line"
            where = f"dataset {path}, line {number}"
            raise InputError("not-json", message, where=where, key="requests.dataset") from None
    if not (lines := [line.strip() for line in lines if line.strip()]):
        raise bad_dataset("no-lines", path, "it has no lines; write one request in JSON on each")
    return lines


def _numbers(spec: InputSpec, random: np.random.Generator) -> Any:
    if spec.type.startswith(("float", "bfloat")):
        return np.round(random.standard_normal(spec.sizes), 4).tolist()
    if spec.type == "bool":
        return (random.random(spec.sizes) < 0.5).tolist()
    return random.integers(0, min(spec.below, 127 if spec.type.endswith("int8") else spec.below), spec.sizes).tolist()
