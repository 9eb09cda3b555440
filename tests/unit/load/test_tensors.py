"""Byte strings as bytes and back, and tensors as servers describe them."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.load.kserve import BYTE_STRINGS, TensorSpec, byte_strings, pack, unpack


def test_byte_strings_are_written_with_their_lengths_in_front() -> None:
    strings = byte_strings([b"", b"ab"])
    assert strings.dtype == BYTE_STRINGS
    assert pack(strings) == b"\0\0\0\0\x02\0\0\0ab"
    assert pack(byte_strings([b"a" * 258]))[:4] == b"\x02\x01\0\0"


@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 4, 1)])
def test_byte_strings_are_read_in_their_shape(shape: tuple[int, ...]) -> None:
    packed = pack(byte_strings([b"a", b"", b"bc", b"\0"]))
    read = unpack(packed, shape)
    assert read.shape == shape
    assert read.ravel().tolist() == [b"a", b"", b"bc", b"\0"]


def test_empty_strings_and_no_strings_can_be_read() -> None:
    assert unpack(bytes(8), (2,)).tolist() == [b"", b""]
    assert unpack(b"", (0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (bytes(7), "2 byte strings do not fit into 7 bytes"),
        (b"\x05\0\0\0abcd", "longer than the data"),
        (b"\x01\0\0\0a\x01\0\0\0", "longer than the data"),
        (b"\x02\0\0\0ab\0\0", "longer than the data"),
        (bytes(9), "1 bytes follow the last byte string"),
    ],
)
def test_what_are_no_byte_strings_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        unpack(content, (2,))


def test_a_tensor_is_described_with_its_batch_in_front() -> None:
    spec = TensorSpec("x", "FP16", (3, -1))
    assert spec.metadata == {"name": "x", "datatype": "FP16", "shape": [-1, 3, -1]}
    assert spec.dtype == np.float16
    assert TensorSpec("t", "BYTES", ()).dtype == BYTE_STRINGS
