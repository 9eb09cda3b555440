"""A model as it is served: built from its seed, in its precision, tensors in and tensors out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paceline.benchmarks.model.batch_norm import SETTLING_ROWS, has_batch_norm, settle_batch_norm
from paceline.benchmarks.model.precision import low_dtype
from paceline.benchmarks.model.session import seed_everything
from paceline.benchmarks.serving.tensors import Array, TensorSpec, datatype_of
from paceline.benchmarks.tf32 import set_fp32_mode
from paceline.core.errors import Unsupported

if TYPE_CHECKING:
    from paceline.models.base import ModelSpec, Scale, Workload


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
    raise TypeError(f"its output holds an object of type {type(output).__name__}, which is no tensor")


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


def outline(spec: ModelSpec, scale: Scale) -> Workload:
    """The model without its weights, where it can be built so; for what need not be computed."""
    try:
        with torch.device("meta"):
            return spec.build(scale)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # a user's model may need its weights' values
        return spec.build(scale)


def describe(spec: ModelSpec, scale: Scale) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """What goes in and what comes out, found without computing where the model lets one."""
    workload = outline(spec, scale)
    try:
        return _specs(spec, workload, torch.device("meta"))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        with torch.device("cpu"):
            workload = spec.build(scale)
    try:
        return _specs(spec, workload, torch.device("cpu"))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
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
    names = input_names(workload.module, len(inputs))
    taken = (_spec(name, (one, one)) for name, one in zip(names, inputs, strict=True))
    given = (_spec(f"output_{number}", pair) for number, pair in enumerate(zip(two, three, strict=True)))
    return tuple(taken), tuple(given)


def _spec(name: str, seen: tuple[Tensor, Tensor]) -> TensorSpec:
    """Of one sample, from the tensors of two batches: -1 where a size beside the batch differs."""
    few, more = seen
    shape = tuple(size if size == other else -1 for size, other in zip(few.shape[1:], more.shape[1:], strict=True))
    return TensorSpec(name, datatype_of(torch.empty(0, dtype=few.dtype).numpy().dtype), shape)


def input_names(module: nn.Module, count: int) -> tuple[str, ...]:
    """As the module's own code calls them, or by number where it names too few."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return tuple(names[:count]) if len(names) >= count else tuple(f"input_{number}" for number in range(count))


def first_line(error: BaseException) -> str:
    """What went wrong, without the pages that torch may add."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'without a message'}"


def samples(workload: Workload, count: int, seed: int) -> list[dict[str, Array]]:
    """Single samples by input name, without the batch axis, each in memory of its own."""
    inputs = rows(workload, count, seed)
    names = input_names(workload.module, len(inputs))
    arrays = [one.numpy() for one in inputs]
    return [{name: array[row].copy() for name, array in zip(names, arrays, strict=True)} for row in range(count)]
