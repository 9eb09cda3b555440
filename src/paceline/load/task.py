"""The share of a load that one worker sends, and its form on the way there: JSON that can say nothing else."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import InputError
from paceline.load.expected import Expected
from paceline.load.fresh import NO_WORDS, FreshWords, Slot
from paceline.load.request import ClientName, Endpoint, Wire
from paceline.load.trace import Times
from paceline.load.turn import Turn

Loop = Literal["open", "closed", "burst"]


@dataclass(frozen=True)
class LoadShare:
    """What is sent and when: a whole load, or the share of one worker."""

    loop: Loop = "open"
    intended: Times = field(default_factory=lambda: np.empty(0))  # seconds from the start; empty in a closed loop
    kinds: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, np.int32))  # they repeat in a closed loop
    users: int = 1
    requests: int | None = None  # in a closed loop or a burst
    duration: float = 0.0  # of a closed loop
    think_time: float = 0.0
    most: int | None = None  # requests that are sent in a closed loop at most, however long it lasts
    up: Times | None = None  # seconds that an emulated network holds each request back
    down: Times | None = None  # and its answer
    down_bandwidth: float = math.inf  # bytes per second


@dataclass(frozen=True, kw_only=True)
class WorkerTask(LoadShare):
    """The share of one worker, and where to send it; as it travels to the worker."""

    number: int = 0  # of this worker
    parent: int  # process id; this worker ends with it
    endpoint: Endpoint
    payloads: list[bytes]
    metadata: list[tuple[tuple[str, str], ...]]  # gRPC's headers; those of HTTP are in the payloads
    samples: NDArray[np.int32]  # in a request of each kind
    limit: int = 1000  # of connections
    timeout: float = 30.0
    streaming: bool = False
    keep: int = 0  # how many good answers of each kind to hand back
    cpu: int | None = None  # the core to stay on
    live: bool = False  # whether to say every second how it goes
    tokenizer: str = ""  # a file to count the tokens of answers with, where the server does not
    slots: list[Slot] = field(default_factory=list)  # of each kind, where words are chosen as it is sent
    fresh: FreshWords = NO_WORDS
    turns: list[Turn] = field(default_factory=list)  # of each kind, where some follow others or are closed early
    json_keys: tuple[str, ...] | None = None  # what a text has to be a JSON object with; None where any text is good
    client: ClientName = "python"  # without a compiler it is always python
    outputs: tuple[tuple[int, ...], ...] | None = None  # shapes in a good answer of a tensor protocol, if to be checked


def task_message(task: WorkerTask) -> dict[str, Any]:
    """The task as `read_task` reads it."""
    return {one.name: _plain(getattr(task, one.name)) for one in fields(task)}


def payload_message(payloads: list[bytes], metadata: list[tuple[tuple[str, str], ...]]) -> dict[str, Any]:
    """What a task sends, apart from it: it is large, and the same in many tasks."""
    return {"payloads": _plain(payloads), "metadata": _plain(metadata)}


def read_task(message: object) -> WorkerTask:
    """Refuses what is not a task: nothing in it is taken for anything but data."""
    try:
        return WorkerTask(**_read(message, _TASK))
    except (TypeError, ValueError) as error:
        raise InputError("not-a-task", f"it is not a task of the load generator: {error}") from None


def read_payloads(message: object) -> dict[str, Any]:
    """The payloads and the metadata of `payload_message`."""
    try:
        return _read(message, {name: _TASK[name] for name in ("payloads", "metadata")})
    except (TypeError, ValueError) as error:
        raise InputError("not-payloads", f"these are not payloads of the load generator: {error}") from None


def _plain(value: Any) -> Any:
    """As JSON has it; arrays and bytes are base64."""
    if isinstance(value, np.ndarray):
        kind = "<f8" if value.dtype.kind == "f" else "<i4"
        return base64.b64encode(value.astype(kind).tobytes()).decode()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Endpoint | Expected | Slot | FreshWords | Turn):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


_Reader = Callable[[Any], Any]


def _read(message: object, readers: Mapping[str, _Reader]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise TypeError("not a mapping")
    values = {}
    for name, value in message.items():
        if name not in readers:
            raise ValueError(f"unknown field '{name}'")
        try:
            values[name] = readers[name](value)
        except (TypeError, ValueError):
            raise ValueError(f"'{name}' has no valid value") from None
    return values


def _a(*kinds: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError
        return value

    return read


def _one_of(choices: object) -> _Reader:
    def read(value: Any) -> Any:
        if value not in get_args(choices):
            raise ValueError
        return value

    return read


def _optional(reader: _Reader) -> _Reader:
    return lambda value: None if value is None else reader(value)


def _list_of(reader: _Reader, make: Callable[[Any], Any] = list) -> _Reader:
    return lambda value: make(reader(item) for item in _a(list)(value))


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_a(str)(value), validate=True)
    except binascii.Error:
        raise ValueError from None


def _floats(value: Any) -> Times:
    return np.frombuffer(_bytes(value), "<f8").astype(np.float64)


def _integers(value: Any) -> NDArray[np.int32]:
    return np.frombuffer(_bytes(value), "<i4").astype(np.int32)


def _pair(value: Any) -> tuple[str, str]:
    first, second = _a(list)(value)
    return _a(str)(first), _a(str)(second)


def _numbers(value: Any) -> tuple[int, int]:
    first, second = _a(list)(value)
    return _a(int)(first), _a(int)(second)


def _headers(value: Any) -> dict[str, str]:
    return dict(_pair(list(item)) for item in _a(dict)(value).items())


_NUMBER = _a(int, float)
_EXPECTED: dict[str, _Reader] = {
    "status": _list_of(_a(str), tuple),
    "json": _list_of(_a(str), tuple),
    "text": _a(str),
    "hidden": _list_of(_a(str), tuple),
}
_SLOT: dict[str, _Reader] = {"at": _a(int), "words": _a(int)}
_TURN: dict[str, _Reader] = {
    "follows": _list_of(_a(int), tuple),
    "wait": _NUMBER,
    "quotes": _list_of(_numbers, tuple),
    "depth": _a(int),
    "close_after": _NUMBER,
    "close_chunks": _a(int),
}
_FRESH: dict[str, _Reader] = {"words": _list_of(_a(str), tuple), "first": _a(int), "step": _a(int)}
_ENDPOINT: dict[str, _Reader] = {
    "wire": _one_of(Wire),
    "host": _a(str),
    "port": _a(int),
    "path": _a(str),
    "model": _a(str),
    "tls": _a(bool),
    "headers": _headers,
    "hidden": _list_of(_a(str), tuple),
    "method": _a(str),
    "expected": _optional(lambda value: Expected(**_read(value, _EXPECTED))),
}
_TASK: dict[str, _Reader] = {
    "loop": _one_of(Loop),
    "intended": _floats,
    "kinds": _integers,
    "users": _a(int),
    "requests": _optional(_a(int)),
    "duration": _NUMBER,
    "think_time": _NUMBER,
    "up": _optional(_floats),
    "down": _optional(_floats),
    "down_bandwidth": _NUMBER,
    "number": _a(int),
    "parent": _a(int),
    "endpoint": lambda value: Endpoint(**_read(value, _ENDPOINT)),
    "payloads": _list_of(_bytes),
    "metadata": _list_of(_list_of(_pair, tuple)),
    "samples": _integers,
    "limit": _a(int),
    "timeout": _NUMBER,
    "streaming": _a(bool),
    "keep": _a(int),
    "cpu": _optional(_a(int)),
    "live": _a(bool),
    "tokenizer": _a(str),
    "slots": _list_of(lambda value: Slot(**_read(value, _SLOT))),
    "fresh": lambda value: FreshWords(**_read(value, _FRESH)),
    "turns": _list_of(lambda value: Turn(**_read(value, _TURN))),
    "json_keys": _optional(_list_of(_a(str), tuple)),
    "outputs": _optional(_list_of(_list_of(_a(int), tuple), tuple)),
    "most": _optional(_a(int)),
    "client": _one_of(ClientName),
}
