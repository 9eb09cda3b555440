"""TensorRT: what is refused where it is missing, and the order of calls to a stand-in for its package.

The stand-in's only network copies its input to its output, in the memory whose addresses it is told.
"""

from __future__ import annotations

import ctypes
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.benchmarks.inference import _tensorrt
from paceline.benchmarks.inference.inference import Inference, InferenceParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import CaseError, MissingDependency, Unsupported
from paceline.models.base import Traits
from support.refused import refused


class DataType(Enum):
    FLOAT = 0
    INT64 = 1


class Package(ModuleType):
    """As much of `tensorrt` as is called, and what was called."""

    Logger = SimpleNamespace(ERROR=1)
    NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
    BuilderFlag = SimpleNamespace(TF32="TF32")
    TensorIOMode = SimpleNamespace(INPUT="in", OUTPUT="out")
    DataType = DataType

    def __init__(self, version: str = "10.9.0", parses: bool = True) -> None:
        super().__init__("tensorrt")
        self.__version__ = version
        self.calls: list[str] = []
        self.shape: tuple[int, ...] = ()
        self.addresses: dict[str, int] = {}
        self.parses = parses
        self.type = DataType.FLOAT
        self.Logger = lambda level: SimpleNamespace(level=level)
        self.Logger.ERROR = 1  # type: ignore[attr-defined]
        self.Builder = lambda logger: self
        self.Runtime = lambda logger: self
        self.OnnxParser = lambda network, logger: self
        self.num_errors, self.num_io_tensors = 1, 2

    def create_network(self, flags: int) -> Any:
        self.calls.append(f"network {flags}")
        return SimpleNamespace(get_input=lambda number: SimpleNamespace(name="x"))

    def parse_from_file(self, path: str) -> bool:
        self.calls.append(f"parse {path}")
        return self.parses

    def get_error(self, number: int) -> Any:
        return SimpleNamespace(desc=lambda: "no importer for Foo")

    def create_builder_config(self) -> Any:
        return self

    def set_flag(self, flag: str) -> None:
        self.calls.append(f"set {flag}")

    def clear_flag(self, flag: str) -> None:
        self.calls.append(f"clear {flag}")

    def create_optimization_profile(self) -> Any:
        return self

    def set_shape(self, name: str, least: Any, usual: Any, most: Any) -> None:
        assert least == usual == most
        self.calls.append(f"profile {name} {least}")

    def add_optimization_profile(self, profile: Any) -> None:
        self.calls.append("add profile")

    def build_serialized_network(self, network: Any, config: Any) -> bytes:
        self.calls.append("build")
        return b"plan"

    def deserialize_cuda_engine(self, plan: bytes) -> Any:
        return self

    def create_execution_context(self) -> Any:
        return self

    def get_tensor_name(self, number: int) -> str:
        return ("x", "y")[number]

    def get_tensor_dtype(self, name: str) -> DataType:
        return self.type

    def get_tensor_mode(self, name: str) -> str:
        return {"x": "in", "y": "out"}[name]

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shape

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        self.calls.append(f"execute on {stream}")
        ctypes.memmove(self.addresses["y"], self.addresses["x"], 4 * torch.Size(self.shape).numel())
        return True


class Stream:
    def __init__(self, number: int, calls: list[str]) -> None:
        self.cuda_stream, self._calls = number, calls

    def wait_stream(self, other: Stream) -> None:
        self._calls.append(f"{self.cuda_stream} waits for {other.cuda_stream}")


def device(package: Package | None = None, libraries: tuple[str, ...] = ("tensorrt",)) -> Any:
    calls = package.calls if package else []
    return SimpleNamespace(
        kind=SimpleNamespace(libraries=libraries, noun="GPU"),
        torch=lambda: torch.device("cpu"),
        stream=lambda: Stream(7, calls),
        current_stream=lambda: Stream(0, calls),
    )


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    made = Package()
    monkeypatch.setitem(sys.modules, "tensorrt", made)
    return made


def test_an_engine_is_built_for_the_batch_and_runs_on_a_stream_of_its_own(package: Package) -> None:
    engine = _tensorrt.Engine(Path("net.onnx"), device(package), tf32=False)
    (first,) = engine.run(torch.arange(6.0).reshape(2, 3))
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert package.calls == [
        "network 2",
        "parse net.onnx",
        "clear TF32",
        "profile x (2, 3)",
        "add profile",
        "build",
        "7 waits for 0",
        "execute on 7",
        "0 waits for 7",
    ]
    engine.run(torch.ones(2, 3))
    assert package.calls.count("build") == 1
    (other,) = engine.run(torch.ones(4, 3))
    assert (package.calls.count("build"), other.shape) == (2, (4, 3))


def test_tf32_is_a_choice_and_other_data_is_refused(package: Package) -> None:
    engine = _tensorrt.Engine(Path("net.onnx"), device(package), tf32=True)
    package.type = DataType.INT64
    with pytest.raises(CaseError, match=r"input x is torch\.int64, row by row, and the data torch\.float32"):
        engine.run(torch.ones(2, 3))
    assert "set TF32" in package.calls


def test_a_model_that_it_does_not_read_is_unsupported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", Package(parses=False))
    with pytest.raises(Unsupported, match=r"does not read the model: no importer for Foo: use --engine torch"):
        _tensorrt.Engine(Path("net.onnx"), device(Package()), tf32=False).run(torch.ones(1, 1))


def test_where_it_is_missing_or_too_old_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match=r"computes on NVIDIA GPUs, and the target is a GPU: use --target cuda:0"):
        _tensorrt.require(device(libraries=()))
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingDependency, match="pip install tensorrt"):
        _tensorrt.require(device())
    monkeypatch.setitem(sys.modules, "tensorrt", Package("8.6.1"))
    with pytest.raises(Unsupported, match=r"TensorRT 8\.6\.1 is too old, 10 is needed"):
        _tensorrt.require(device())


def test_without_a_gpu_nothing_is_exported_first() -> None:
    parameters = InferenceParameters.read({"model": "resnet18", "scale": "tiny", "engine": "tensorrt"})
    phases: list[str] = []
    case = Case(index=0, benchmark="inference", parameters={}, title="", target="cpu")
    with pytest.raises(Unsupported, match="NVIDIA GPUs"):
        Inference().measure(parameters, Context(case=case, report=lambda progress: phases.append(progress.phase)))
    assert phases == []


@pytest.mark.parametrize(
    ("more", "code", "key"),
    [
        ({"precision": "bf16"}, "fixed-precision", "precision"),
        ({"channels_last": "on"}, "fixed-engine", "channels_last"),
        ({"batch_size": "auto"}, "fixed-engine", "batch_size"),
        ({"compile": "on"}, "fixed-engine", "compile"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_runs(more: dict[str, str], code: str, key: str) -> None:
    with refused(code, key=key):
        Inference.check_traits(InferenceParameters.read({"model": "resnet18", "engine": "tensorrt", **more}), Traits())
    for precision in ("fp32", "tf32", "fp16"):
        given = {"model": "resnet18", "engine": "tensorrt", "precision": precision}
        Inference.check_traits(InferenceParameters.read(given), Traits())
