"""What is sent: sizes by a rule, tensors, prompts, the user's own files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline.benchmarks.serving.requests import RequestMaker, encode, read_samples
from paceline.load import kserve, kserve_grpc
from paceline.load.distribution import Distribution
from paceline.load.kserve import ProtocolError, TensorSpec
from paceline.load.parameters import RequestParameters
from paceline.load.request import Endpoint, Wire
from paceline.servers import SERVERS
from paceline.servers.base import Artifact
from support.refused import refused


def endpoint(wire: Wire) -> Endpoint:
    return Endpoint(wire, "127.0.0.1", 1, "/", "m")


INPUTS = (TensorSpec("x", "FP32", (2,)), TensorSpec("ids", "INT64", (3,)))


# ---- distributions


@pytest.mark.parametrize("text", ["4", "uniform(1, 8)", "normal(128, 32)", "lognormal(64, 0.5)", "{1: 0.7, 4: 0.3}"])
def test_a_distribution_prints_as_it_is_written(text: str) -> None:
    assert str(Distribution.parse(text)) == text
    assert Distribution.parse(str(Distribution.parse(text))) == Distribution.parse(text)


def test_draws_follow_the_rule_and_the_seed() -> None:
    def draw(given: object) -> np.ndarray:
        return Distribution.parse(given).draw(20_000, np.random.default_rng(5))

    assert set(draw(7)) == {7}
    assert set(draw("uniform(2, 4)")) == {2, 3, 4}
    assert np.mean(draw({1: 7, 4: 3}) == 4) == pytest.approx(0.3, abs=0.02)
    assert np.mean(draw("normal(100, 10)")) == pytest.approx(100, rel=0.01)
    assert np.median(draw("lognormal(50, 0.5)")) == pytest.approx(50, rel=0.03)
    assert draw("normal(1, 5)").min() == 1
    assert (draw("uniform(1, 9)") == draw("uniform(1, 9)")).all()


@pytest.mark.parametrize(
    "given",
    [
        "",
        "many",
        "uniform(8, 1)",
        "normal(1)",
        "lognormal(0, 1)",
        {},
        {1: -1},
        {1: "inf"},
        {"a": 1},
        1.5,
        True,
        -1,
        "9" * 12,
    ],
)
def test_what_is_no_distribution_is_refused(given: object) -> None:
    with pytest.raises(ValueError):
        Distribution.parse(given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"samples": 0}, "at least one sample"),
        ({"samples": "uniform(0, 4)"}, "at least one sample"),
        ({"output_tokens": {0: 1}}, "at least one token"),
        ({"sample": 1}, "sample"),
    ],
)
def test_requests_that_cannot_be_meant_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RequestParameters(**given)


def test_requests_survive_being_written_down() -> None:
    wanted = RequestParameters.model_validate({"samples": {1: 0.5, 8: 0.5}, "prompt_tokens": "uniform(4, 9)"})
    assert RequestParameters.model_validate_json(wanted.model_dump_json()) == wanted


# ---- tensors


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def artifact() -> Artifact:
    return Artifact("mine", "full", "onnx", "fp32", 1, None, INPUTS, ())


def test_the_users_own_samples_are_sent_in_turn(tmp_path: Path) -> None:
    file = save(tmp_path / "mine.npz", x=np.arange(6.0).reshape(3, 2), ids=np.ones((3, 3), int))
    wanted = RequestParameters(dataset=file, distinct=4, samples=Distribution.constant(2))
    made = RequestMaker(wanted, artifact(), endpoint("kserve-json"), 1, 8, allow_import=False).tensor_requests()
    assert [one["x"][:, 0].tolist() for one in made.tensors] == [[0, 2], [2, 4], [4, 0], [0, 2]]
    assert {one.samples for one in made.prepared} == {2}
    assert made.tensors[0]["x"].dtype == np.float32
    told = kserve.decode_request(made.prepared[0].body)
    assert told.inputs["x"].tolist() == [[0, 1], [2, 3]]


def test_a_request_larger_than_a_batch_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    file = save(tmp_path / "mine.npz", x=np.zeros((3, 2)), ids=np.ones((3, 3), int))
    wanted = RequestParameters(dataset=file, samples=Distribution.constant(9))
    with refused("too-many-samples", key="requests.samples", value=9):
        RequestMaker(wanted, artifact(), endpoint("kserve-json"), 1, 8, allow_import=False).tensor_requests()


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"x": np.zeros((3, 2))}, "missing-array"),
        ({"x": np.zeros((3, 5)), "ids": np.ones((3, 3))}, "wrong-shape"),
        ({"x": np.zeros((3, 2)), "ids": np.ones((4, 3))}, "unequal-lengths"),
        ({"x": np.zeros((0, 2)), "ids": np.ones((0, 3))}, "unequal-lengths"),
    ],
)
def test_a_file_that_does_not_fit_the_model_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], code: str
) -> None:
    with refused(code, key="requests.dataset"):
        read_samples(save(tmp_path / "mine.npz", **arrays), INPUTS)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with refused("unreadable-file", key="requests.dataset"):
        read_samples(tmp_path / "none.npz", INPUTS)
    with refused("not-an-npz-file", key="requests.dataset"):
        read_samples(tmp_path / "some.csv", INPUTS)


def test_binary_requests_say_where_their_json_ends() -> None:
    made = encode({"x": np.ones((1, 2), np.float32)}, endpoint("kserve-binary"))
    length = int(made.headers[kserve.JSON_LENGTH])
    assert kserve.decode_request(made.body, length).inputs["x"].tolist() == [[1.0, 1.0]]


def test_only_a_server_that_never_splits_a_request_bounds_its_samples() -> None:
    known = SERVERS.registry().entries

    def most(kind: str, **settings: Any) -> int | None:
        return known[kind].most_samples(known[kind].Settings(kind=kind, **settings))

    assert most("embedded", max_batch=4) == 4
    assert most("mlserver", max_batch=4) is None  # there it counts requests


# ---- gRPC messages


def test_tensors_come_back_from_a_grpc_message() -> None:
    outputs = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([[2**40]], np.int64)}
    found = kserve_grpc.decode_response(kserve_grpc.encode_response("m", outputs))
    assert list(found) == ["a", "b"]
    for name, expected in outputs.items():
        assert (found[name] == expected).all()
        assert found[name].dtype == expected.dtype


def test_a_request_is_what_the_protocol_says() -> None:
    protobuf = pytest.importorskip("google.protobuf.descriptor_pb2", reason="needs it: pip install '.[serving]'")
    from google.protobuf import descriptor_pool, message_factory

    kinds = protobuf.FieldDescriptorProto
    file = protobuf.FileDescriptorProto(name="infer.proto", package="inference", syntax="proto3")
    tensor = file.message_type.add(name="Tensor")
    for number, name, kind, label in ((1, "name", 9, 1), (2, "datatype", 9, 1), (3, "shape", 3, 3)):
        tensor.field.add(name=name, number=number, type=kind, label=label)
    request = file.message_type.add(name="Request")
    request.field.add(name="model_name", number=1, type=kinds.TYPE_STRING, label=1)
    request.field.add(name="inputs", number=5, type=kinds.TYPE_MESSAGE, label=3, type_name=".inference.Tensor")
    request.field.add(name="raw_input_contents", number=7, type=kinds.TYPE_BYTES, label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    parsed = message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.Request"))()
    parsed.ParseFromString(kserve_grpc.encode_request("mine", {"x": np.ones((3, 200), np.int8)}))
    assert parsed.model_name == "mine"
    assert (parsed.inputs[0].name, parsed.inputs[0].datatype, list(parsed.inputs[0].shape)) == ("x", "INT8", [3, 200])
    assert parsed.raw_input_contents[0] == bytes([1]) * 600


@given(st.binary(max_size=200))
def test_any_bytes_are_outputs_or_one_kind_of_error(message: bytes) -> None:
    with suppress(ProtocolError):
        kserve_grpc.decode_response(message)


@given(st.integers(0, 80))
def test_a_message_that_breaks_off_is_told(cut: int) -> None:
    message = kserve_grpc.encode_response("m", {"a": np.arange(6, dtype=np.float32).reshape(2, 3)})
    if cut < len(message):
        with suppress(ProtocolError):
            assert kserve_grpc.decode_response(message[:cut]) == {}  # cut between two fields, before any tensor
