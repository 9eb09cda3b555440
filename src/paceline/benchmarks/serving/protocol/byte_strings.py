"""Tensors of byte strings (BYTES) as bytes: each string behind its length, which takes four bytes, little-endian."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline.benchmarks.serving.tensors import BYTE_STRINGS, Array

_LENGTH = 4


def pack(array: Array) -> bytes:
    """All strings of an array, in row-major order."""
    return b"".join(len(one).to_bytes(_LENGTH, "little") + one for one in array.ravel().tolist())


def unpack(content: bytes | bytearray | memoryview, shape: Sequence[int]) -> Array:
    """The array of this shape; ValueError if the bytes are not that."""
    count, found, place = math.prod(shape), [], 0
    view = memoryview(content)
    if count * _LENGTH > len(view):
        raise ValueError(f"{count} byte strings do not fit into {len(view)} bytes")
    for _ in range(count):
        end = place + _LENGTH + int.from_bytes(view[place : place + _LENGTH], "little")
        if end > len(view) or place + _LENGTH > len(view):
            raise ValueError("a byte string is longer than what came")
        found.append(bytes(view[place + _LENGTH : end]))
        place = end
    if place != len(view):
        raise ValueError(f"{len(view) - place} bytes are left behind the last byte string")
    return byte_strings(found).reshape(shape)


def byte_strings(values: Sequence[bytes]) -> Array:
    """One row of them."""
    array = np.empty(len(values), BYTE_STRINGS)  # np.array() would look into the strings
    array[:] = values
    return array
