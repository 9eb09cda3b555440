"""Linear layers that compute with 16-bit copies of fp32 weights, and the AdamW that steps both.

Autocast casts a weight whenever its layer computes, and its gradient after; the optimizer then reads both in fp32. Here
the layer holds the copy, the gradient stays as the product wrote it, and one kernel reads it, steps the weight and
writes the copy. The numbers are the same; the bytes moved for each weight are 30 instead of 44, with those of the norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from paceline.benchmarks.parallel._adamw import BETAS, EPSILON, WEIGHT_DECAY, fused_adamw, take_step


@dataclass(frozen=True)
class _Matrix:
    """One number after the other: the trained weight, its copy, its two moments."""

    master: Tensor
    low: Tensor
    first: Tensor
    second: Tensor


class Masters:
    """The fp32 weights behind copies that compute."""

    def __init__(self, layers: nn.Module, low: torch.dtype, rate: float, *, capturable: bool) -> None:
        self._rate = rate
        self._matrices: list[_Matrix] = []
        self._matrix_copies: list[nn.Parameter] = []
        self._vector_copies: list[nn.Parameter] = []
        self._vectors: list[nn.Parameter] = []
        for layer in layers.modules():
            if type(layer) is nn.Linear:  # a kind of its own knows better what it computes with
                for name, weight in list(layer.named_parameters(recurse=False)):
                    copy = nn.Parameter(weight.detach().to(low))
                    setattr(layer, name, copy)
                    self._hold(weight, copy)
        for vector in self._vectors:
            vector.grad = torch.zeros_like(vector)
        self._adamw = fused_adamw(self._vectors, rate, capturable=capturable) if self._vectors else None
        self._steps = torch.zeros((), device=self._matrices[0].master.device)

    @property
    def copies(self) -> list[nn.Parameter]:
        """What the layers hold, in the order that `step` takes gradients in."""
        return [*self._matrix_copies, *self._vector_copies]

    def step(self, gradients: Sequence[Tensor], divisor: Tensor, overflowed: Tensor | None) -> None:
        """Step weights and copies, with the copies' gradients divided by so much; not where they have overflowed."""
        count = len(self._matrices)
        if self._adamw is not None:
            wide = [vector.grad for vector in self._vectors]
            torch._foreach_copy_(wide, list(gradients[count:]))
            take_step(self._adamw, divisor, overflowed)
            with torch.no_grad():
                torch._foreach_copy_(self._vector_copies, self._vectors)
        self._steps.add_(1.0 if overflowed is None else 1.0 - overflowed.float())
        factors = torch.stack(
            (
                1.0 / divisor,
                self._rate / (1.0 - BETAS[0] ** self._steps),
                (1.0 - BETAS[1] ** self._steps).rsqrt(),
                torch.full_like(divisor, 1.0 - self._rate * WEIGHT_DECAY),
            )
        )
        update = _compiled()
        with torch.no_grad():
            for one, gradient in zip(self._matrices, gradients[:count], strict=True):
                update(one.master, one.low, one.first, one.second, gradient.view(-1), factors, overflowed)

    def memory(self) -> dict[str, list[Tensor]]:
        """What of it counts as parameters, as gradients and as the optimizer's state."""
        state = self._adamw.state.values() if self._adamw is not None else ()
        return {
            "parameter_memory": [*self.copies, *self._vectors, *(one.master for one in self._matrices)],
            "gradient_memory": [g for g in (one.grad for one in (*self.copies, *self._vectors)) if g is not None],
            "optimizer_memory": [
                *(moment for one in self._matrices for moment in (one.first, one.second)),
                *(value for one in state for value in one.values() if isinstance(value, Tensor)),
            ],
        }

    def _hold(self, weight: nn.Parameter, copy: nn.Parameter) -> None:
        if weight.dim() > 1:
            master = weight.detach().view(-1)
            moments = torch.zeros_like(master), torch.zeros_like(master)
            self._matrices.append(_Matrix(master, copy.detach().view(-1), *moments))
            self._matrix_copies.append(copy)
        else:
            self._vectors.append(weight)
            self._vector_copies.append(copy)


def _update(
    master: Tensor,
    low: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: Tensor,
    factors: Tensor,
    overflowed: Tensor | None,
) -> None:
    """AdamW for one matrix: what fused implementations do, and the copy beside it."""
    unscale, size, root, keep = factors.unbind()
    wide = gradient.float() * unscale
    mean = first + (wide - first) * (1.0 - BETAS[0])
    square = second * BETAS[1] + wide * wide * (1.0 - BETAS[1])
    stepped = master * keep - size * mean / (square.sqrt() * root + EPSILON)
    if overflowed is not None:
        mean, square = torch.where(overflowed, first, mean), torch.where(overflowed, second, square)
        stepped = torch.where(overflowed, master, stepped)
    first.copy_(mean)
    second.copy_(square)
    master.copy_(stepped)
    low.copy_(stepped)


@cache
def _compiled() -> Any:
    # One kernel serves matrices of every size.
    return torch.compile(_update, dynamic=True)
