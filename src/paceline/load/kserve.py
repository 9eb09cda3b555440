"""Requests and answers of the open inference protocol (KServe v2) as bytes: JSON alone, or with binary tensors behind.

Binary tensors are little-endian, in row-major order, one after the other behind the JSON header, whose length the HTTP
header `Inference-Header-Content-Length` gives. What is decoded from them is a view of the received bytes, not a copy.
Tensors may also lie in memory that the server shares; then the JSON says in which region and where.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import PacelineError

DATATYPES: dict[str, np.dtype[np.generic]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
BYTES = "BYTES"  # byte strings of any length: images and texts
BYTE_STRINGS = np.dtype(np.object_)
_NAMES = {dtype: name for name, dtype in DATATYPES.items()} | {BYTE_STRINGS: BYTES}

Array = NDArray[np.generic]
Tensors = dict[str, Array]  # by input name; the first axis is the batch

_LENGTH = 4  # bytes that hold the length of a byte string


def datatype_of(dtype: np.dtype[np.generic]) -> str:
    """The protocol's name of a numpy type."""
    return _NAMES[np.dtype(dtype)]


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a served model; the first axis of what travels is the batch, which is not in `shape`."""

    name: str
    datatype: str  # one of DATATYPES, or BYTES
    shape: tuple[int, ...]  # of one sample; -1 where it varies

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return BYTE_STRINGS if self.datatype == BYTES else DATATYPES[self.datatype]

    @property
    def metadata(self) -> dict[str, object]:
        """As a server describes it."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.shape]}


def pack(array: Array) -> bytes:
    """All strings of an array, in row-major order."""
    return b"".join(len(one).to_bytes(_LENGTH, "little") + one for one in array.ravel().tolist())


def unpack(content: bytes | bytearray | memoryview, shape: Sequence[int]) -> Array:
    """The array of this shape; ValueError if the bytes are not that."""
    count, strings, position = math.prod(shape), [], 0
    view = memoryview(content)
    if count * _LENGTH > len(view):
        raise ValueError(f"{count} byte strings do not fit into {len(view)} bytes")
    for _ in range(count):
        start = position + _LENGTH
        end = start + int.from_bytes(view[position:start], "little")
        if end > len(view):
            raise ValueError("a byte string is longer than the data")
        strings.append(bytes(view[start:end]))
        position = end
    if position != len(view):
        raise ValueError(f"{len(view) - position} bytes follow the last byte string")
    return byte_strings(strings).reshape(shape)


def byte_strings(values: Sequence[bytes]) -> Array:
    """One row of them."""
    array = np.empty(len(values), BYTE_STRINGS)  # np.array() would look into the strings
    array[:] = values
    return array


JSON_LENGTH = "Inference-Header-Content-Length"
JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"

_MOST_AXES = 32
_LONGEST_CACHED = 2048  # bytes of a header whose meaning is remembered: a client's headers are mostly the same
_KINDS = {"b": "b", "u": "iu", "i": "iu", "f": "fiu"}  # which kinds of numbers JSON may hold for a datatype's kind

Buffer = bytes | bytearray | memoryview
Lookup = Callable[[str, int, int], Buffer]  # so many bytes of a region of shared memory, from an offset on
T = TypeVar("T", list[Any], dict[str, Any], str, bool)
_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class ProtocolError(PacelineError):
    """Bytes that are not in the protocol; the message says what is wrong and where."""


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def _expect(value: Any, kind: type[T], where: str, *, default: T | None = None) -> T:
    """The value, or the default where it is missing; ProtocolError if it is of another type."""
    if value is None and default is not None:
        return default
    if not isinstance(value, kind):
        actual = "missing" if value is None else f"a JSON {_json_type(value)}"
        expected = {list: "a list", dict: "an object", str: "a text", bool: "true or false"}[kind]
        raise ProtocolError(f"{where} is {actual}; it must be {expected}")
    return value


