"""The engines that compute: one per server, and for every instance a session that only its own thread calls."""

from __future__ import annotations

import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.load.kserve import Array, TensorSpec
from paceline.servers.base import Artifact, Format

Arrays = dict[str, Array]
InferenceSession = Callable[[Arrays], Arrays]
FORMATS: dict[str, Format] = {  # of engines that do not run the eager model
    "torchscript": "torchscript",
    "torch-export": "torch-export",
    "onnxruntime": "onnx",
    "openvino": "openvino",
}


class Buffered(ABC):
    """A session with memory of its own for inputs: a batch that is put together there needs no copy."""

    @abstractmethod
    def buffers(self, rows: int) -> Arrays | None:
        """Where the inputs of so many samples may be put until the next call; None if there is no such memory."""

    @abstractmethod
    def __call__(self, inputs: Arrays) -> Arrays:
        """The outputs of a batch; `inputs` are its buffers or any others."""


class InferenceEngine(ABC):
    """Loads the model of an artifact; `session()` is called in the thread of the instance that will use it."""

    inline = False  # so quick that a thread would cost more than the computation
    pads = False  # every batch size is prepared in advance, and batches are filled up to the next one
    packages: Sequence[str] = ()  # whose versions matter

    def __init__(self, artifact: Artifact, device: str) -> None:
        self.artifact = artifact
        self.device = device

    @abstractmethod
    def session(self, threads: int) -> InferenceSession:
        """A function from the inputs of a batch to its outputs, which computes with so many threads."""

    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.artifact.outputs

    def versions(self) -> dict[str, str]:
        return {package: importlib.metadata.version(package) for package in self.packages}

    def facts(self) -> dict[str, Any]:
        """How its sessions compute, beyond what was configured."""
        return {}


class NullEngine(InferenceEngine):
    """Computes nothing: what remains is the cost of the server itself."""

    inline = True

    def session(self, threads: int) -> InferenceSession:
        def run(inputs: Arrays) -> Arrays:
            return {"output": np.zeros((len(next(iter(inputs.values()))), 1), np.float32)}

        return run

    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("output", "FP32", (1,)),)


class TorchEngine(InferenceEngine):
    """A torch module, eager, compiled, scripted or exported; all instances share its weights."""

    packages = ("torch",)

    def __init__(self, artifact: Artifact, device: str, module: Any) -> None:
        super().__init__(artifact, device)
        self._module = module

    def session(self, threads: int) -> InferenceSession:
        import torch

        torch.set_num_threads(threads)  # OpenMP keeps this for each thread that starts parallel work
        if self.device != "cpu":
            return self._on_gpu()
        names, order = ([spec.name for spec in specs] for specs in (self.artifact.outputs, self.artifact.inputs))

        def run(inputs: Arrays) -> Arrays:
            with torch.inference_mode():
                outputs = self._module(*[torch.from_numpy(inputs[name]) for name in order])
            return {name: tensor.numpy() for name, tensor in named(outputs, names).items()}

        return run

    def _on_gpu(self) -> InferenceSession:
        from paceline.servers._embedded.cuda_sessions import launching

        return launching(self._module, self.artifact, self.device)


class CompiledEngine(TorchEngine):
    """torch.compile: a new batch size would compile anew, so batches are padded to a few sizes.

    On a GPU each instance replays a CUDA graph for each of them, unless that is off or the model cannot be captured.
    """

    pads = True

    def __init__(
        self, artifact: Artifact, device: str, module: Any, sizes: Sequence[int], *, with_graphs: bool = True
    ) -> None:
        import torch

        self._varying = [spec.name for spec in artifact.inputs if -1 in spec.shape]
        self._sizes = sizes
        self._refusal = None if with_graphs else "off"
        self._graphs: list[str] = []  # captured or not, for each instance
        limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
        setattr(torch._dynamo.config, limit, max(len(sizes) + 8, getattr(torch._dynamo.config, limit)))
        super().__init__(artifact, device, torch.compile(module, dynamic=None if self._varying else False))

    def facts(self) -> dict[str, Any]:
        return {"graph": "; ".join(dict.fromkeys(self._graphs))} if self._graphs else {}

    def _on_gpu(self) -> InferenceSession:
        from paceline.servers._embedded.cuda_sessions import NotCaptured, Replaying, record

        if self._varying and self._refusal is None:
            self._refusal = f"not captured: the sizes of {', '.join(self._varying)} vary"
        if self._refusal is None:
            try:
                recorded = record(self._module, self.artifact, self._sizes, self.device)
            except NotCaptured as error:
                self._refusal = f"not captured: {error}"  # nor would it be for the next instance
            else:
                self._graphs.append(f"captured for batches of {', '.join(map(str, sorted(recorded)))}")
                return Replaying(recorded, super()._on_gpu())
        self._graphs.append(self._refusal)
        return super()._on_gpu()


