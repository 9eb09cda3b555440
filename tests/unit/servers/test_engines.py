"""The torch engine: arrays in, arrays out, whatever the module is."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from paceline.load.kserve import TensorSpec
from paceline.servers._embedded.engines import NullEngine, TorchEngine, warm_up
from paceline.servers.base import Artifact
from support.embedded import artifact_of

torch = pytest.importorskip("torch", reason="needs it: pip install '.[torch]'")


def test_a_module_answers_in_the_order_of_the_specs() -> None:
    def module(a: Any, b: Any) -> Any:
        assert torch.is_inference_mode_enabled()
        return a + b, a - b

    specs = (TensorSpec("a", "FP32", (2,)), TensorSpec("b", "FP32", (2,)))
    outputs = (TensorSpec("sum", "FP32", (2,)), TensorSpec("difference", "FP32", (2,)))
    artifact = Artifact("m", "tiny", "eager", "fp32", 1, None, specs, outputs)
    session = TorchEngine(artifact, "cpu", module).session(1)
    a, b = np.array([[5, 7]], np.float32), np.array([[1, 2]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = session({"b": b, "a": a})
    assert {name: array.tolist() for name, array in found.items()} == {"sum": [[6, 9]], "difference": [[4, 5]]}


def test_warming_up_tries_every_size_and_fills_axes_that_vary() -> None:
    seen: list[tuple[int, ...]] = []

    def session(inputs: Any) -> Any:
        seen.append(inputs["x"].shape)
        return {}

    warm_up(session, artifact_of(width=-1).inputs, [1, 4])
    assert {shape[0] for shape in seen} == {1, 4}
    assert all(shape[1] > 0 for shape in seen)


def test_nothing_is_computed_by_the_null_engine() -> None:
    engine = NullEngine(artifact_of(), "cpu")
    found = engine.session(1)({"x": np.ones((3, 3), np.float32)})
    assert found["output"].shape == (3, *engine.outputs()[0].shape)