@dataclass(frozen=True, slots=True)
class Message:
    """A body in pieces, so that tensors need not be copied; `json_length` is None if all of it is JSON."""

    parts: tuple[Buffer, ...]
    json_length: int | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def content_type(self) -> str:
        return JSON_TYPE if self.json_length is None else BINARY_TYPE


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request: arrays by name, and which outputs to send in which form."""

    inputs: dict[str, Array]
    id: str = ""
    outputs: Mapping[str, bool] | None = None  # name to whether it is sent as binary; None for all of them
    binary: bool = False  # whether other outputs are sent as binary


def encode_request(inputs: Mapping[str, Array], *, binary: bool = False) -> Message:
    """A request for one or more samples; `binary` holds for its tensors and for the outputs."""
    head = {"parameters": {"binary_data_output": True}} if binary else {}
    return _encode(head, "inputs", [(name, array, binary) for name, array in inputs.items()])


def encode_shared_request(inputs: Mapping[str, Array], region: str, offsets: Mapping[str, int]) -> Message:
    """A request for tensors that lie in memory which the server has mapped under this name; outputs come as binary."""
    listed = []
    for name, array in inputs.items():
        location = {"region": region, "offset": offsets[name], "byte_size": array.nbytes}
        parameters = _dump({f"shared_memory_{key}": value for key, value in location.items()})
        listed.append(f'{_begin(name, array.dtype, array.shape)}"parameters":{parameters}}}')
    return Message((f'{{"parameters":{{"binary_data_output":true}},"inputs":[{",".join(listed)}]}}'.encode(),))


def encode_response(model: str, outputs: Mapping[str, Array], request: Request | None = None) -> Message:
    """The answer, with the outputs and in the form that the request asks for."""
    head: dict[str, Any] = {"model_name": model}
    if request is not None and request.id:
        head["id"] = request.id
    if request is None or request.outputs is None:
        binary = request is not None and request.binary
        chosen = [(name, array, binary) for name, array in outputs.items()]
    else:
        chosen = [(name, outputs[name], binary) for name, binary in request.outputs.items()]
    return _encode(head, "outputs", chosen)


def decode_request(body: Buffer, json_length: int | None = None, shared: Lookup | None = None) -> Request:
    """A client's request; ProtocolError if it is not one. `shared` looks up tensors that lie in shared memory."""
    head, inputs = _decode(body, json_length, "inputs", shared)
    if not inputs:
        raise ProtocolError("inputs: the list is empty; a request has at least one")
    return Request(inputs, head.id, head.outputs, head.binary)


def decode_response(body: Buffer, json_length: int | None = None) -> dict[str, Array]:
    """The outputs of a server's answer; ProtocolError if it is not one."""
    return _decode(body, json_length, "outputs")[1]


def encode_error(message: str) -> bytes:
    """The body of an answer that reports a failure."""
    return json.dumps({"error": message}).encode()


def decode_error(body: Buffer) -> str:
    """The message in the body of a failure, or the body itself if it is not in this form."""
    text = bytes(body).decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return text


def _encode(head: dict[str, Any], key: str, tensors: list[tuple[str, Array, bool]]) -> Message:
    listed: list[str] = []
    raw: list[Buffer] = []
    for name, array, binary in tensors:
        begin = _begin(name, array.dtype, array.shape)
        if binary:
            # One axis first: memoryview cannot cast what has an axis of length zero.
            content = pack(array) if array.dtype.hasobject else array.ravel().view(np.uint8).data
            listed.append(f'{begin}"parameters":{{"binary_data_size":{len(content)}}}}}')
            raw.append(content)
        else:
            values: list[Any] = array.ravel().tolist()
            if array.dtype.hasobject:
                try:
                    values = [value.decode() for value in values]
                except UnicodeDecodeError:
                    message = f"'{name}' holds bytes that are not text, which JSON cannot carry; send binary"
                    raise ProtocolError(message) from None
            listed.append(f'{begin}"data":{_dump(values)}}}')
    # Written by hand: a third of the time that a call of json.dumps() takes, and this is done for every answer.
    parts = [*(f'"{name}":{_dump(value)}' for name, value in head.items()), f'"{key}":[{",".join(listed)}]']
    text = f"{{{','.join(parts)}}}".encode()
    return Message((text, *raw), len(text) if raw else None)


