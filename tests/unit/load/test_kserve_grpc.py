"""The messages of gRPC as bytes, by the numbers of the protocol's fields, and what is said of bytes that are wrong."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.load.kserve import ProtocolError, Request, byte_strings
from paceline.load.kserve_grpc import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

X = b"\x0a\x01x\x12\x05UINT8\x1a\x02\x01\x02"  # a name, a datatype and a shape of [1, 2]
MINUS_ONE = b"\xff" * 9 + b"\x01"


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, of a low number and a length below 128."""
    return bytes([number << 3 | 2, len(content)]) + content


def test_a_request_by_its_bytes() -> None:
    x = np.array([[7, 8]], np.uint8)
    assert encode_request("m", {"x": x}) == b"\x0a\x01m" + field(5, X) + b"\x3a\x02\x07\x08"
    model, request = decode_request(b"\x0a\x01m\x1a\x02id" + field(5, X) + b"\x3a\x02\x07\x08")
    assert (model, request.id, request.outputs, request.binary) == ("m", "id", None, True)
    assert request.inputs["x"].tolist() == [[7, 8]]
    assert request.inputs["x"].dtype == np.uint8


def test_an_answer_by_its_bytes() -> None:
    outputs = {"x": np.array([[7, 8]], np.uint8), "y": np.array([1], np.uint8)}
    whole = encode_response("m", {"x": outputs["x"]})
    assert whole == b"\x0a\x01m" + field(5, X) + b"\x32\x02\x07\x08"
    asked = Request({}, id="id", outputs={"x": True})
    assert encode_response("m", outputs, asked) == b"\x0a\x01m\x1a\x02id" + whole[3:]
    assert list(decode_response(encode_response("m", outputs, Request({})))) == ["x", "y"]
    assert encode_response("m", {"x": outputs["x"]}, Request({})) == whole


def test_only_what_carries_outputs_is_read_of_an_answer() -> None:
    others = b"\x28\x05" + b"\x30\x06" + field(1, b"m") + field(3, b"id") + field(4, b"\x01") + field(7, b"\x02")
    read = decode_response(others + field(5, X) + b"\x32\x02\x07\x08")
    assert {name: array.tolist() for name, array in read.items()} == {"x": [[7, 8]]}


def test_arrays_that_are_not_in_a_row_and_byte_strings_survive() -> None:
    sent = {
        "t": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "s": byte_strings([b"", b"ab", b"\xff" * 200]),
        "e": np.zeros((0, 3)),
    }
    _, request = decode_request(encode_request("m", sent))
    assert {name: array.tolist() for name, array in request.inputs.items()} == {
        name: array.tolist() for name, array in sent.items()
    }


def test_fields_that_are_not_needed_are_skipped_whatever_their_kind() -> None:
    skipped = [
        b"\x08\x96\x01",  # a model's number instead of its name
        b"\x28\x01\x30\x02\x38\x03\x18\x04",
        b"\x49" + b"\xff" * 8,
        b"\x4d" + b"\xff" * 4,
        b"\xa2\x06\x03abc",  # field 100
    ]
    tensor = b"\x08\x01\x10\x01\x2a\x00\x22\x02\x01\x01" + X
    outputs = field(6, b"\x08\x01\x0a\x01y\x12\x01z") + field(6, b"\x0a\x01w")
    message = b"".join(skipped) + b"\x0a\x01m" + field(5, tensor) + outputs + b"\x3a\x02\x07\x08"
    model, request = decode_request(message + skipped[2] + skipped[3])
    assert (model, request.outputs) == ("m", {"y": True, "w": True})
    assert request.inputs["x"].tolist() == [[7, 8]]


@pytest.mark.parametrize(
    "shape", [b"\x18\x01\x18\xac\x02", b"\x1a\x03\x01\xac\x02", b"\x1a\x01\x01\x18\xac\x02"], ids=["one", "all", "both"]
)
def test_a_shape_may_be_packed_or_not(shape: bytes) -> None:
    tensor = b"\x0a\x01x\x12\x05UINT8" + shape
    _, request = decode_request(field(5, tensor) + b"\x3a\xac\x02" + bytes(300))
    assert request.inputs["x"].shape == (1, 300)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (b"", "at least one"),
        (b"\x0a\x01m", "at least one"),
        (b"\x0a", "ends within a number"),
        (b"\x80", "ends within a number"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "longer than 64 bits"),
        (b"\x08" + b"\xff" * 9 + b"\x7f" + b"\x0b", "field 1 is of the unknown kind 3"),
        (b"\x0f\x00", "field 1 is of the unknown kind 7"),
        (b"\x0a\x03ab", "field 1 has 3 bytes, but only 2 follow"),
        (b"\x09" + b"\0" * 7, "field 1 has 8 bytes, but only 7 follow"),
        (b"\x0d" + b"\0" * 3, "field 1 has 4 bytes, but only 3 follow"),
        (field(5, X), "1 inputs with 0 raw contents"),
        (field(5, X) + b"\x3a\x02\x07\x08" * 2, "1 inputs with 2 raw contents"),
        (field(5, X) * 2 + b"\x3a\x02\x07\x08" * 2, "duplicate input 'x'"),
        (field(5, X) + b"\x3a\x01\x07", r"input 'x' of \[1, 2\] UINT8 does not fit into its 1 bytes"),
        (field(5, X) + b"\x3a\x03\x07\x08\x09", "does not fit into its 3 bytes"),
        (field(5, X[:-2] + MINUS_ONE[:2]) + b"\x3a\x00", "ends within a number"),
        (field(5, X + b"\x18" + MINUS_ONE) + b"\x3a\x00", r"'x'\.shape: \[1, 2, 18446744073709551615\]"),
        (field(5, X + b"\x18" + b"\xff" * 9 + b"\x7f") + b"\x3a\x00", r"\.shape: \[1, 2, 18446744073709551615\]"),
        (field(5, b"\x0a\x01x\x12\x03FP8") + b"\x3a\x00", "input 'x'.datatype: 'FP8' is not supported"),
        (field(5, X + b"\x2a\x01\x00") + b"\x3a\x02\x07\x08", "'x' comes as typed contents"),
        (field(5, b"\x0a\x01x\x12\x05BYTES\x1a\x01\x01") + field(7, b"\x05\0\0\0a"), "input 'x': a byte string is"),
    ],
)
def test_what_is_said_of_wrong_bytes(wrong: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        decode_request(wrong)


def test_an_output_is_called_one() -> None:
    with pytest.raises(ProtocolError, match="1 outputs with 0 raw contents"):
        decode_response(field(5, X))


@pytest.mark.parametrize("length", [0, 1, 127, 128, 300, 16_384])
def test_a_name_of_any_length_survives(length: int) -> None:
    x = np.array([7], np.uint8)
    assert decode_request(encode_request("n" * length, {"x": x}))[0] == "n" * length


def test_the_last_of_several_names_holds() -> None:
    tensor = field(5, X) + b"\x3a\x02\x07\x08"
    assert decode_request(b"\x0a\x01a\x12\x01c\x08\x05\x0a\x01b\x0a\x01z" + tensor)[0] == "z"
    assert decode_request(b"\x12\x01c\x08\x05" + tensor)[0] == ""
    assert encode_request("n" * 128, {})[:3] == b"\x0a\x80\x01"
    assert encode_request("n" * 127, {})[:2] == b"\x0a\x7f"
