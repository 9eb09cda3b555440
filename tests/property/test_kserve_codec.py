"""What is encoded is decoded again, and nothing but ProtocolError comes of what is not in the protocol."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from paceline.load import kserve_grpc
from paceline.load.kserve import (
    BYTE_STRINGS,
    BYTES,
    DATATYPES,
    Array,
    ProtocolError,
    Request,
    byte_strings,
    decode_error,
    decode_request,
    decode_response,
    encode_error,
    encode_request,
    encode_response,
)
from paceline.load.trace import Stages
from support.kserve_requests import with_fields
from support.stages import stages_of

KNOWN = [*DATATYPES, BYTES]
NAMES = st.text(min_size=1, max_size=8)
ARRAYS = st.sampled_from(list(DATATYPES.values())).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
STRINGS = st.lists(st.binary(max_size=9), max_size=4).map(byte_strings)
TENSORS = st.dictionaries(NAMES, ARRAYS | STRINGS, min_size=1, max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(KNOWN),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["inputs", "outputs", "name", "shape", "datatype", "data", "parameters", "id", "binary_data_size"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


def all_text(tensors: dict[str, Array]) -> bool:
    """Whether JSON can carry them."""
    strings = [one for array in tensors.values() if array.dtype == BYTE_STRINGS for one in array.tolist()]
    return all(one == one.decode(errors="ignore").encode() for one in strings)


def equal(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and np.array_equal(one[name].view(), other[name], equal_nan=one[name].dtype.kind == "f")
        for name in one
    )


@given(TENSORS, st.booleans(), st.text(max_size=5))
def test_a_request_survives(inputs: dict[str, Array], binary: bool, id: str) -> None:
    binary = binary or not all_text(inputs)
    message = with_fields(encode_request(inputs, binary=binary), id=id)
    read = decode_request(message.body, message.json_length)
    assert equal(inputs, read.inputs)
    assert (read.id, read.binary, read.outputs) == (id, binary, None)


@given(TENSORS, st.data())
def test_an_answer_has_the_outputs_that_were_asked_for(outputs: dict[str, Array], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from(list(outputs)), min_size=1, unique=True))
    binary = data.draw(st.booleans()) or not all_text(outputs)
    named = [{"name": name} for name in wanted]
    asked = with_fields(encode_request({"x": np.zeros(1)}, binary=binary), id="7", outputs=named)
    message = encode_response("m", outputs, decode_request(asked.body, asked.json_length))
    assert equal({name: outputs[name] for name in wanted}, decode_response(message.body, message.json_length))
    head = json.loads(message.body[: message.json_length])
    assert (head["model_name"], head["id"]) == ("m", "7")


@given(TENSORS)
def test_binary_tensors_are_views_of_what_was_received(inputs: dict[str, Array]) -> None:
    message = encode_request(inputs, binary=True)
    received = bytearray(message.body)
    for array in decode_request(received, message.json_length).inputs.values():
        is_copied = array.size == 0 or array.dtype == BYTE_STRINGS
        assert is_copied or np.shares_memory(array, np.frombuffer(received, np.uint8))


@given(TENSORS, st.booleans(), st.data())
def test_damaged_bytes_are_refused_or_read_but_never_crash(
    inputs: dict[str, Array], binary: bool, data: st.DataObject
) -> None:
    message = encode_request(inputs, binary=binary or not all_text(inputs))
    body = bytearray(message.body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    length = data.draw(st.none() | st.just(message.json_length) | st.integers(-1, len(body) + 1))
    read_or_refused(bytes(body), length)


@given(JSON, st.binary(max_size=16))
def test_any_json_is_refused_or_read_but_never_crashes(value: Any, behind: bytes) -> None:
    text = json.dumps(value).encode()
    read_or_refused(text, None)
    read_or_refused(text + behind, len(text))


@given(st.dictionaries(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), JSON), st.data())
def test_any_tensor_is_refused_or_read_but_never_crashes(entry: dict[str, Any], data: st.DataObject) -> None:
    entry["name"] = "x"
    entry["datatype"] = data.draw(st.sampled_from(KNOWN))
    entry["shape"] = data.draw(st.lists(st.integers(-1, 4), max_size=3) | st.lists(st.integers()))
    text = json.dumps({"inputs": [entry]}).encode()
    read_or_refused(text, None)
    read_or_refused(text, len(text))


def read_or_refused(body: bytes, json_length: int | None) -> None:
    for decode in (decode_request, decode_response):
        try:
            decode(body, json_length)
        except ProtocolError as error:
            assert str(error)


@given(TENSORS, st.data())
def test_a_grpc_request_and_its_answer_survive(tensors: dict[str, Array], data: st.DataObject) -> None:
    model, read = kserve_grpc.decode_request(kserve_grpc.encode_request("m", tensors))
    assert model == "m" and equal(tensors, read.inputs)
    wanted = data.draw(st.none() | st.lists(st.sampled_from(list(tensors)), min_size=1, unique=True))
    asked = Request(read.inputs, "7", None if wanted is None else dict.fromkeys(wanted, True))
    answer = kserve_grpc.decode_response(kserve_grpc.encode_response("m", tensors, asked))
    assert equal({name: tensors[name] for name in wanted or tensors}, answer)


@given(TENSORS, st.data())
def test_damaged_grpc_messages_are_refused_or_read_but_never_crash(
    tensors: dict[str, Array], data: st.DataObject
) -> None:
    message = bytearray(kserve_grpc.encode_request("m", tensors))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message)))
        message[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    for decode in (kserve_grpc.decode_request, kserve_grpc.decode_response):
        with suppress(ProtocolError):
            decode(bytes(message))


@given(st.text())
def test_an_error_survives(message: str) -> None:
    assert decode_error(encode_error(message)) == message


@given(st.binary())
def test_the_body_of_any_failure_can_be_shown(body: bytes) -> None:
    assert isinstance(decode_error(body), str)


@given(st.tuples(*[st.integers(0, 2**62)] * 7))
def test_stages_survive(values: tuple[int, int, int, int, int, int, int]) -> None:
    stages = Stages(*values)
    assert stages_of(str(stages)) == stages
    assert ("r=" in str(stages)) == (stages.pre > 0)