@lru_cache(maxsize=512)
def _begin(name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> str:
    return f'{{"name":{_dump(name)},"shape":{_dump(shape)},"datatype":"{datatype_of(dtype)}",'


@dataclass(frozen=True, slots=True)
class _Tensor:
    where: str  # for messages
    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    size: int  # bytes of a binary tensor
    data: list[Any] | None  # None if the tensor is binary
    region: str | None = None  # of shared memory, where the tensor lies
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Head:
    tensors: tuple[_Tensor, ...]
    id: str = ""
    outputs: Mapping[str, bool] | None = None
    binary: bool = False
    raw_bytes: int = 0


def _decode(
    body: Buffer, json_length: int | None, key: str, shared: Lookup | None = None
) -> tuple[_Head, dict[str, Array]]:
    if json_length is None:
        head = _read_head(bytes(body), key)
        offset = len(body)
    else:
        if not 0 < json_length <= len(body):
            raise ProtocolError(f"{JSON_LENGTH} is {json_length}, but the body has {len(body)} bytes")
        text = bytes(memoryview(body)[:json_length])
        head = (_remembered if json_length <= _LONGEST_CACHED else _read_head)(text, key)
        offset = json_length
    if offset + head.raw_bytes != len(body):
        hint = "" if json_length is not None else f"; without the header {JSON_LENGTH} all of it must be JSON"
        raise ProtocolError(
            f"the binary tensors take {head.raw_bytes} bytes, but {len(body) - offset} follow the JSON{hint}"
        )
    arrays: dict[str, Array] = {}
    for tensor in head.tensors:
        if tensor.region is not None:
            if shared is None:
                raise ProtocolError(f"{tensor.where}: this server takes no tensors from shared memory")
            memory = shared(tensor.region, tensor.offset, tensor.size)
            arrays[tensor.name] = read_binary(memory, 0, tensor.size, tensor.dtype, tensor.shape, tensor.where)
        elif tensor.data is None:
            arrays[tensor.name] = read_binary(body, offset, tensor.size, tensor.dtype, tensor.shape, tensor.where)
            offset += tensor.size
        else:
            arrays[tensor.name] = _from_list(tensor)
    return head, arrays


def read_binary(
    body: Buffer, offset: int, size: int, dtype: np.dtype[np.generic], shape: Sequence[int], where: str
) -> Array:
    """A tensor from as many bytes as it takes; a view, except for byte strings."""
    if dtype.hasobject:
        try:
            return unpack(memoryview(body)[offset : offset + size], shape)
        except ValueError as error:
            raise ProtocolError(f"{where}: {error}") from None
    array = np.frombuffer(body, dtype, size // dtype.itemsize, offset)
    if dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise ProtocolError(f"{where}: a BOOL is a byte of 0 or 1; the data holds other values")
    return array.reshape(shape)


def _read_head(text: bytes, key: str) -> _Head:
    try:
        head = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the body is not JSON: {error}") from None
    if not isinstance(head, dict):
        raise ProtocolError(f"the body is a JSON {_json_type(head)}; it must be an object with '{key}'")
    parameters = _expect(head.get("parameters"), dict, "parameters", default={})
    binary = _expect(parameters.get("binary_data_output"), bool, "parameters.binary_data_output", default=False)
    tensors: list[_Tensor] = []
    for index, entry in enumerate(_expect(head.get(key), list, key)):
        tensor = _read_tensor(entry, f"{key}[{index}]")
        if any(tensor.name == other.name for other in tensors):
            raise ProtocolError(f"{tensor.where}: duplicate name '{tensor.name}'")
        tensors.append(tensor)
    outputs: dict[str, bool] = {}  # those that a request asks for
    requested = head.get("outputs") if key == "inputs" else None
    for index, entry in enumerate(_expect(requested, list, "outputs") if requested else ()):
        where = f"outputs[{index}]"
        if not isinstance(entry, dict):
            raise ProtocolError(f"{where} is a JSON {_json_type(entry)}; a requested output is an object")
        options = _expect(entry.get("parameters"), dict, f"{where}.parameters", default={})
        name = _expect(entry.get("name"), str, f"{where}.name")
        outputs[name] = _expect(options.get("binary_data"), bool, f"{where}.parameters.binary_data", default=binary)
    return _Head(
        tensors=tuple(tensors),
        id=_expect(head.get("id", ""), str, "id"),
        outputs=outputs or None,
        binary=binary,
        raw_bytes=sum(tensor.size for tensor in tensors if tensor.region is None),
    )


_remembered = lru_cache(maxsize=256)(_read_head)


def _read_tensor(entry: Any, where: str) -> _Tensor:
    if not isinstance(entry, dict):
        raise ProtocolError(f"{where} is a JSON {_json_type(entry)}; a tensor is an object")
    name = _expect(entry.get("name"), str, f"{where}.name")
    datatype = _expect(entry.get("datatype"), str, f"{where}.datatype")
    shape = tuple(_expect(entry.get("shape"), list, f"{where}.shape"))
    dtype = read_type(datatype, shape, where)
    length = math.prod(shape) * dtype.itemsize
    if length >= 2**63:
        raise ProtocolError(f"{where}.shape: {list(shape)!r:.200} is larger than any memory")
    parameters = _expect(entry.get("parameters"), dict, f"{where}.parameters", default={})
    if "shared_memory_region" in parameters:
        region, offset = _read_region(parameters, entry, where, length)
        return _Tensor(where, name, dtype, shape, length, None, region, offset)
    size = parameters.get("binary_data_size")
    if size is None:
        if "data" not in entry:
            raise ProtocolError(f"{where}: 'data' or the parameter 'binary_data_size' is missing")
        return _Tensor(where, name, dtype, shape, 0, _expect(entry["data"], list, f"{where}.data"))
    if "data" in entry:
        raise ProtocolError(f"{where}: it has both 'data' and the parameter 'binary_data_size'; give one of them")
    if type(size) is not int or size < 0 or (datatype != BYTES and size != length):
        raise ProtocolError(
            f"{where}: binary_data_size is {size!r:.40}, but {datatype} of shape {list(shape)} has {length} bytes"
        )
    return _Tensor(where, name, dtype, shape, size, None)


def read_type(datatype: str, shape: Sequence[Any], where: str) -> np.dtype[np.generic]:
    """The type of a tensor; ProtocolError if it is not supported, or the shape is not a valid one."""
    dtype = BYTE_STRINGS if datatype == BYTES else DATATYPES.get(datatype)
    if dtype is None:
        supported = ", ".join((*DATATYPES, BYTES))
        raise ProtocolError(f"{where}.datatype: '{datatype}' is not supported; it must be one of {supported}")
    if not all(type(length) is int and 0 <= length < 2**63 for length in shape) or len(shape) > _MOST_AXES:
        raise ProtocolError(f"{where}.shape: {list(shape)!r:.200} is not a list of lengths, at most {_MOST_AXES}")
    return dtype


def _read_region(parameters: Mapping[str, Any], entry: Mapping[str, Any], where: str, size: int) -> tuple[str, int]:
    """The region in which a tensor of this size lies, and where it begins there."""
    if "data" in entry or "binary_data_size" in parameters:
        raise ProtocolError(f"{where}: it lies in shared memory and has data as well; give one of them")
    if entry["datatype"] == BYTES:
        raise ProtocolError(f"{where}: BYTES are not taken from shared memory")
    region = _expect(parameters["shared_memory_region"], str, f"{where}.parameters.shared_memory_region")
    stated, offset = parameters.get("shared_memory_byte_size"), parameters.get("shared_memory_offset", 0)
    if stated != size or type(stated) is not int:
        raise ProtocolError(f"{where}: shared_memory_byte_size is {stated!r:.40}, but the tensor has {size} bytes")
    if type(offset) is not int or offset < 0:
        raise ProtocolError(f"{where}: shared_memory_offset is {offset!r:.40}; it must be a number of bytes")
    return region, offset


def _from_list(tensor: _Tensor) -> Array:
    """Numbers from JSON, flat or nested; nothing is rounded, cut off or read from text on the way."""
    assert tensor.data is not None
    where, count = f"{tensor.where}.data", math.prod(tensor.shape)
    if tensor.dtype.hasobject:
        if len(tensor.data) != count or not all(isinstance(one, str) for one in tensor.data):
            raise ProtocolError(f"{where}: BYTES of the shape {list(tensor.shape)} are a list of {count} texts")
        return byte_strings([one.encode(errors="replace") for one in tensor.data]).reshape(tensor.shape)
    try:
        array = np.array(tensor.data)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"{where}: {error}") from None
    if array.size != count or (array.ndim > 1 and array.shape != tensor.shape):
        raise ProtocolError(
            f"{where} has {array.size} values in the shape {list(array.shape)}, but shape {list(tensor.shape)} "
            f"takes {count}"
        )
    if array.size and array.dtype.kind not in _KINDS[tensor.dtype.kind]:
        # Integers beyond 2**63 together with smaller ones look like floating-point numbers or objects to numpy.
        if tensor.dtype.kind in "iu":
            array = np.array(tensor.data, dtype=object)
            if all(type(value) is int and value >= 0 for value in array.flat):
                with suppress(OverflowError):
                    array = array.astype(np.uint64)
        if array.dtype.kind not in _KINDS[tensor.dtype.kind]:
            raise ProtocolError(f"{where}: there are values that are not {datatype_of(tensor.dtype)}")
    if tensor.dtype.kind in "iu" and array.size:
        limits = np.iinfo(tensor.dtype.name)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ProtocolError(f"{where}: there are values outside {datatype_of(tensor.dtype)}")
    with np.errstate(over="ignore"):
        return np.asarray(array, tensor.dtype).reshape(tensor.shape)
