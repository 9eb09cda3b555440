"""Tensors as the open inference protocol (KServe v2) names them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
