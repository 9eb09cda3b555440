"""Sessions on a GPU: the kernels of a batch are launched one by one, or recorded once for each size and replayed.

Python and the driver need longer to launch the hundreds of kernels of a model than a GPU needs to compute them for a
few samples, and the instances of a server share one interpreter. A recorded batch is one launch.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from paceline.devices import open_device
from paceline.servers._embedded.engines import Arrays, Buffered, InferenceSession, named
from paceline.servers._exported_module import first_line
from paceline.servers.base import Artifact


class NotCaptured(Exception):
    """Why there is no graph, in one line."""


def launching(module: Any, artifact: Artifact, device: str) -> InferenceSession:
    """Every batch is copied, computed and copied back as its sizes ask for."""
    order, names = [spec.name for spec in artifact.inputs], [spec.name for spec in artifact.outputs]
    gpu = open_device(device)
    where, stream = gpu.torch(), gpu.stream()

    def run(inputs: Arrays) -> Arrays:
        # The work of several instances may overlap: each has a stream, and waits for no other.
        with torch.inference_mode(), gpu.on_stream(stream):
            pinned = [torch.from_numpy(inputs[name]).pin_memory() for name in order]
            outputs = named(module(*[tensor.to(where, non_blocking=True) for tensor in pinned]), names)
            host = {}
            for name, tensor in outputs.items():
                host[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                host[name].copy_(tensor, non_blocking=True)
            stream.synchronize()
        return {name: tensor.numpy() for name, tensor in host.items()}

    return run


class RecordedWork:
    """All work on a batch of one size, between buffers that stay where they are."""

    def __init__(self, module: Any, artifact: Artifact, rows: int, device: torch.device) -> None:
        is_pinned = device.type != "cpu"
        names = [spec.name for spec in artifact.outputs]
        dtypes = [torch.from_numpy(np.empty(0, spec.dtype)).dtype for spec in artifact.inputs]
        shapes = [((rows, *spec.shape), dtype) for spec, dtype in zip(artifact.inputs, dtypes, strict=True)]
        with torch.inference_mode():  # as any input of the module: for others it would be compiled once more
            self._inputs = [torch.empty(shape, dtype=dtype, pin_memory=is_pinned).zero_() for shape, dtype in shapes]
            self._on_device = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]
            self._compute: Callable[[], dict[str, Any]] = lambda: named(module(*self._on_device), names)
            self._outputs = {
                name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_pinned)
                for name, tensor in self._answer().items()
            }
        arrays = [tensor.numpy() for tensor in self._inputs]
        self.inputs: Arrays = {spec.name: array for spec, array in zip(artifact.inputs, arrays, strict=True)}
        self.outputs: Arrays = {name: tensor.numpy() for name, tensor in self._outputs.items()}
        self.replay: Callable[[], object] = self.run  # or what was recorded of it

    def run(self) -> None:
        """From `inputs` to `outputs`; on a GPU this only launches the work."""
        with torch.inference_mode():
            for name, tensor in self._answer().items():
                self._outputs[name].copy_(tensor, non_blocking=True)

    def _answer(self) -> dict[str, Any]:
        for there, here in zip(self._on_device, self._inputs, strict=True):
            there.copy_(here, non_blocking=True)
        return self._compute()


class Replaying(Buffered):
    """Batches of recorded sizes are replayed, all others are computed by another session."""

    def __init__(self, recorded: Mapping[int, RecordedWork], otherwise: InferenceSession) -> None:
        self._recorded = recorded
        self._otherwise = otherwise

    def buffers(self, rows: int) -> Arrays | None:
        recorded = self._recorded.get(rows)
        return recorded.inputs if recorded is not None else None

    def __call__(self, inputs: Arrays) -> Arrays:
        recorded = self._recorded.get(len(next(iter(inputs.values()))))
        if recorded is None:
            return self._otherwise(inputs)
        for name, buffer in recorded.inputs.items():
            if inputs[name] is not buffer:
                np.copyto(buffer, inputs[name])
        recorded.replay()
        return {name: array.copy() for name, array in recorded.outputs.items()}  # the next batch goes there too


def record(module: Any, artifact: Artifact, sizes: Sequence[int], device: str) -> dict[int, RecordedWork]:
    """A CUDA graph for each batch size, copies from and to the host included; NotCaptured if one cannot be made."""
    recorded = {}
    try:
        gpu = open_device(device)
        with torch.inference_mode(), gpu.recording() as record_work:
            for rows in sorted(sizes, reverse=True):  # the largest first: the others find room in its memory
                recorded[rows] = RecordedWork(module, artifact, rows, gpu.torch())
                recorded[rows].replay = record_work(recorded[rows].run)
    except Exception as error:
        traceback.print_exception(error)
        # When the capture breaks, its end fails too and hides what has broken it.
        raise NotCaptured(first_line(error.__context__ or error)) from None
    return recorded
