"""What is around a recorded batch, with work that is done instead of replayed: only the recording needs a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.load.kserve import TensorSpec
from paceline.servers._embedded.engines import Arrays, CompiledEngine
from paceline.servers.base import Artifact
from support.embedded import artifact_of

torch = pytest.importorskip("torch", reason="needs it: pip install '.[torch]'")

from paceline.servers._embedded import cuda_sessions  # noqa: E402
from paceline.servers._embedded.cuda_sessions import RecordedWork, Replaying  # noqa: E402

CPU = torch.device("cpu")
TWO = Artifact(
    "m",
    "tiny",
    "eager",
    "fp32",
    1,
    None,
    (TensorSpec("a", "FP32", (2,)), TensorSpec("b", "INT64", ())),
    (TensorSpec("sum", "FP32", (2,)), TensorSpec("rows", "INT64", ())),
)


def two(a: Any, b: Any) -> Any:
    assert torch.is_inference_mode_enabled()
    return a + b[:, None], b * 2


def replaying(otherwise: Any, *sizes: int) -> Replaying:
    return Replaying({size: RecordedWork(two, TWO, size, CPU) for size in sizes}, otherwise)


def inputs(rows: int, start: int) -> dict[str, Any]:
    b = np.arange(start, start + rows, dtype=np.int64)
    return {"a": np.repeat(b[:, None], 2, axis=1).astype(np.float32) / 2, "b": b}


def never(inputs: Arrays) -> Arrays:
    raise AssertionError("it is recorded")


def test_every_call_has_its_own_answer_and_keeps_it() -> None:
    session = replaying(never, 1, 3)
    asked = [inputs(rows, start) for start, rows in enumerate((3, 1, 3, 3))]
    found = [session(one) for one in asked]
    for one, answer in zip(asked, found, strict=True):
        assert np.array_equal(answer["sum"], one["a"] + one["b"][:, None])
        assert np.array_equal(answer["rows"], one["b"] * 2)
        assert [answer[spec.name].dtype for spec in TWO.outputs] == [spec.dtype for spec in TWO.outputs]


def test_what_lies_in_the_buffers_already_is_taken_from_there() -> None:
    session = replaying(never, 2)
    place = session.buffers(2)
    assert place is not None
    for name, array in inputs(2, 7).items():
        place[name][:] = array
    assert session(place)["rows"].tolist() == [14, 16]
    assert session(inputs(2, 0))["rows"].tolist() == [0, 2]


def test_a_size_that_is_not_recorded_goes_the_other_way() -> None:
    session = replaying(lambda inputs: {"other": inputs["b"]}, 2)
    assert session.buffers(3) is None
    assert session(inputs(3, 1))["other"].tolist() == [1, 2, 3]


def test_a_module_with_one_output_and_memory_in_another_order() -> None:
    def turned(x: Any) -> Any:
        return (x * 2).t().contiguous().t()

    work = RecordedWork(turned, artifact_of(), 2, CPU)
    work.inputs["x"][:] = [[1, 2, 3], [4, 5, 6]]
    work.run()
    assert work.outputs["y"].tolist() == [[2, 4, 6], [8, 10, 12]]


def test_why_there_is_no_graph_is_told_once_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def broken(*_: Any) -> Any:
        tried.append(1)
        raise cuda_sessions.NotCaptured("RuntimeError: it waits for the device")

    monkeypatch.setattr(cuda_sessions, "record", broken)
    monkeypatch.setattr(cuda_sessions, "launching", lambda *_: never)
    engine = CompiledEngine(artifact_of(), "cuda:0", never, [1, 2])
    assert engine.facts() == {}  # nothing is known before there is an instance
    assert [engine.session(1), engine.session(1)] == [never, never]
    assert engine.facts() == {"graph": "not captured: RuntimeError: it waits for the device"}
    assert tried == [1]


def test_sizes_of_samples_that_vary_and_a_user_who_wants_none_have_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_sessions, "record", never)
    monkeypatch.setattr(cuda_sessions, "launching", lambda *_: never)
    varying = CompiledEngine(artifact_of(width=-1), "cuda:0", never, [1])
    assert varying.session(1) is never
    assert varying.facts() == {"graph": "not captured: the sizes of x vary"}
    off = CompiledEngine(artifact_of(), "cuda:0", never, [1], with_graphs=False)
    assert off.session(1) is never
    assert off.facts() == {"graph": "off"}


def test_instances_with_graphs_say_for_which_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(_: Any, artifact: Artifact, sizes: list[int], device: str) -> dict[int, RecordedWork]:
        return {size: RecordedWork(lambda x: x, artifact, size, CPU) for size in sizes}

    monkeypatch.setattr(cuda_sessions, "record", recorded)
    monkeypatch.setattr(cuda_sessions, "launching", lambda *_: never)
    engine = CompiledEngine(artifact_of(), "cuda:0", never, [4, 1])
    x = np.ones((4, 3), np.float32)
    for session in (engine.session(1), engine.session(1)):
        assert np.array_equal(session({"x": x})["y"], x)
    assert engine.facts() == {"graph": "captured for batches of 1, 4"}


def test_a_device_that_cannot_record_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    with pytest.raises(cuda_sessions.NotCaptured, match=r"^\w+: .+"):
        cuda_sessions.record(two, TWO, [1], "cuda:0")
    assert "Traceback" in capfd.readouterr().err
