"""A model as it is served: built from its seed, tensors in and tensors out, written in each format and opened again.

OpenVINO reads the ONNX file. Its own converter for torch, `convert_model`, reports its use over the network.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paceline.core.errors import MissingDependency, Unsupported
from paceline.load.kserve import Array, TensorSpec, datatype_of
from paceline.models.base import (
    SETTLING_ROWS,
    has_batch_norm,
    low_dtype,
    seed_everything,
    set_fp32_mode,
    settle_batch_norm,
)

if TYPE_CHECKING:
    from paceline.models.base import ModelSpec, Scale, Workload

TRACED_ROWS = 2  # a batch of 1 might be taken for a constant
MOST_ROWS = 65_536
LARGEST_FILE = 1_500_000_000  # bytes of weights: an ONNX file of more than 2 GB must have them in a second file


class Served(nn.Module):
    """Floats go in and come out as fp32 whatever the model computes in: what travels does not depend on the precision.

    Outputs are flattened, in the order in which the model gives them: one tensor, or a tuple of several. Of a language
    model they are what it answers, the likeliest tokens: the logits over its vocabulary would be megabytes.
    """

    def __init__(self, workload: Workload, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.module = workload.module if dtype is None else workload.module.to(dtype)
        self.answer = workload.answer
        self.dtype = dtype

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self.dtype is not None:
            inputs = tuple(one.to(self.dtype) if one.is_floating_point() else one for one in inputs)
        output = self.module(*inputs)
        answer = output if self.answer is None else self.answer(output)
        outputs = [one.float() if one.is_floating_point() else one for one in flat(answer)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def flat(output: Any) -> list[Tensor]:
    """Every tensor of a model's output, in order."""
    if isinstance(output, Tensor):
        return [output]
    if output is None:
        return []
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [tensor for part in output for tensor in flat(part)]
    raise TypeError(f"its output holds an object of type {type(output).__name__}, which is not a tensor")


def build(
    spec: ModelSpec, scale: Scale, precision: str, seed: int, device: torch.device
) -> tuple[Served, tuple[Tensor, ...]]:
    """The model, and inputs to try it on, of which there are `SETTLING_ROWS`.

    It is built on the CPU and then moved, so that a seed means the same weights on every device.
    """
    set_fp32_mode(precision)
    seed_everything(seed)
    with torch.device("cpu"):
        workload = spec.build(scale)
    inputs = rows(workload, SETTLING_ROWS, seed)
    with torch.no_grad():
        if has_batch_norm(workload.module):
            settle_batch_norm(workload.module, inputs)
    served = Served(workload, low_dtype(precision))
    return served.eval().requires_grad_(False).to(device), tuple(one.to(device) for one in inputs)


def rows(workload: Workload, count: int, seed: int) -> tuple[Tensor, ...]:
    """The first samples of the endless batch that a seed defines, on the CPU."""
    return workload.make_batch(count, torch.Generator().manual_seed(seed)).inputs


_MODEL_ERRORS = (RuntimeError, NotImplementedError, TypeError, ValueError)


def outline(spec: ModelSpec, scale: Scale) -> Workload:
    """The model without its weights, where it can be built so; for what need not be computed."""
    try:
        with torch.device("meta"):
            return spec.build(scale)
    except _MODEL_ERRORS:  # a user's model may need its weights' values
        return spec.build(scale)


def describe(spec: ModelSpec, scale: Scale) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs, found without computing where the model allows it."""
    try:
        return _specs(spec, outline(spec, scale), torch.device("meta"))
    except _MODEL_ERRORS:
        with torch.device("cpu"):
            workload = spec.build(scale)
    try:
        return _specs(spec, workload, torch.device("cpu"))
    except _MODEL_ERRORS as error:
        raise Unsupported(f"{spec.name} cannot be served: {first_line(error)}") from error


def _specs(
    spec: ModelSpec, workload: Workload, device: torch.device
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    served = Served(workload).eval()
    inputs = rows(workload, 3, seed=0)
    with torch.no_grad():
        two, three = (flat(served(*(one[:count].to(device) for one in inputs))) for count in (2, 3))
    for number, (few, more) in enumerate(zip(two, three, strict=True)):
        if few.dim() == 0 or (few.shape[0], more.shape[0]) != (2, 3):
            raise Unsupported(
                f"{spec.name} cannot be served: its output {number} has the sizes {tuple(few.shape)} for two samples; "
                "the first axis of every output must be the sample"
            )
    names = input_names(workload, len(inputs))
    output_names = workload.output_names or tuple(f"output_{number}" for number in range(len(two)))
    outputs = (_spec(*named) for named in zip(output_names, two, three, strict=True))
    return tuple(_spec(name, one, one) for name, one in zip(names, inputs, strict=True)), tuple(outputs)


def _spec(name: str, few: Tensor, more: Tensor) -> TensorSpec:
    """Of one sample, from the tensors of two batches: -1 where a size other than the batch differs."""
    shape = tuple(size if size == other else -1 for size, other in zip(few.shape[1:], more.shape[1:], strict=True))
    return TensorSpec(name, datatype_of(torch.empty(0, dtype=few.dtype).numpy().dtype), shape)


def input_names(workload: Workload, count: int) -> tuple[str, ...]:
    """As the file or the module's own code calls them, or by number where it names too few."""
    if workload.input_names:
        return workload.input_names
    parameters = inspect.signature(workload.module.forward).parameters.values()
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return tuple(names[:count]) if len(names) >= count else tuple(f"input_{number}" for number in range(count))


