"""How each format is written, and how it is opened again to be checked.

OpenVINO reads the ONNX file. Its own converter for torch, `convert_model`, reports its use over the network.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.benchmarks.serving._served import Served, flat
from paceline.core.errors import MissingDependency

TRACED_ROWS = 2  # a batch of 1 might be taken for a constant
MOST_ROWS = 65_536
LARGEST_FILE = 1_500_000_000  # bytes of weights: an ONNX file of more than 2 GB must keep them beside itself

Run = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Job:
    """What is to be written: the module, inputs to trace it with, and what these and the outputs are called."""

    served: Served
    inputs: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]

    @property
    def traced(self) -> tuple[Tensor, ...]:
        return tuple(one[:TRACED_ROWS] for one in self.inputs)

    @property
    def dynamic_shapes(self) -> tuple[tuple[dict[int, Any], ...]]:
        """The batch may have any size; nested as the module's one variadic argument is."""
        batch = torch.export.Dim("batch", min=1, max=MOST_ROWS)
        return (tuple({0: batch} for _ in self.inputs),)


@dataclass(frozen=True)
class Exporter:
    """One format: its main file, what it needs, and the two ways."""

    file: str
    write: Callable[[Job, Path], None]
    open: Callable[[Path, torch.device], Run]
    precisions: tuple[str, ...]
    packages: tuple[str, ...] = ()  # whose versions decide what is written
    runtime: tuple[str, ...] = ()  # only to check it
    any_device: bool = False  # whether the file runs elsewhere than where it was traced

    def require(self) -> None:
        """Raise where a package is not installed."""
        for name in (*self.packages, *self.runtime):
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise MissingDependency(name, f"pip install 'paceline[serving]' ({error})") from None

    def versions(self) -> dict[str, str]:
        return {name: str(importlib.import_module(name).__version__) for name in ("torch", *self.packages)}


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters warn of what they do; what matters is checked after."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def _write_torchscript(job: Job, path: Path) -> None:
    traced = torch.jit.trace(job.served, job.traced, check_trace=False)  # type: ignore[no-untyped-call]
    torch.jit.save(torch.jit.freeze(traced), path)


def _open_torchscript(path: Path, device: torch.device) -> Run:
    module = torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]
    return lambda inputs: flat(module(*inputs))


def _write_torch_export(job: Job, path: Path) -> None:
    torch.export.save(_exported(job), path)


def _exported(job: Job) -> torch.export.ExportedProgram:
    return torch.export.export(job.served, job.traced, dynamic_shapes=job.dynamic_shapes, strict=False)


def _open_torch_export(path: Path, device: torch.device) -> Run:
    module = torch.export.load(path).module()
    return lambda inputs: flat(module(*inputs))


def _write_onnx(job: Job, path: Path) -> None:
    """By torch's newer exporter, or else by its older one, which knows some operators that the newer does not."""
    weights = sum(one.numel() * one.element_size() for one in job.served.state_dict().values())
    names: dict[str, Any] = {"input_names": list(job.input_names), "output_names": list(job.output_names)}
    beside = {"external_data": weights > LARGEST_FILE}
    try:
        shapes = job.dynamic_shapes
        torch.onnx.export(
            job.served, job.traced, path, dynamo=True, dynamic_shapes=shapes, verbose=False, **names, **beside
        )
    except Exception:
        axes = {name: {0: "batch"} for name in (*job.input_names, *job.output_names)}
        with suppress(Exception):
            torch.onnx.export(job.served, job.traced, str(path), dynamo=False, dynamic_axes=axes, **names, **beside)
            return
        raise


def _open_onnx(path: Path, device: torch.device) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        given = {name: one.numpy() for name, one in zip(names, inputs, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, given)]

    return run


def _write_openvino(job: Job, path: Path) -> None:
    import openvino

    source = path.with_name("source.onnx")
    _write_onnx(job, source)
    # Weights stay as they are: the default would round them to fp16.
    openvino.save_model(openvino.Core().read_model(str(source)), str(path), compress_to_fp16=False)
    for leftover in path.parent.glob(f"{source.name}*"):
        leftover.unlink()


def _open_openvino(path: Path, device: torch.device) -> Run:
    import openvino

    # Where a CPU has 16-bit instructions, the default would compute with them.
    model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        answers = model([one.numpy() for one in inputs])
        return [torch.from_numpy(answers[number].copy()) for number in range(len(model.outputs))]

    return run


_FLOATS = ("fp32", "bf16", "fp16")
EXPORTERS = {
    "torchscript": Exporter("model.pt", _write_torchscript, _open_torchscript, _FLOATS),
    "torch-export": Exporter("model.pt2", _write_torch_export, _open_torch_export, _FLOATS),
    "onnx": Exporter(
        "model.onnx",
        _write_onnx,
        _open_onnx,
        ("fp32", "fp16"),
        packages=("onnx", "onnxscript"),
        runtime=("onnxruntime",),
        any_device=True,
    ),
    "openvino": Exporter(
        "model.xml",
        _write_openvino,
        _open_openvino,
        ("fp32",),
        packages=("onnx", "onnxscript", "openvino"),
        any_device=True,
    ),
}
