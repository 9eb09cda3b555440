"""Linear layers that compute with 16-bit copies of fp32 weights, and the AdamW that steps both.

Autocast casts a weight whenever its layer computes, and its gradient after; the optimizer then reads both in fp32. Here
the layer holds the copy, the gradient stays as the product wrote it, and one kernel reads it, steps the weight and
writes the copy. Only roundings differ; the bytes moved for each weight are 30 instead of 44, with those of the norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from paceline.benchmarks.parallel._adamw import BETAS, EPSILON, WEIGHT_DECAY, fused_adamw, state_of, take_step


@dataclass(frozen=True)
class _Matrix:
    """One number after the other: the trained weight, its copy, its two moments."""

    master: Tensor
    low: Tensor
    first: Tensor
    second: Tensor


class Masters:
    """The fp32 weights behind copies that compute: matrices one by one, vectors (biases) all at once."""

    def __init__(self, layers: nn.Module, low: torch.dtype, rate: float, *, capturable: bool) -> None:
        self._rate = rate
        self._matrices: list[_Matrix] = []
        self._matrix_copies: list[nn.Parameter] = []
        self._vectors: list[nn.Parameter] = []
        self._vector_copies: list[nn.Parameter] = []
        for layer in layers.modules():
            if type(layer) is nn.Linear:  # a kind of its own knows better what it computes with
                for name, weight in list(layer.named_parameters(recurse=False)):
                    setattr(layer, name, self._hold(weight, low))
        self._vector_gradients = [torch.zeros_like(vector) for vector in self._vectors]
        for vector, gradient in zip(self._vectors, self._vector_gradients, strict=True):
            vector.grad = gradient
        self._adamw = fused_adamw(self._vectors, rate, capturable=capturable)
        self._steps = torch.zeros((), device=self._matrices[0].master.device)

    @property
    def copies(self) -> list[nn.Parameter]:
        """What the layers hold, in the order that `step` takes gradients in."""
        return [*self._matrix_copies, *self._vector_copies]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], divisor: Tensor, overflowed: Tensor | None) -> None:
        """Step weights and copies, with the copies' gradients divided by so much; not where they have overflowed."""
        count = len(self._matrices)
        self._step_matrices(gradients[:count], divisor, overflowed)
        torch._foreach_copy_(self._vector_gradients, [*gradients[count:]])
        take_step(self._adamw, divisor, overflowed)
        torch._foreach_copy_([*self._vector_copies], [*self._vectors])

    def memory(self) -> dict[str, list[Tensor]]:
        """What of it counts as parameters, as gradients and as the optimizer's state."""
        gradients = [copy.grad for copy in self.copies if copy.grad is not None]
        return {
            "parameter_memory": [*self.copies, *self._vectors, *(one.master for one in self._matrices)],
            "gradient_memory": [*gradients, *self._vector_gradients],
            "optimizer_memory": [
                *(moment for one in self._matrices for moment in (one.first, one.second)),
                *state_of(self._adamw),
            ],
        }

    def _hold(self, weight: nn.Parameter, low: torch.dtype) -> nn.Parameter:
        copy = nn.Parameter(weight.detach().to(low))
        if weight.dim() > 1:
            master = weight.detach().view(-1)
            moments = torch.zeros_like(master), torch.zeros_like(master)
            self._matrices.append(_Matrix(master, copy.detach().view(-1), *moments))
            self._matrix_copies.append(copy)
        else:
            self._vectors.append(weight)
            self._vector_copies.append(copy)
        return copy

    def _step_matrices(self, gradients: Sequence[Tensor], divisor: Tensor, overflowed: Tensor | None) -> None:
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
        for one, gradient in zip(self._matrices, gradients, strict=True):
            update(one.master, one.low, one.first, one.second, gradient.view(-1), factors, overflowed)


def _update(
    master: Tensor,
    low: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: Tensor,
    factors: Tensor,
    overflowed: Tensor | None,
) -> None:
    """AdamW for one matrix, as fused implementations compute it, and the copy beside it."""
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