def first_line(error: BaseException) -> str:
    """The error in one line, without the pages that torch may add."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'without a message'}"


def samples(workload: Workload, count: int, seed: int) -> list[dict[str, Array]]:
    """Single samples by input name, without the batch axis, each in memory of its own."""
    inputs = rows(workload, count, seed)
    names = input_names(workload, len(inputs))
    arrays = [one.numpy() for one in inputs]
    return [{name: array[row].copy() for name, array in zip(names, arrays, strict=True)} for row in range(count)]


@dataclass(frozen=True)
class ExportJob:
    """What to write: the module, inputs to trace it with, and the names of these and the outputs."""

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
    """One format: its main file, what it needs, and how it is written; engines open it."""

    file: str
    write: Callable[[ExportJob, Path], None]
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
                raise MissingDependency(name, f"pip install '.[serving]' ({error})") from None

    def versions(self) -> dict[str, str]:
        return {name: str(importlib.import_module(name).__version__) for name in ("torch", *self.packages)}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of exporters; what they write is checked later."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def _write_torchscript(job: ExportJob, path: Path) -> None:
    traced = torch.jit.trace(job.served, job.traced, check_trace=False)  # type: ignore[no-untyped-call]
    torch.jit.save(torch.jit.freeze(traced), path)


def _write_torch_export(job: ExportJob, path: Path) -> None:
    program = torch.export.export(job.served, job.traced, dynamic_shapes=job.dynamic_shapes, strict=False)
    torch.export.save(program, path)


def _write_onnx(job: ExportJob, path: Path) -> None:
    """By torch's newer exporter, otherwise by its older one, which has some operators that the newer lacks."""
    weights = sum(one.numel() * one.element_size() for one in job.served.state_dict().values())
    options: dict[str, Any] = {
        "input_names": list(job.input_names),
        "output_names": list(job.output_names),
        "external_data": weights > LARGEST_FILE,
    }
    try:
        shapes = job.dynamic_shapes
        torch.onnx.export(job.served, job.traced, path, dynamo=True, dynamic_shapes=shapes, verbose=False, **options)
    except Exception:
        axes = {name: {0: "batch"} for name in (*job.input_names, *job.output_names)}
        with suppress(Exception):
            torch.onnx.export(job.served, job.traced, str(path), dynamo=False, dynamic_axes=axes, **options)
            return
        raise


def _write_openvino(job: ExportJob, path: Path) -> None:
    import openvino

    source = path.with_name("source.onnx")
    _write_onnx(job, source)
    # Weights stay as they are: the default would round them to fp16.
    openvino.save_model(openvino.Core().read_model(str(source)), str(path), compress_to_fp16=False)
    for leftover in path.parent.glob(f"{source.name}*"):
        leftover.unlink()


_FLOATS = ("fp32", "bf16", "fp16")
EXPORTERS = {
    "torchscript": Exporter("model.pt", _write_torchscript, _FLOATS),
    "torch-export": Exporter("model.pt2", _write_torch_export, _FLOATS),
    "onnx": Exporter(
        "model.onnx",
        _write_onnx,
        ("fp32", "fp16"),
        packages=("onnx", "onnxscript"),
        runtime=("onnxruntime",),
        any_device=True,
    ),
    "openvino": Exporter(
        "model.xml",
        _write_openvino,
        ("fp32",),
        packages=("onnx", "onnxscript", "openvino"),
        any_device=True,
    ),
}