class OnnxRuntimeEngine(InferenceEngine):
    """ONNX Runtime; each instance has a session with threads of its own."""

    packages = ("onnxruntime",)

    def session(self, threads: int) -> InferenceSession:
        from paceline.models.sources.model_file import open_onnx

        assert self.artifact.path is not None
        session = open_onnx(self.artifact.path, threads, self.device)
        names = [spec.name for spec in self.artifact.outputs]

        def run(inputs: Arrays) -> Arrays:
            return dict(zip(names, session.run(names, inputs), strict=True))

        return run

    def versions(self) -> dict[str, str]:
        import onnxruntime  # the distribution is called onnxruntime-gpu where it can use one

        return {"onnxruntime": str(onnxruntime.__version__)}


class OpenVinoEngine(InferenceEngine):
    """OpenVINO; each instance has a compiled model with threads of its own."""

    packages = ("openvino",)

    def session(self, threads: int) -> InferenceSession:
        import openvino

        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        settings["ENABLE_CPU_PINNING"] = False  # the instance's thread is pinned already
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # as exported; the default may round to 16 bits
        compiled = openvino.Core().compile_model(str(self.artifact.path), "CPU", settings)
        request = compiled.create_infer_request()
        names = [spec.name for spec in self.artifact.outputs]

        def run(inputs: Arrays) -> Arrays:
            outputs = request.infer(inputs, share_inputs=True)
            return {name: np.array(array) for name, array in zip(names, outputs.values(), strict=True)}

        return run


def open_engine(
    name: str, artifact: Artifact, device: str, sizes: Sequence[int], *, allow_import: bool = False, graph: bool = True
) -> InferenceEngine:
    """The engine of this name with the artifact's model loaded."""
    if name == "null":
        return NullEngine(artifact, device)
    if name == "onnxruntime":
        return OnnxRuntimeEngine(artifact, device)
    if name == "openvino":
        return OpenVinoEngine(artifact, device)
    import torch

    from paceline.models.base import set_fp32_mode
    from paceline.servers.export import load_module

    set_fp32_mode(artifact.precision)
    module: Any
    if name == "torchscript":
        module = torch.jit.load(str(artifact.path), map_location=device).eval()  # type: ignore[no-untyped-call]
    elif name == "torch-export":
        module = torch.export.load(str(artifact.path)).module()
    else:
        module = load_module(artifact, device, allow_import=allow_import)
    if name == "torch-compile":
        return CompiledEngine(artifact, device, module, sizes, with_graphs=graph)
    return TorchEngine(artifact, device, module)


def warm_up(session: InferenceSession, inputs: Sequence[TensorSpec], sizes: Sequence[int]) -> None:
    """Call it with every batch size, more than once: the first calls choose and compile code."""
    for size in sorted(sizes, reverse=True):
        for _ in range(3):
            arrays = {}
            for spec in inputs:
                axes = (16 if axis < 0 else axis for axis in spec.shape)  # any length, where it varies
                arrays[spec.name] = np.zeros((size, *axes), spec.dtype)
            session(arrays)


def named(outputs: Any, names: Sequence[str]) -> dict[str, Any]:
    """The outputs of a module, one tensor or several, by name."""
    return dict(zip(names, outputs if isinstance(outputs, tuple | list) else (outputs,), strict=True))
