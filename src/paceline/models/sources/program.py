"""Exported programs of torch: a `.pt2` file written by `torch.export.save`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from paceline.models.base import ModelSpec, Scale, Traits, Workload
from paceline.models.sources.given import workload
from paceline.models.sources.inputs import parse_inputs
from paceline.models.sources.refusal import PROGRAM, existing_file, refusal

PRECISIONS = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}


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
    precision = PRECISIONS.get(str(weights[0].dtype), "") if weights else ""
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
