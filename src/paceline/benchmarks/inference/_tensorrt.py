"""Models computed by TensorRT: an ONNX file becomes an engine for the batch that it is given, on an NVIDIA GPU.

The network is strongly typed: it computes in the number formats of the file, which TensorRT 10 has to be told and 11
always does. An engine runs on a stream of its own, because TensorRT waits for the whole device on the default one.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import CaseError, MissingDependency, Unsupported
from paceline.devices import Device
from paceline.models.base import ModelSpec, Scale, Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

PRECISIONS = ("fp32", "tf32", "fp16")
OLDEST = 10
# What a type of an engine's is called in torch.
TYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}


def require(device: Device) -> Any:
    """The package; without it, or without a GPU of NVIDIA's, the case is unsupported."""
    if "tensorrt" not in device.kind.libraries:
        message = f"engine = tensorrt computes on NVIDIA GPUs, and the target is a {device.kind.noun}"
        raise Unsupported(f"{message}: use --target cuda:0 where there is one, or --engine onnxruntime")
    try:
        tensorrt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise MissingDependency("tensorrt", f"pip install tensorrt ({error})") from None
    version = str(tensorrt.__version__)
    if int(version.partition(".")[0]) < OLDEST:
        raise Unsupported(f"TensorRT {version} is too old, {OLDEST} is needed: pip install 'tensorrt>={OLDEST}'")
    return tensorrt


def through_tensorrt(spec: ModelSpec, path: Path, device: Device, facts: dict[str, Any], *, tf32: bool) -> ModelSpec:
    """The same model, computed by TensorRT from the ONNX file into which it was exported."""
    import torch

    from paceline.servers._exported_module import outline

    def build(scale: Scale) -> Workload:
        if torch.get_default_device().type == "meta":  # where FLOPs are counted
            return spec.build(scale)
        made = outline(spec, scale)
        return replace(made, module=_module(Engine(path, device, tf32=tf32)), facts={**made.facts, **facts})

    traits = replace(spec.traits, engine="tensorrt", is_trainable=False)
    return replace(spec, build=build, traits=traits, channels_last=False)


class Engine:
    """An engine and its outputs' memory, built when the first batch comes, and again for one of other sizes."""

    def __init__(self, path: Path, device: Device, *, tf32: bool) -> None:
        self._path, self._device, self._tf32 = path, device, tf32
        self._tensorrt = require(device)
        self._sizes: list[tuple[int, ...]] = []
        self._stream = device.stream()

    def run(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Issue one pass; the outputs are overwritten by the next."""
        sizes = [tuple(one.shape) for one in inputs]
        if sizes != self._sizes:
            self._open(inputs)
            self._sizes = sizes
        for name, tensor in zip(self._inputs, inputs, strict=True):
            self._context.set_tensor_address(name, tensor.data_ptr())
        here = self._device.current_stream()
        self._stream.wait_stream(here)
        if not self._context.execute_async_v3(self._stream.cuda_stream):
            raise CaseError("TensorRT did not execute the engine; what it wrote says why")
        here.wait_stream(self._stream)
        return tuple(self._outputs.values())

    def _open(self, inputs: Sequence[Tensor]) -> None:
        import torch

        tensorrt = self._tensorrt
        logger = tensorrt.Logger(tensorrt.Logger.ERROR)
        self._runtime = tensorrt.Runtime(logger)  # which must live as long as the engine
        self._engine = self._runtime.deserialize_cuda_engine(self._plan(logger, inputs))
        self._context: Any = self._engine.create_execution_context() if self._engine is not None else None
        if self._context is None:
            raise CaseError("TensorRT cannot run the engine that it built; what it wrote says why")
        names = [self._engine.get_tensor_name(number) for number in range(self._engine.num_io_tensors)]
        types = {
            getattr(tensorrt.DataType, key): name for key, name in TYPES.items() if hasattr(tensorrt.DataType, key)
        }
        dtypes = {name: getattr(torch, types[self._engine.get_tensor_dtype(name)]) for name in names}
        is_input = {name: self._engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT for name in names}
        self._inputs = [name for name in names if is_input[name]]
        for name, tensor in zip(self._inputs, inputs, strict=True):
            if tensor.dtype != dtypes[name] or not tensor.is_contiguous():
                raise CaseError(f"the engine's input {name} is {dtypes[name]}, row by row, and the data {tensor.dtype}")
            self._context.set_input_shape(name, tuple(tensor.shape))
        self._outputs: dict[str, Tensor] = {}
        for name in (name for name in names if not is_input[name]):
            shape = tuple(self._context.get_tensor_shape(name))
            if min(shape, default=0) < 0:
                raise Unsupported(f"the sizes of the output {name} depend on the data: use --engine torch")
            self._outputs[name] = torch.empty(shape, dtype=dtypes[name], device=self._device.torch())
            self._context.set_tensor_address(name, self._outputs[name].data_ptr())

    def _plan(self, logger: Any, inputs: Sequence[Tensor]) -> Any:
        """The serialized engine for inputs of these sizes and no others."""
        tensorrt = self._tensorrt
        builder = tensorrt.Builder(logger)
        network = builder.create_network(1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = tensorrt.OnnxParser(network, logger)
        if not parser.parse_from_file(str(self._path)):
            reasons = [parser.get_error(number).desc() for number in range(parser.num_errors)]
            raise Unsupported(f"TensorRT does not read the model: {'; '.join(reasons[:3])}: use --engine torch")
        config = builder.create_builder_config()
        (config.set_flag if self._tf32 else config.clear_flag)(tensorrt.BuilderFlag.TF32)  # on, unless it is cleared
        profile = builder.create_optimization_profile()
        for number, tensor in enumerate(inputs):
            shape = tuple(tensor.shape)
            profile.set_shape(network.get_input(number).name, shape, shape, shape)
        config.add_optimization_profile(profile)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise CaseError("TensorRT built no engine; what it wrote says why, often that memory does not suffice")
        return plan


def _module(engine: Engine) -> nn.Module:
    from torch import nn

    class TensorRtModule(nn.Module):
        """Tensors in and out of an engine, on the GPU."""

        def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
            outputs = engine.run(*inputs)
            return outputs[0] if len(outputs) == 1 else outputs

    return TensorRtModule()
