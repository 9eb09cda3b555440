"""Messages of the open inference protocol over gRPC, as far as a load generator needs them, without generated code.

Tensors travel as raw bytes (`raw_input_contents`), little-endian, in row-major order. Only what a request needs is
written, and of an answer only names, types, shapes and raw contents are read; other fields are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from paceline.benchmarks.serving.protocol.kserve import ProtocolError
from paceline.benchmarks.serving.tensors import DATATYPES, Array, datatype_of

METHOD = "/inference.GRPCInferenceService/ModelInfer"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Field numbers of ModelInferRequest and ModelInferResponse, and of the tensors in them.
_MODEL, _TENSORS, _RAW_INPUTS, _RAW_OUTPUTS = 1, 5, 7, 6
_NAME, _DATATYPE, _SHAPE = 1, 2, 3


def encode_request(model: str, inputs: Mapping[str, Array]) -> bytes:
    """A ModelInferRequest."""
    parts = [_field(_MODEL, model.encode())]
    for name, array in inputs.items():
        shape = b"".join(_varint(size) for size in array.shape)
        tensor = _field(_NAME, name.encode()) + _field(_DATATYPE, datatype_of(array.dtype).encode())
        parts.append(_field(_TENSORS, tensor + _field(_SHAPE, shape)))
    parts += [_field(_RAW_INPUTS, np.ascontiguousarray(array).tobytes()) for array in inputs.values()]
    return b"".join(parts)


def decode_response(message: bytes) -> dict[str, Array]:
    """The outputs of a ModelInferResponse that carries them as raw bytes."""
    told: list[tuple[str, str, list[int]]] = []
    raw: list[bytes] = []
    for number, kind, value in _fields(message):
        if number == _TENSORS and kind == _BYTES:
            told.append(_tensor(value))
        elif number == _RAW_OUTPUTS and kind == _BYTES:
            raw.append(value)
    if len(told) != len(raw):
        raise ProtocolError(f"{len(told)} outputs with {len(raw)} raw contents; they must be as many")
    found = {}
    for (name, datatype, shape), content in zip(told, raw, strict=True):
        if datatype not in DATATYPES:
            raise ProtocolError(f"output '{name}' has the unknown datatype '{datatype}'")
        dtype = DATATYPES[datatype]
        if any(size < 0 for size in shape) or int(np.prod(shape, dtype=np.int64)) * dtype.itemsize != len(content):
            raise ProtocolError(f"output '{name}' of {shape} {datatype} does not fit into its {len(content)} bytes")
        found[name] = np.frombuffer(content, dtype).reshape(shape)
    return found


def _tensor(message: bytes) -> tuple[str, str, list[int]]:
    name, datatype = "", ""
    shape: list[int] = []
    for number, kind, value in _fields(message):
        if number == _NAME and kind == _BYTES:
            name = value.decode(errors="replace")
        elif number == _DATATYPE and kind == _BYTES:
            datatype = value.decode(errors="replace")
        elif number == _SHAPE and kind == _VARINT:
            shape.append(int.from_bytes(value, "little"))
        elif number == _SHAPE and kind == _BYTES:
            place = 0
            while place < len(value):
                size, place = _read_varint(value, place)
                shape.append(size)
    return name, datatype, shape


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    if value < 0:
        raise ProtocolError(f"{value} is negative")
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
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


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _read_varint(message, place)
            yield number, kind, (value & 2**64 - 1).to_bytes(8, "little")
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
