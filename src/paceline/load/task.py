"""The share of a load that one worker sends, and its form on the way there: JSON that can say nothing else."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import InputError
from paceline.load.request import NO_WORDS, ClientName, Endpoint, FreshWords, Slot, Turn
from paceline.load.trace import Times

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
        return WorkerTask(**_fields_of(WorkerTask, message))
    except (TypeError, ValueError) as error:
        raise InputError("not-a-task", f"it is not a task of the load generator: {error}") from None


def read_payloads(message: object) -> dict[str, Any]:
    """The payloads and the metadata of `payload_message`."""
    try:
        return _fields_of(WorkerTask, message)
    except (TypeError, ValueError) as error:
        raise InputError("not-payloads", f"these are not payloads of the load generator: {error}") from None


def _plain(value: Any) -> Any:
    """As JSON has it; arrays and bytes are base64."""
    if isinstance(value, np.ndarray):
        return base64.b64encode(value.astype(_ON_THE_WAY[value.dtype.kind]).tobytes()).decode()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


_ON_THE_WAY = {"f": "<f8", "i": "<i4"}  # numbers of arrays, by their kind
_types_of = lru_cache(get_type_hints)


def _fields_of(kind: type, message: object) -> dict[str, Any]:
    """Fields of a dataclass by name, each of the type that the class says."""
    if not isinstance(message, dict):
        raise TypeError("not a mapping")
    types, values = _types_of(kind), {}
    for name, value in message.items():
        if name not in types:
            raise ValueError(f"unknown field '{name}'")
        try:
            values[name] = _value(types[name], value)
        except (TypeError, ValueError):
            raise ValueError(f"'{name}' has no valid value") from None
    return values


def _value(kind: Any, value: Any) -> Any:
    """A value of this type from its form in JSON; TypeError or ValueError if it is none."""
    origin, parts = get_origin(kind), get_args(kind)
    if NoneType in parts:
        return None if value is None else _value(parts[0], value)
    if origin is Literal:
        if value not in parts:
            raise ValueError
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**_fields_of(kind, value))
    if kind is bytes:
        return base64.b64decode(_value(str, value), validate=True)
    if origin is np.ndarray:
        (number,) = get_args(parts[1])  # of its dtype
        return np.frombuffer(_value(bytes, value), _ON_THE_WAY[np.dtype(number).kind]).astype(number)
    if origin is Mapping:
        return {_value(parts[0], name): _value(parts[1], item) for name, item in _value(dict, value).items()}
    if origin is tuple and parts[-1] is not ...:
        return tuple(_value(one, item) for one, item in zip(parts, _value(list, value), strict=True))
    if origin in (list, tuple):
        return origin(_value(parts[0], item) for item in _value(list, value))
    if type(value) not in ((int, float) if kind is float else (kind,)):
        raise TypeError
    return value
