"""What computes: one engine per server, and for every instance a session that only its own thread calls."""

from __future__ import annotations

import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.benchmarks.serving.artifact import Artifact
from paceline.benchmarks.serving.tensors import Array, TensorSpec

Arrays = dict[str, Array]
Session = Callable[[Arrays], Arrays]

_VARYING = 16  # length of an axis that varies, for warming up


class Engine(ABC):
    """Loads the model of an artifact; `session()` is called in the thread of the instance that will use it."""

    inline = False  # so quick that a thread would cost more than it computes
    pads = False  # every batch size is prepared in advance, and batches are filled up to the next one
    packages: Sequence[str] = ()  # whose versions matter

    def __init__(self, artifact: Artifact, device: str) -> None:
        self.artifact = artifact
        self.device = device

    @abstractmethod
    def session(self, threads: int) -> Session:
        """A function from the inputs of a batch to its outputs, which computes with so many threads."""

    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.artifact.outputs

    def versions(self) -> dict[str, str]:
        return {package: importlib.metadata.version(package) for package in self.packages}


class NullEngine(Engine):
    """Computes nothing: what remains is the cost of the server itself."""

    inline = True

    def session(self, threads: int) -> Session:
        def run(inputs: Arrays) -> Arrays:
            return {"output": np.zeros((len(next(iter(inputs.values()))), 1), np.float32)}

        return run

    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("output", "FP32", (1,)),)


class TorchEngine(Engine):
    """A torch module, eager, compiled, scripted or exported; all instances share its weights."""

    packages = ("torch",)

    def __init__(self, artifact: Artifact, device: str, module: Any) -> None:
        super().__init__(artifact, device)
        self._module = module

    def session(self, threads: int) -> Session:
        import torch

        torch.set_num_threads(threads)  # OpenMP keeps this for each thread that starts parallel work
        module, names = self._module, [spec.name for spec in self.artifact.outputs]
        order = [spec.name for spec in self.artifact.inputs]
        device = torch.device(self.device)
        on_cpu = device.type == "cpu"
        stream = None if on_cpu else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

        def on_host(inputs: Arrays) -> Arrays:
            with torch.inference_mode():
                found = module(*[torch.from_numpy(inputs[name]) for name in order])
            return {name: tensor.numpy() for name, tensor in _named(found, names).items()}

        def on_device(inputs: Arrays) -> Arrays:
            # Work of several instances may overlap: each has a stream, and waits for no other.
            with torch.inference_mode(), torch.cuda.stream(stream):
                pinned = [torch.from_numpy(inputs[name]).pin_memory() for name in order]
                found = _named(module(*[tensor.to(device, non_blocking=True) for tensor in pinned]), names)
                host = {}
                for name, tensor in found.items():
                    host[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                    host[name].copy_(tensor, non_blocking=True)
                assert stream is not None
                stream.synchronize()
            return {name: tensor.numpy() for name, tensor in host.items()}

        return on_host if on_cpu else on_device


class CompiledEngine(TorchEngine):
    """torch.compile: a new batch size would compile anew, so batches are padded to a few sizes."""

    pads = True

    def __init__(self, artifact: Artifact, device: str, module: Any, sizes: int) -> None:
        import torch

        varies = any(-1 in spec.shape for spec in artifact.inputs)
        limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
        setattr(torch._dynamo.config, limit, max(sizes + 8, getattr(torch._dynamo.config, limit)))
        super().__init__(artifact, device, torch.compile(module, dynamic=None if varies else False))


class OnnxRuntimeEngine(Engine):
    """ONNX Runtime; each instance has a session with threads of its own."""

    packages = ("onnxruntime",)

    def session(self, threads: int) -> Session:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        providers: list[Any] = ["CPUExecutionProvider"]
        if self.device != "cpu":
            providers.insert(0, ("CUDAExecutionProvider", {"device_id": int(self.device.partition(":")[2] or 0)}))
            if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
                raise RuntimeError(
                    f"onnxruntime cannot use {self.device}: it was built without CUDA; pip install onnxruntime-gpu"
                )
        session = onnxruntime.InferenceSession(str(self.artifact.path), options, providers=providers)
        if self.device != "cpu" and session.get_providers()[0] != "CUDAExecutionProvider":
            raise RuntimeError(f"onnxruntime fell back from {self.device} to the CPU; its log says why")
        names = [spec.name for spec in self.artifact.outputs]

        def run(inputs: Arrays) -> Arrays:
            return dict(zip(names, session.run(names, inputs), strict=True))

        return run

    def versions(self) -> dict[str, str]:
        import onnxruntime  # the distribution is called onnxruntime-gpu where it can use one

        return {"onnxruntime": str(onnxruntime.__version__)}


class OpenVinoEngine(Engine):
    """OpenVINO; each instance has a compiled model with threads of its own."""

    packages = ("openvino",)

    def session(self, threads: int) -> Session:
        import openvino

        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        settings["ENABLE_CPU_PINNING"] = False  # the instance's thread is where it should be already
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # as exported; the default may round to 16 bits
        compiled = openvino.Core().compile_model(str(self.artifact.path), "CPU", settings)
        request = compiled.create_infer_request()
        names = [spec.name for spec in self.artifact.outputs]

        def run(inputs: Arrays) -> Arrays:
            found = request.infer(inputs, share_inputs=True)
            return {name: np.array(array) for name, array in zip(names, found.values(), strict=True)}

        return run


def open_engine(
    name: str, artifact: Artifact, device: str, sizes: Sequence[int], *, allow_import: bool = False
) -> Engine:
    """The engine of this name with the artifact's model loaded."""
    if name == "null":
        return NullEngine(artifact, device)
    if name == "onnxruntime":
        return OnnxRuntimeEngine(artifact, device)
    if name == "openvino":
        return OpenVinoEngine(artifact, device)
    module = _torch_module(name, artifact, device, allow_import)
    if name == "torch-compile":
        return CompiledEngine(artifact, device, module, len(sizes))
    return TorchEngine(artifact, device, module)


def warm_up(session: Session, inputs: Sequence[TensorSpec], sizes: Sequence[int]) -> None:
    """Call it with every batch size that it should know, more than once: the first calls choose and compile code."""
    for size in sorted(sizes, reverse=True):
        shapes = {spec.name: (size, *(_VARYING if axis < 0 else axis for axis in spec.shape)) for spec in inputs}
        for _ in range(3):
            session({spec.name: np.zeros(shapes[spec.name], spec.dtype) for spec in inputs})


def _torch_module(name: str, artifact: Artifact, device: str, allow_import: bool) -> Any:
    import torch

    from paceline.benchmarks.serving.export import load_eager
    from paceline.benchmarks.tf32 import set_fp32_mode

    set_fp32_mode(artifact.precision)
    if name == "torchscript":
        return torch.jit.load(str(artifact.path), map_location=device).eval()  # type: ignore[no-untyped-call]
    if name == "torch-export":
        return torch.export.load(str(artifact.path)).module()
    module, _, _ = load_eager(
        artifact.model,
        scale="tiny" if artifact.scale == "tiny" else "full",
        precision=artifact.precision,
        seed=artifact.seed,
        device=device,
        allow_import=allow_import,
    )
    return module


def _named(found: Any, names: Sequence[str]) -> dict[str, Any]:
    return dict(zip(names, found if isinstance(found, tuple | list) else (found,), strict=True))
