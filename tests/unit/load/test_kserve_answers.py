"""Which answers of tensor protocols are answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from paceline.load import kserve, kserve_grpc
from paceline.load.kserve import Array
from paceline.load.results import problem


def body(*shapes: list[int], **more: Any) -> bytes:
    outputs = [
        {"name": f"y{index}", "datatype": "FP32", "shape": shape, "data": [0.5] * int(np.prod(shape))}
        for index, shape in enumerate(shapes)
    ]
    return json.dumps({"model_name": "m", "outputs": outputs, **more}).encode()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (body([2, 10]), ""),
        (body([1, 10]), "output 'y0' has the shape [1, 10] instead of [2, 10]"),
        (body([2, 9]), "has the shape [2, 9]"),
        (body(), "no outputs"),
        (body([2, 10], [2, 10]), "2 outputs instead of 1"),
        (b'{"model_name": "m"}', "outputs"),
        (b'{"error": "out of memory"}', "the server reports an error: out of memory"),
        (b"<html>Sign in</html>", "not an answer of the protocol: <html>Sign in</html>"),
        (b"", "an empty body"),
    ],
)
def test_an_answer_has_the_outputs_of_its_request(answer: bytes, says: str) -> None:
    found = problem("kserve-json", answer, 2, [(10,)])
    assert says in found and bool(found) == bool(says)


def test_lengths_that_are_not_known_and_shapes_that_nobody_said_may_be_any() -> None:
    assert problem("kserve-json", body([2, 7]), 2, [(-1,)]) == ""
    assert problem("kserve-json", body([5]), 2, []) == ""
    assert problem("kserve-json", body(), 2, []) == "the answer has no outputs"


def test_all_wires_are_read() -> None:
    outputs: dict[str, Array] = {"y": np.zeros((2, 10), np.float32)}
    binary = kserve.encode_response("m", outputs, kserve.Request({}, binary=True)).body
    grpc = kserve_grpc.encode_response("m", outputs)
    for wire, answer in (("kserve-binary", binary), ("kserve-grpc", grpc)):
        assert problem(wire, answer, 2, [(10,)]) == ""  # type: ignore[arg-type]
        assert problem(wire, answer, 3, [(10,)])  # type: ignore[arg-type]
