"""Messages of the open inference protocol over gRPC, as far as clients and servers need them, without generated code.

Tensors travel as raw bytes (`raw_input_contents`, `raw_output_contents`), little-endian, in row-major order. What is
decoded from them is a view of the received bytes, not a copy. Fields that nobody here needs are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from paceline.load.kserve import ProtocolError, Request, read_binary
from paceline.load.tensors import BYTE_STRINGS, BYTES, DATATYPES, Array, TensorSpec, datatype_of, pack

SERVICE = "inference.GRPCInferenceService"
METHOD = f"/{SERVICE}/ModelInfer"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Field numbers of ModelInferRequest and ModelInferResponse, and of the tensors in them.
_MODEL, _ID, _TENSORS, _WANTED, _RAW_INPUTS, _RAW_OUTPUTS = 1, 3, 5, 6, 7, 6
_NAME, _DATATYPE, _SHAPE, _CONTENTS = 1, 2, 3, 5
_MOST_AXES = 32


def encode_request(model: str, inputs: Mapping[str, Array]) -> bytes:
    """A ModelInferRequest."""
    return _encode([_field(_MODEL, model.encode())], inputs, _RAW_INPUTS)


def decode_request(message: bytes) -> tuple[str, Request]:
    """The model that a ModelInferRequest asks, and what it asks; ProtocolError if it is none."""
    model = asked = ""
    wanted: dict[str, bool] = {}
    tensors: list[_Told] = []
    raw: list[memoryview] = []
    for number, kind, value in _fields(memoryview(message)):
        if kind != _BYTES:
            continue
        if number == _MODEL:
            model = _text(value)
        elif number == _ID:
            asked = _text(value)
        elif number == _TENSORS:
            tensors.append(_tensor(value))
        elif number == _WANTED:
            wanted |= {_text(name): True for at, as_, name in _fields(value) if (at, as_) == (_NAME, _BYTES)}
        elif number == _RAW_INPUTS:
            raw.append(value)
    if not tensors:
        raise ProtocolError("inputs: there is none; a request has at least one")
    return model, Request(_arrays(tensors, raw, "input"), asked, wanted or None, binary=True)


def encode_response(model: str, outputs: Mapping[str, Array], request: Request | None = None) -> bytes:
    """A ModelInferResponse with the outputs that the request wants."""
    head = [_field(_MODEL, model.encode())]
    if request is not None and request.id:
        head.append(_field(_ID, request.id.encode()))
    if request is not None and request.outputs is not None:
        outputs = {name: outputs[name] for name in request.outputs}
    return _encode(head, outputs, _RAW_OUTPUTS)


def decode_response(message: bytes) -> dict[str, Array]:
    """The outputs of a ModelInferResponse that carries them as raw bytes."""
    told: list[_Told] = []
    raw: list[memoryview] = []
    for number, kind, value in _fields(memoryview(message)):
        if number == _TENSORS and kind == _BYTES:
            told.append(_tensor(value))
        elif number == _RAW_OUTPUTS and kind == _BYTES:
            raw.append(value)
    return _arrays(told, raw, "output")


def encode_flag(value: bool) -> bytes:
    """A ServerLiveResponse, ServerReadyResponse or ModelReadyResponse; what is false is not written."""
    return _varint(1 << 3 | _VARINT) + b"\x01" if value else b""


def encode_model_metadata(
    name: str, platform: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> bytes:
    """A ModelMetadataResponse; the first axis of every tensor is the batch."""
    parts = [_field(1, name.encode()), _field(2, b"1"), _field(3, platform.encode())]
    for number, specs in ((4, inputs), (5, outputs)):
        parts += [_field(number, _head(spec.name, spec.datatype, (-1, *spec.shape))) for spec in specs]
    return b"".join(parts)


def encode_server_metadata(name: str, version: str) -> bytes:
    """A ServerMetadataResponse."""
    return _field(1, name.encode()) + _field(2, version.encode())


def encode_name(name: str) -> bytes:
    """A ModelReadyRequest or ModelMetadataRequest."""
    return _field(1, name.encode())


def decode_name(message: bytes) -> str:
    """The model of a ModelReadyRequest or ModelMetadataRequest."""
    found = [_text(value) for number, kind, value in _fields(memoryview(message)) if (number, kind) == (1, _BYTES)]
    return found[-1] if found else ""


_Told = tuple[str, str, list[int]]  # name, datatype and shape of a tensor


def _encode(head: list[bytes], tensors: Mapping[str, Array], raw: int) -> bytes:
    told = [_field(_TENSORS, _head(name, datatype_of(one.dtype), one.shape)) for name, one in tensors.items()]
    return b"".join([*head, *told, *(_field(raw, _content(one)) for one in tensors.values())])


def _content(array: Array) -> bytes:
    return pack(array) if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()


def _head(name: str, datatype: str, shape: Sequence[int]) -> bytes:
    axes = b"".join(_varint(size) for size in shape)
    return _field(_NAME, name.encode()) + _field(_DATATYPE, datatype.encode()) + _field(_SHAPE, axes)


def _arrays(told: Sequence[_Told], raw: Sequence[memoryview], word: str) -> dict[str, Array]:
    if len(told) != len(raw):
        raise ProtocolError(f"{len(told)} {word}s with {len(raw)} raw contents; they must be as many")
    found: dict[str, Array] = {}
    for (name, datatype, shape), content in zip(told, raw, strict=True):
        dtype = BYTE_STRINGS if datatype == BYTES else DATATYPES.get(datatype)
        if dtype is None:
            known = ", ".join((*DATATYPES, BYTES))
            raise ProtocolError(f"{word} '{name}' has the unknown datatype '{datatype}'; known are {known}")
        if name in found:
            raise ProtocolError(f"{word} '{name}' occurs twice")
        if len(shape) > _MOST_AXES or any(not 0 <= size < 2**63 for size in shape):
            raise ProtocolError(f"{word} '{name}': {shape!r:.200} is no list of lengths, at most {_MOST_AXES}")
        if datatype != BYTES and math.prod(shape) * dtype.itemsize != len(content):
            raise ProtocolError(f"{word} '{name}' of {shape} {datatype} does not fit into its {len(content)} bytes")
        found[name] = read_binary(content, 0, len(content), dtype, shape, f"{word} '{name}'")
    return found


def _tensor(message: memoryview) -> _Told:
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
            place = 0
            while place < len(value):
                size, place = _read_varint(value, place)
                shape.append(size)
        elif number == _CONTENTS and len(value):
            raise ProtocolError(f"'{name}' comes as typed contents; send it as raw bytes, which cost less")
    return name, datatype, shape


def _text(value: memoryview) -> str:
    return bytes(value).decode(errors="replace")


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # negative ones as their two's complement
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _read_varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(message):
            raise ProtocolError("the message breaks off within a number")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ProtocolError("a number is longer than 64 bits")


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _read_varint(message, place)
            yield number, kind, memoryview((value & 2**64 - 1).to_bytes(8, "little"))
            continue
        if kind == _BYTES:
            length, place = _read_varint(message, place)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ProtocolError(f"field {number} is of the unknown kind {kind}")
        if place + length > len(message):
            raise ProtocolError(f"field {number} breaks off: {length} bytes are told, {len(message) - place} are there")
        yield number, kind, message[place : place + length]
        place += length
