"""What goes into a model of the user's own: written after --input, read from a file, or taken from example tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.errors import InputError
from paceline.models.base import Batch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BELOW = 100  # whole numbers are drawn from 0 up to here where nothing else is written
TYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool")
_FORM = re.compile(rf"([1-9]\d{{0,8}}(?:x[1-9]\d{{0,8}})*)(?::({'|'.join(TYPES)})(?::([1-9]\d{{0,9}}))?)?")
_SYNTAX = "write the sizes as 1x3x224x224, whole numbers as 1x128:int64:30522 (below 30522), several joined by +"


@dataclass(frozen=True)
class InputSpec:
    """One input of random numbers; the first size is that of the batch."""

    sizes: tuple[int, ...]
    type: str = "float32"
    below: int = BELOW

    def row(self, generator: torch.Generator) -> Tensor:
        """One sample."""
        import torch

        sizes, dtype = self.sizes[1:], getattr(torch, self.type)
        if dtype.is_floating_point:
            return torch.randn(sizes, generator=generator, device=generator.device).to(dtype)
        below = 2 if dtype is torch.bool else min(self.below, 127 if dtype.itemsize == 1 else self.below)
        return torch.randint(below, sizes, generator=generator, device=generator.device).to(dtype)

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes)) + (f":{self.type}" if self.type != "float32" else "")


def parse_inputs(text: str) -> tuple[InputSpec, ...]:
    """What was written after --input."""
    specs = []
    for part in text.split("+"):
        matched = _FORM.fullmatch(part.strip())
        if matched is None:
            raise InputError("not-an-input", f"input = '{text}': {_SYNTAX}", key="input", value=text)
        sizes, type_name, below = matched.groups()
        specs.append(
            InputSpec(tuple(map(int, sizes.split("x"))), type_name or "float32", int(below) if below else BELOW)
        )
    if len({spec.sizes[0] for spec in specs}) > 1:
        message = f"input = '{text}': the first size is that of the batch, and must be the same in all of them"
        raise InputError("not-an-input", message, key="input", value=text)
    return tuple(specs)


def random_batch(specs: Sequence[InputSpec], samples: int, generator: torch.Generator) -> Batch:
    """Random numbers, sample by sample: the first ones must not depend on how many follow."""
    import torch

    rows = [[spec.row(generator) for spec in specs] for _ in range(samples)]
    return Batch(tuple(torch.stack(column) for column in zip(*rows, strict=True)), ())


def repeated_batch(examples: Sequence[Tensor], samples: int, generator: torch.Generator) -> Batch:
    """The rows of example tensors over and over: whatever a model demands of its inputs, these have it."""
    import torch

    index = torch.arange(samples, device=examples[0].device) % len(examples[0])
    return Batch(tuple(example[index] for example in examples), ())
