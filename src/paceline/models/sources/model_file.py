"""Models in files: ONNX, computed in process by ONNX Runtime, and programs that `torch.export.save` wrote (`.pt2`)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import MissingDependency, Unsupported
from paceline.models.base import ModelSpec, Scale, Traits, Workload
from paceline.models.sources.given import InputSpec, parse_inputs, workload
from paceline.models.sources.refusal import ONNX, PROGRAM, existing_file, refusal

if TYPE_CHECKING:
    from torch import Tensor, nn

TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}
PRECISIONS = {"tensor(float)": "fp32", "tensor(float16)": "fp16"}


def open_onnx(path: Path, threads: int, device: str = "cpu") -> Any:
    """A session of ONNX Runtime that computes on a device with so many threads."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency("onnxruntime", f"pip install onnxruntime ({error})") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    providers: list[Any] = ["CPUExecutionProvider"]
    if device != "cpu":
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": int(device.partition(":")[2] or 0)}))
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise RuntimeError(
                f"onnxruntime cannot use {device}: it was built without CUDA; pip install onnxruntime-gpu"
            )
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    if device != "cpu" and session.get_providers()[0] != "CUDAExecutionProvider":
        raise RuntimeError(f"onnxruntime fell back from {device} to the CPU; its log says why")
    return session


def load_onnx(text: str, inputs: str | None = None) -> ModelSpec:
    """The model in a file, with random inputs of the sizes that the file names."""
    path = existing_file(text, ONNX)
    try:
        session = open_onnx(path, threads=1)
    except MissingDependency:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise refusal("not-an-onnx-file", text, f": ONNX Runtime does not read it: {lines[0]}", ONNX) from error
    sizes, outputs = session.get_inputs(), session.get_outputs()
    specs = parse_inputs(inputs) if inputs is not None else _inputs_of(text, sizes)
    if len(specs) != len(sizes):
        wanted = ", ".join(f"{one.name} {one.shape}" for one in sizes)
        raise refusal("wrong-number-of-inputs", text, f" takes {wanted}, but input = {inputs}", ONNX)
    rows = [one.shape[0] for one in sizes]
    fixed = next((one for one in rows if isinstance(one, int)), None)
    precision = next((PRECISIONS[one.type] for one in (*sizes, *outputs) if one.type in PRECISIONS), "")
    names = tuple(tuple(one.name for one in ends) for ends in (sizes, outputs))

    def build(scale: Scale) -> Workload:
        return replace(onnx_workload(path, specs), input_names=names[0], output_names=names[1])

    spec = ModelSpec(
        name=text,
        family="user",
        task="custom",
        summary=f"the ONNX file {path.name}",
        build=build,
        batch_size=fixed or specs[0].sizes[0],
    )
    return replace(
        spec, traits=Traits("ONNX file", fixed, precision, "onnxruntime", is_trainable=False, has_scales=False)
    )


def through_onnx(spec: ModelSpec, path: Path) -> ModelSpec:
    """The same model, computed by ONNX Runtime from the file into which it was exported."""

    def build(scale: Scale) -> Workload:
        made = spec.build(scale)
        exported = onnx_workload(path, (InputSpec((1,)),))
        return replace(
            made, module=exported.module, facts={**made.facts, **exported.facts, "exported": "as for serving"}
        )

    return replace(spec, build=build, traits=replace(spec.traits, engine="onnxruntime", is_trainable=False))


def onnx_workload(path: Path, specs: tuple[InputSpec, ...]) -> Workload:
    """A file as a workload; its session is opened at once unless nothing is to be computed."""
    import torch

    device = torch.get_default_device()
    if device.type not in ("cpu", "meta"):
        message = "an ONNX file is computed in process on the CPU: use --target cpu, or 'paceline run serve' on a GPU"
        raise Unsupported(message)
    session = open_onnx(path, torch.get_num_threads()) if device.type == "cpu" else None
    return workload(_module(session), specs, facts={**file_facts(path), "engine": f"onnxruntime {_version()}"})


def file_facts(path: Path) -> dict[str, Any]:
    """What a record says of a file."""
    return {"file": path.name, "sha256": digest_of(path), "parameter_count": _count(path)}


