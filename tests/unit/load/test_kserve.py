"""The bytes of the protocol, and what is said of bytes that are wrong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from paceline.load import kserve
from paceline.load.kserve import (
    ProtocolError,
    byte_strings,
    decode_error,
    decode_request,
    decode_response,
    encode_error,
    encode_request,
    encode_response,
    encode_shared_request,
)
from paceline.load.trace import Stages
from support.kserve_requests import with_fields

X = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2.5, 3, 4]}


def body(**changes: Any) -> bytes:
    entry = {key: value for key, value in {**X, **changes}.items() if value is not ...}
    return json.dumps({"inputs": [entry]}).encode()


def test_the_json_form() -> None:
    message = encode_request({"x": np.array([[1, 2]], np.int64)})
    assert message.json_length is None
    assert json.loads(message.body) == {
        "inputs": [{"name": "x", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}],
    }


def test_the_binary_form() -> None:
    message = encode_response("m", {"y": np.array([1, 256], np.uint16)}, decode_request(binary_body(), JSON_OF_BINARY))
    assert message.json_length is not None
    head, raw = message.body[: message.json_length], message.body[message.json_length :]
    assert json.loads(head) == {
        "model_name": "m",
        "outputs": [
            {"name": "y", "shape": [2], "datatype": "UINT16", "parameters": {"binary_data_size": 4}},
        ],
    }
    assert raw == b"\x01\x00\x00\x01"


def binary_body(**changes: Any) -> bytes:
    entry = {"name": "x", "shape": [2], "datatype": "BOOL", "parameters": {"binary_data_size": 2}, **changes}
    return json.dumps({"parameters": {"binary_data_output": True}, "inputs": [entry]}).encode() + b"\x01\x00"


JSON_OF_BINARY = len(binary_body()) - 2


def test_nested_and_flat_data_are_the_same() -> None:
    flat, nested = decode_request(body()), decode_request(body(data=[[1, 2.5], [3, 4]]))
    assert np.array_equal(flat.inputs["x"], nested.inputs["x"])
    assert flat.inputs["x"].dtype == np.float32


def test_a_message_says_what_it_is() -> None:
    x = {"x": np.array([1, 2], np.int32)}
    asked = encode_request(x, binary=True)
    assert asked.content_type == "application/octet-stream"
    assert asked.json_length is not None
    assert json.loads(asked.body[: asked.json_length])["parameters"] == {"binary_data_output": True}
    assert encode_request(x).content_type == "application/json"
    assert "parameters" not in json.loads(encode_request(x).body)


@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_has_the_form_and_the_id_of_its_request(binary: bool) -> None:
    asked = with_fields(encode_request({"x": np.ones(2)}, binary=binary), id="a")
    answer = encode_response("m", {"y": np.ones(2)}, decode_request(asked.body, asked.json_length))
    assert (answer.json_length is not None) is binary
    assert decode_response(answer.body, answer.json_length)["y"].tolist() == [1.0, 1.0]
    head = json.loads(answer.body[: answer.json_length])
    assert (head["model_name"], head["id"]) == ("m", "a")


def test_an_answer_without_a_request_is_json_without_an_id() -> None:
    answer = encode_response("m", {"y": np.ones(2)})
    assert answer.json_length is None
    assert set(json.loads(answer.body)) == {"model_name", "outputs"}


@pytest.mark.parametrize("binary", [False, True])
def test_tensors_of_any_layout_survive(binary: bool) -> None:
    grid = np.arange(6, dtype=np.int64).reshape(2, 3)
    sent: dict[str, Any] = {
        "t": grid.T,
        "r": np.arange(6, dtype=np.float32)[::-2],
        "zero": np.zeros((0, 3), np.int64),
        "none": np.array(5, np.int64),
        "s": byte_strings([b"", b"ab"]),
        "u": byte_strings([b"c", b"d"]).reshape(2, 1),
        "b": np.array([True, False]),
        "axes": np.ones((1,) * 32),
        "long": np.arange(200.0),
    }
    asked = encode_request(sent, binary=binary)
    read = decode_request(asked.body, asked.json_length).inputs
    assert {name: (array.dtype, array.tolist()) for name, array in read.items()} == {
        name: (array.dtype, array.tolist()) for name, array in sent.items()
    }


def test_only_short_headers_are_remembered() -> None:
    """Those of one client are mostly the same; those of many, with long ones, would take much memory."""
    entry = {"name": "x", "shape": [1], "datatype": "BOOL", "parameters": {"binary_data_size": 1}, "pad": ""}
    bare = len(json.dumps({"inputs": [entry]}))
    for length, remembered in ((2048, 1), (2049, 0)):
        head = json.dumps({"inputs": [entry | {"pad": "-" * (length - bare)}]}).encode()
        before = kserve._remembered.cache_info()
        for _ in range(2):
            assert decode_request(head + b"\x01", length).inputs["x"].tolist() == [True]
        after = kserve._remembered.cache_info()
        assert (after.hits - before.hits, after.misses - before.misses) == (remembered, remembered)


def test_a_failure_is_told_as_json_and_read_from_it() -> None:
    assert json.loads(encode_error('no "x"')) == {"error": 'no "x"'}
    assert decode_error(encode_error("no x")) == "no x"
    assert decode_error(b"<html>") == "<html>"
    assert decode_error(b"[1]") == "[1]"


def test_each_output_may_be_wanted_in_its_own_way() -> None:
    outputs = [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}]
    request = decode_request(json.dumps({"inputs": [X], "outputs": outputs}).encode())
    assert request.outputs == {"a": True, "b": False}
    message = encode_response("m", {"b": np.ones(1), "a": np.ones(1), "c": np.ones(1)}, request)
    assert set(decode_response(message.body, message.json_length)) == {"a", "b"}


@pytest.mark.parametrize("values", [[0, 2**64 - 1], [2**63, 2**63 + 1], [1, 2]])
def test_large_unsigned_integers_are_exact(values: list[int]) -> None:
    read = decode_request(body(shape=[2], datatype="UINT64", data=values)).inputs["x"]
    assert read.tolist() == values


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "a JSON list; it must be an object with 'inputs'"),
        (b"{}", "inputs is missing"),
        (b'{"inputs": []}', "at least one"),
        (b'{"inputs": [3]}', r"inputs\[0\] is a JSON number"),
        (body(name=...), r"inputs\[0\]\.name is missing"),
        (body(datatype="FP8"), r"inputs\[0\]\.datatype: 'FP8' is not supported; it must be one of BOOL"),
        (body(datatype="BYTES"), r"inputs\[0\]\.data: BYTES of the shape \[2, 2\] are a list of 4 texts"),
        (body(shape=[-1, 2]), r"inputs\[0\]\.shape: \[-1, 2\]"),
        (body(shape=[True]), r"inputs\[0\]\.shape"),
        (body(shape=[1] * 40), r"at most 32"),
        (body(shape=[2**62, 8]), "larger than any memory"),
        (body(shape=[2**32, 2**31], datatype="INT8"), "larger than any memory"),
        (body(shape=[2**62], datatype="INT8"), "has 4 values"),
        (body(shape=[0, 2**63]), "is not a list of lengths"),
        (body(shape=[0, 2**63 - 1]), "has 4 values"),
        (body(shape=[1] * 33), r"at most 32"),
        (body(shape=[2], datatype="BYTES", data=["a", 3]), "a list of 2 texts"),
        (body(shape=[2], datatype="BYTES", data=["a"]), "a list of 2 texts"),
        (body(data=[1, 2, -3, 2**63], datatype="UINT64"), "not UINT64"),
        (body(data=[1, 2, 3, 2**63], datatype="INT64"), "outside INT64"),
        (body(data=[1, 2, 3, -129], datatype="INT8"), "outside INT8"),
        (body(data=...), "'data' or the parameter"),
        (body(data=[1, 2, 3]), r"inputs\[0\]\.data has 3 values .* takes 4"),
        (body(data=[[1, 2, 3, 4]]), r"shape \[1, 4\]"),
        (body(data=[[1, 2], [3]]), r"inputs\[0\]\.data"),
        (body(data=["1", "2", "3", "4"]), "not FP32"),
        (body(data=[1, None, 3, 4]), "not FP32"),
        (body(data=[1.5, 2, 3, 4], datatype="INT32"), "not INT32"),
        (body(data=[1, 2, 3, 256], datatype="UINT8"), "outside UINT8"),
        (body(data=[1, 2, 3, -1], datatype="UINT64"), "outside UINT64"),
        (body(data=[1, 2, 3, 2**64], datatype="UINT64"), "not UINT64"),
        (body(data=[1, 0, 1, 0], datatype="BOOL"), "not BOOL"),
        (body(parameters={"binary_data_size": 16}), "both 'data'"),
        (body(parameters=[]), r"inputs\[0\]\.parameters"),
        (body(parameters={"binary_data_size": 16}, data=...), "without the header Inference-Header-Content-Length"),
        (json.dumps({"inputs": [X, X]}).encode(), "duplicate name 'x'"),
        (json.dumps({"inputs": [X], "id": 3}).encode(), "id is a JSON number"),
        (json.dumps({"inputs": [X], "outputs": [{}]}).encode(), r"outputs\[0\]\.name is missing"),
        (json.dumps({"inputs": [X], "parameters": {"binary_data_output": 1}}).encode(), "must be true or false"),
    ],
)
def test_what_is_said_of_wrong_json(wrong: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        decode_request(wrong)


@pytest.mark.parametrize(
    ("wrong", "json_length", "said"),
    [
        (binary_body(), JSON_OF_BINARY + 3, "but the body has"),
        (binary_body(), 0, "but the body has"),
        (b"3", 1, "a JSON number; it must be an object"),
        (binary_body() + b"\0", JSON_OF_BINARY, "take 2 bytes, but 3 follow"),
        (binary_body()[:-1], JSON_OF_BINARY, "take 2 bytes, but 1 follow"),
        (binary_body(shape=[3]), JSON_OF_BINARY, "binary_data_size is 2, but BOOL of shape .3. has 3 bytes"),
        (binary_body()[:-1] + b"\x02", JSON_OF_BINARY, "byte of 0 or 1"),
    ],
)
def test_what_is_said_of_wrong_binary_tensors(wrong: bytes, json_length: int, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        decode_request(wrong, json_length)


@pytest.mark.parametrize("size", [-4, 2.0, True, "2"])
def test_the_size_of_byte_strings_is_a_number_of_bytes(size: object) -> None:
    wrong = json.dumps(
        {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": size}}]}
    ).encode()
    with pytest.raises(ProtocolError, match="binary_data_size is"):
        decode_request(wrong, len(wrong))


@pytest.mark.parametrize("values", [[-128, 127], [0, 0]])
def test_the_ends_of_a_type_belong_to_it(values: list[int]) -> None:
    assert decode_request(body(shape=[2], datatype="INT8", data=values)).inputs["x"].tolist() == values


def test_the_header_of_the_stages() -> None:
    stages = Stages(decode=1, queue=2, batch=3, inference=4, post=5, size=6)
    assert str(stages) == "d=1,q=2,b=3,i=4,p=5,n=6"
    assert str(stages._replace(pre=7)) == "d=1,q=2,b=3,i=4,p=5,n=6,r=7"


def test_a_tensor_in_shared_memory_is_a_view_of_it() -> None:
    x = np.arange(6, dtype=np.int64).reshape(2, 3)
    memory = b"\0" * 16 + x.tobytes()
    message = encode_shared_request({"x": x}, "mine", {"x": 16})
    assert message.json_length is None
    asked: list[tuple[str, int, int]] = []

    def lookup(name: str, offset: int, size: int) -> memoryview:
        asked.append((name, offset, size))
        return memoryview(memory)[offset : offset + size]

    found = decode_request(message.body, None, lookup)
    assert asked == [("mine", 16, 48)]
    assert np.array_equal(found.inputs["x"], x)
    assert found.binary
    with pytest.raises(ProtocolError, match=r"inputs\[0\]: this server takes no tensors from shared memory"):
        decode_request(message.body)


@pytest.mark.parametrize("offset", [{}, {"shared_memory_offset": 0}])
def test_a_tensor_lies_at_the_begin_of_its_region_unless_told_otherwise(offset: dict[str, int]) -> None:
    place = {"shared_memory_region": "mine", "shared_memory_byte_size": 8} | offset
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": place}
    asked: list[tuple[str, int, int]] = []

    def lookup(name: str, offset: int, size: int) -> bytes:
        asked.append((name, offset, size))
        return bytes(8)

    assert decode_request(json.dumps({"inputs": [tensor]}).encode(), None, lookup).inputs["x"].tolist() == [0.0, 0.0]
    assert asked == [("mine", 0, 8)]


@pytest.mark.parametrize(
    ("parameters", "more", "said"),
    [
        ({"byte_size": 12}, {}, "shared_memory_byte_size is 12, but the tensor has 8 bytes"),
        ({"byte_size": "8"}, {}, "shared_memory_byte_size is '8'"),
        ({"byte_size": 8, "offset": -4}, {}, "shared_memory_offset is -4"),
        ({"byte_size": 8, "offset": True}, {}, "shared_memory_offset is True"),
        ({"byte_size": 8}, {"data": [1, 2]}, "has data as well"),
        ({"byte_size": 8}, {"datatype": "BYTES"}, "BYTES are not taken"),
        ({"byte_size": 8, "region": 7}, {}, "shared_memory_region is a JSON number"),
    ],
)
def test_what_is_said_of_a_wrong_place(parameters: dict[str, Any], more: dict[str, Any], said: str) -> None:
    place = {f"shared_memory_{word}": value for word, value in ({"region": "mine"} | parameters).items()}
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": place} | more
    with pytest.raises(ProtocolError, match=said):
        decode_request(json.dumps({"inputs": [tensor]}).encode(), None, lambda *_: b"12345678")
