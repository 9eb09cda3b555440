"""The open inference protocol over gRPC: messages, as far as clients and servers need them, and a client.

Tensors travel as raw bytes (`raw_input_contents`, `raw_output_contents`), little-endian, in row-major order. What is
decoded from them is a view of the received bytes, not a copy. Fields that are not needed here are skipped. There is no
generated code.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.core.errors import MissingDependency
from paceline.load.kserve import BYTES, Array, ProtocolError, Request, datatype_of, pack, read_binary, read_type
from paceline.load.trace import BROKEN, HEADER, OK, REFUSED, SHED, TIMED_OUT, UNREADABLE, Log, clock

if TYPE_CHECKING:
    from paceline.load.task import WorkerTask

CHANNELS = 4  # one TCP connection would be a queue of its own for large messages
# The HTTP status that means the same as a code of gRPC; UNAVAILABLE depends on its details.
STATUS = {
    "OK": OK,
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": TIMED_OUT,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}
_NO_CONNECTION = ("failed to connect", "connection refused", "name resolution", "dns resolution", "no route")
_CONNECTION_LOST = (
    "socket closed",
    "connection reset",
    "broken pipe",
    "goaway",
    "endpoint closing",
    "transport closed",
)


def require_grpc() -> None:
    """Refuse where gRPC is not installed."""
    if importlib.util.find_spec("grpc") is None:
        raise MissingDependency("grpcio", "install it with: pip install '.[serving]'")


class GrpcClient:
    """Sends calls over a few channels in rotation; each carries any number at a time."""

    def __init__(self, log: Log, task: WorkerTask) -> None:
        require_grpc()
        self._grpc: Any = importlib.import_module("grpc")
        aio: Any = importlib.import_module("grpc.aio")
        endpoint = task.endpoint
        target = f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else f"{endpoint.host}:{endpoint.port}"
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), *unlimited]
        self.log = log
        self.task = task
        self._loop = asyncio.get_running_loop()
        self._calls: set[asyncio.Task[None]] = set()
        self._channels = [
            aio.secure_channel(target, self._grpc.ssl_channel_credentials(), options)
            if endpoint.tls
            else aio.insecure_channel(target, options)
            for _ in range(CHANNELS)
        ]
        self._infer = [channel.unary_unary(endpoint.path) for channel in self._channels]

    def send(self, row: int) -> None:
        """Start this call now; returns at once."""
        self.log.dispatched[row] = clock()
        call = self._loop.create_task(self._call(row))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        """Cancel what is under way and close the channels."""
        for call in tuple(self._calls):
            call.cancel()
        for channel in self._channels:
            await channel.close()

    async def _call(self, row: int) -> None:
        log, task = self.log, self.task
        kind = log.kind(row)
        log.sent[row] = clock()
        call = self._infer[row % CHANNELS](
            task.payloads[kind], timeout=task.timeout, metadata=task.metadata[kind] or None
        )
        try:
            answer = await call
        except self._grpc.RpcError as error:
            status = status_of(error.code().name, error.details() or "")
            if status >= OK:
                log.done[row] = clock()
            log.status[row] = status
        else:
            log.first[row] = log.done[row] = clock()  # a unary call gives its answer as a whole
            log.size[row] = len(answer)
            log.status[row] = OK
            for metadata in (await call.initial_metadata(), await call.trailing_metadata()):
                for name, value in metadata or ():
                    if name == HEADER:
                        log.timing[row] = value if isinstance(value, bytes) else value.encode()
            log.keep_body(kind, answer)
            if task.outputs is not None:
                log.judge_later(row, answer)
        log.finished(row)


def status_of(code: str, details: str) -> int:
    """The status in a trace that a code of gRPC means."""
    if code != "UNAVAILABLE":
        return STATUS.get(code, UNREADABLE)
    if any(words in details.casefold() for words in _NO_CONNECTION):
        return REFUSED
    return BROKEN if any(words in details.casefold() for words in _CONNECTION_LOST) else SHED


SERVICE = "inference.GRPCInferenceService"
METHOD = f"/{SERVICE}/ModelInfer"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Field numbers of ModelInferRequest and ModelInferResponse, and of the tensors in them.
_MODEL, _ID, _TENSORS, _OUTPUTS, _RAW_INPUTS, _RAW_OUTPUTS = 1, 3, 5, 6, 7, 6
_NAME, _DATATYPE, _SHAPE, _CONTENTS = 1, 2, 3, 5


def encode_request(model: str, inputs: Mapping[str, Array]) -> bytes:
    """A ModelInferRequest."""
    return _encode([_field(_MODEL, model.encode())], inputs, _RAW_INPUTS)


def decode_request(message: bytes) -> tuple[str, Request]:
    """The model of a ModelInferRequest, and the request; ProtocolError if it is not one."""
    parts = _parts(memoryview(message))
    outputs = {_text(name): True for output in parts[_OUTPUTS] for name in _parts(output)[_NAME]}
    if not parts[_TENSORS]:
        raise ProtocolError("inputs: the list is empty; a request has at least one")
    inputs = _arrays(parts[_TENSORS], parts[_RAW_INPUTS], "input")
    return _last(parts[_MODEL]), Request(inputs, _last(parts[_ID]), outputs or None, binary=True)


def encode_response(model: str, outputs: Mapping[str, Array], request: Request | None = None) -> bytes:
    """A ModelInferResponse with the outputs that the request asks for."""
    head = [_field(_MODEL, model.encode())]
    if request is not None and request.id:
        head.append(_field(_ID, request.id.encode()))
    if request is not None and request.outputs is not None:
        outputs = {name: outputs[name] for name in request.outputs}
    return _encode(head, outputs, _RAW_OUTPUTS)


def decode_response(message: bytes) -> dict[str, Array]:
    """The outputs of a ModelInferResponse that carries them as raw bytes."""
    parts = _parts(memoryview(message))
    return _arrays(parts[_TENSORS], parts[_RAW_OUTPUTS], "output")


def _encode(head: list[bytes], tensors: Mapping[str, Array], raw: int) -> bytes:
    heads = [_field(_TENSORS, _head(name, datatype_of(one.dtype), one.shape)) for name, one in tensors.items()]
    contents = [pack(one) if one.dtype.hasobject else np.ascontiguousarray(one).tobytes() for one in tensors.values()]
    return b"".join([*head, *heads, *(_field(raw, content) for content in contents)])


def _head(name: str, datatype: str, shape: Sequence[int]) -> bytes:
    axes = b"".join(_varint(size) for size in shape)
    return _field(_NAME, name.encode()) + _field(_DATATYPE, datatype.encode()) + _field(_SHAPE, axes)


def _arrays(heads: Sequence[memoryview], raw: Sequence[memoryview], word: str) -> dict[str, Array]:
    tensors = [_tensor(head) for head in heads]
    if len(tensors) != len(raw):
        raise ProtocolError(f"{len(tensors)} {word}s with {len(raw)} raw contents; the numbers must be equal")
    arrays: dict[str, Array] = {}
    for (name, datatype, shape), content in zip(tensors, raw, strict=True):
        dtype = read_type(datatype, shape, f"{word} '{name}'")
        if name in arrays:
            raise ProtocolError(f"duplicate {word} '{name}'")
        if datatype != BYTES and math.prod(shape) * dtype.itemsize != len(content):
            raise ProtocolError(f"{word} '{name}' of {shape} {datatype} does not fit into its {len(content)} bytes")
        arrays[name] = read_binary(content, 0, len(content), dtype, shape, f"{word} '{name}'")
    return arrays


def _tensor(message: memoryview) -> tuple[str, str, list[int]]:
    """Name, datatype and shape."""
    name, datatype = "", ""
    shape: list[int] = []
    for number, kind, value in _fields(message):
        if number == _NAME and kind == _BYTES:
            name = _text(value)
        elif number == _DATATYPE and kind == _BYTES:
            datatype = _text(value)
        elif number == _SHAPE and kind == _VARINT:
            shape.append(int.from_bytes(value, "little"))
        elif number == _SHAPE and kind == _BYTES:
            position = 0
            while position < len(value):
                size, position = _read_varint(value, position)
                shape.append(size)
        elif number == _CONTENTS and len(value):
            raise ProtocolError(f"'{name}' comes as typed contents; send it as raw bytes, which cost less")
    return name, datatype, shape


def _parts(message: memoryview) -> dict[int, list[memoryview]]:
    """The fields that are bytes, by their numbers; a field may occur any number of times."""
    parts: dict[int, list[memoryview]] = defaultdict(list)
    for number, kind, value in _fields(message):
        if kind == _BYTES:
            parts[number].append(value)
    return parts


def _last(values: Sequence[memoryview]) -> str:
    """A text that should occur once; the last one counts, as the format wants it."""
    return _text(values[-1]) if values else ""


def _text(value: memoryview) -> str:
    return bytes(value).decode(errors="replace")


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # negative ones as their two's complement
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ProtocolError("the message ends within a number")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ProtocolError("a number is longer than 64 bits")


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _read_varint(message, position)
            yield number, kind, memoryview((value & 2**64 - 1).to_bytes(8, "little"))
            continue
        if kind == _BYTES:
            length, position = _read_varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ProtocolError(f"field {number} is of the unknown kind {kind}")
        if position + length > len(message):
            raise ProtocolError(f"field {number} has {length} bytes, but only {len(message) - position} follow")
        yield number, kind, message[position : position + length]
        position += length