def _module(session: Any) -> nn.Module:
    import torch
    from torch import nn

    class OnnxModule(nn.Module):
        """Tensors in and out of a session; on the CPU neither is copied."""

        def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
            if session is None or any(one.device.type != "cpu" for one in inputs):
                raise NotImplementedError("ONNX Runtime computes with numbers in the host's memory")
            given = {one.name: tensor.numpy() for one, tensor in zip(session.get_inputs(), inputs, strict=True)}
            outputs = tuple(torch.from_numpy(array) for array in session.run(None, given))
            return outputs[0] if len(outputs) == 1 else outputs

    return OnnxModule()


def _inputs_of(text: str, sizes: Any) -> tuple[InputSpec, ...]:
    specs = []
    for one in sizes:
        if one.type not in TYPES:
            raise refusal("inputs-not-tensors", text, f": its input '{one.name}' is a {one.type}", ONNX)
        if not one.shape or not all(isinstance(size, int) for size in one.shape[1:]):
            shown = "x".join(str(size or "?") for size in one.shape)
            why = f": its input '{one.name}' has the sizes {shown or 'of a single number'}; give --input with numbers"
            raise refusal("missing-input", text, f"{why}, as in --input 1x3x224x224", ONNX)
        rows = one.shape[0] if isinstance(one.shape[0], int) else 1
        specs.append(InputSpec((rows, *one.shape[1:]), TYPES[one.type]))
    return tuple(specs)


def _version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def _count(path: Path) -> int | None:
    """Of all numbers in the file; unknown without the package `onnx`, which reads the file without computing."""
    try:
        import onnx
    except ImportError:
        return None
    model = onnx.load(str(path), load_external_data=False)
    total = 0
    for tensor in model.graph.initializer:
        count = 1
        for size in tensor.dims:
            count *= size
        total += count
    return total


TORCH_PRECISIONS = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}


def load_program(text: str, inputs: str | None = None) -> ModelSpec:
    """The program in a file, with the example inputs that it was exported with."""
    import torch

    path = existing_file(text, PROGRAM)
    program = _open(text, path)
    arguments, named = program.example_inputs or ((), {})
    tensors = [one for one in arguments if isinstance(one, torch.Tensor) and one.dim() > 0]
    if named or len(tensors) != len(arguments) or (not tensors and inputs is None):
        why = " takes arguments by name, or others than tensors: export it with a tuple of tensors"
        raise refusal("inputs-not-tensors", text, why, PROGRAM)
    weights = [weight for weight in program.state_dict.values() if weight.is_floating_point()]
    precision = TORCH_PRECISIONS.get(str(weights[0].dtype), "") if weights else ""
    batch_size = _fixed_rows(program)
    facts = {"file": str(path.name), "sha256": digest_of(path), "built_from": "a program of torch.export"}

    def build(scale: Scale) -> Workload:
        from torch.export.passes import move_to_device_pass

        moved = move_to_device_pass(_open(text, path), str(torch.get_default_device()))
        specs = parse_inputs(inputs) if inputs is not None else ()
        examples = tuple(one.detach().to("cpu") for one in tensors)
        return workload(_wrapped(moved.module()), specs, examples, facts=facts)

    return ModelSpec(
        name=text,
        family="user",
        task="custom",
        summary=f"the exported program {path.name}",
        build=build,
        batch_size=batch_size or (parse_inputs(inputs)[0].sizes[0] if inputs is not None else len(tensors[0])),
        traits=Traits("exported program", batch_size, precision, is_trainable=bool(weights), has_scales=False),
    )


def digest_of(path: Path) -> str:
    """Of a file's content, so that two records tell whether they measured the same file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open(text: str, path: Path) -> Any:
    import torch

    try:
        with torch.device("cpu"):
            return torch.export.load(path)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        why = f": torch.export.load does not read it: {lines[0]}"
        raise refusal("not-a-program", text, why, PROGRAM) from error


def _fixed_rows(program: Any) -> int | None:
    """The batch size that the program was exported with; None if it takes any."""
    users = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in users and hasattr(node.meta.get("val"), "shape"):
            rows = node.meta["val"].shape[0]
            if isinstance(rows, int):
                return rows
    return None


def _wrapped(exported: Any) -> Any:
    from torch import nn

    class Program(nn.Module):
        """A program is in the mode in which it was exported: it refuses to change it."""

        def __init__(self) -> None:
            super().__init__()
            self.exported = exported

        def forward(self, *inputs: Any) -> Any:
            return self.exported(*inputs)

        def train(self, mode: bool = True) -> Program:
            self.training = mode
            return self

    return Program()
