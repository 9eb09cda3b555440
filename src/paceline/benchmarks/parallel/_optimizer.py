"""The end of a step over the whole mesh: joining tied gradients, the global norm, clipping, loss scale, AdamW.

AdamW changes every number by itself, so that each rank steps the numbers it holds and no more; only the square of the
gradient's norm is summed over all ranks. Clipping and unscaling are one factor that the fused optimizer applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from paceline.benchmarks.parallel._stage import TIED, Mesh, Stage


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
            if type(layer) is not nn.Linear:  # a subclass chooses its own formats
                continue
            for name, weight in list(layer.named_parameters(recurse=False)):
                copy = nn.Parameter(weight.detach().to(low))
                setattr(layer, name, copy)
                if weight.dim() > 1:
                    master = weight.detach().view(-1)
                    moments = torch.zeros_like(master), torch.zeros_like(master)
                    self._matrices.append(_Matrix(master, copy.detach().view(-1), *moments))
                    self._matrix_copies.append(copy)
                else:
                    self._vectors.append(weight)
                    self._vector_copies.append(copy)
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
    """AdamW for one matrix, as fused implementations compute it, and for its copy."""
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


BETAS = (0.9, 0.999)
EPSILON = 1e-8
WEIGHT_DECAY = 0.01  # of matrices; norms and biases have none


def fused_adamw(parameters: Iterable[nn.Parameter], rate: float, *, capturable: bool) -> torch.optim.AdamW:
    """PyTorch's own, in one kernel for many parameters; capturable is by a CUDA graph."""
    parameters = list(parameters)
    groups = [
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [one for one in parameters if one.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=rate, betas=BETAS, eps=EPSILON, fused=True, capturable=capturable)


def take_step(adamw: torch.optim.AdamW, divisor: Tensor, overflowed: Tensor | None) -> None:
    """A step with gradients divided by so much; none where they have overflowed."""
    adamw.grad_scale = divisor  # type: ignore[attr-defined]
    if overflowed is not None:
        adamw.found_inf = overflowed.float()  # type: ignore[attr-defined]
    adamw.step()


def state_of(adamw: torch.optim.AdamW | None) -> list[Tensor]:
    """The moments and step counts that it holds; none before the first step."""
    states = () if adamw is None else adamw.state.values()
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


CLIP = 1.0
FIRST_SCALE = 65536.0
GROWTH_STEPS = 2000  # without overflow, before the loss scale is doubled


class LossScale:
    """What fp16 multiplies its loss by, kept on the device so that no step waits for it; 1 for other formats."""

    def __init__(self, device: torch.device, *, dynamic: bool) -> None:
        self.dynamic = dynamic
        self.value = torch.full((), FIRST_SCALE if dynamic else 1.0, device=device)
        self._good_steps = torch.zeros((), device=device)

    def update(self, overflowed: Tensor) -> None:
        """Halve after an overflow, double after many steps without one."""
        good = torch.where(overflowed, 0.0, self._good_steps + 1)
        grows = good >= GROWTH_STEPS
        factor = torch.where(overflowed, 0.5, torch.where(grows, 2.0, 1.0))
        self.value.mul_(factor)
        self._good_steps.copy_(torch.where(grows, 0.0, good))


class MeshOptimizer:
    """AdamW over this rank's part of the model."""

    def __init__(
        self,
        stages: Mapping[int, Stage],
        stage_count: int,
        mesh: Mesh,
        rate: float,
        scale: LossScale,
        *,
        masters: Masters | None = None,
        capturable: bool = False,
    ) -> None:
        self._capturable = capturable  # by a CUDA graph
        self._masters = masters
        self._mesh = mesh
        self._rate = rate
        self._scale = scale
        self._ends = [stages[index] for index in sorted({0, stage_count - 1}) if index in stages]
        self._is_tied_apart = stage_count > 1 and all(stage.tied for stage in stages.values())
        self.parameters: list[nn.Parameter] = [] if masters is None else masters.copies
        self._copies = len(self.parameters)  # these come first
        copies = set(self.parameters)
        shares = [1.0] * self._copies
        for index, stage in stages.items():
            for name, parameter in stage.named_parameters():
                if parameter in copies:
                    continue
                # A second copy of the tied embedding is not a second parameter.
                is_copy = self._is_tied_apart and index == stage_count - 1 and name == f"model.{TIED}.weight"
                self.parameters.append(parameter)
                others = mesh.layout.expert if ".experts." in name else 1  # which hold other experts
                shares.append(0.0 if is_copy else others / self._holders(parameter))
        self._shares = torch.tensor(shares, device=scale.value.device)
        self._local: list[nn.Parameter] = []  # what this rank holds of those that are not copies
        self._adamw: torch.optim.AdamW | None = None

    def zero(self) -> None:
        """Clear the gradients."""
        for parameter in (*self.parameters, *self._local):
            parameter.grad = None

    def step(self) -> Tensor:
        """Take the step, with all micro-batches' gradients there; returns the global norm before clipping."""
        gradients = [_local_gradient(parameter) for parameter in self.parameters]
        self._join_tied(gradients)
        # Of copies in 16 bits and of fp32 weights apart: many tensors at once are those of one format.
        alike = [one for one in (gradients[: self._copies], gradients[self._copies :]) if one]
        norms = torch.cat([torch.stack(torch._foreach_norm(one, 2, torch.float32)) for one in alike])
        total = (norms.square() * self._shares).sum()
        if self._mesh.layout.world_size > 1:
            distributed.all_reduce(total)
        norm = total.sqrt() / self._scale.value
        if self._adamw is None:
            # Not before the first backward pass: sharding may still move what a rank holds until then.
            self._local = [
                nn.Parameter(one.to_local().detach()) if isinstance(one, DTensor) else one
                for one in self.parameters[self._copies :]
            ]
            self._adamw = fused_adamw(self._local, self._rate, capturable=self._capturable)
        for parameter, gradient in zip(self._local, gradients[self._copies :], strict=True):
            parameter.grad = gradient
        divisor = self._scale.value * ((norm + 1e-6) / CLIP).clamp(min=1.0)
        overflowed = None
        if self._scale.dynamic:
            overflowed = ~torch.isfinite(norm)
            divisor.nan_to_num_(nan=1.0, posinf=1.0)
            self._scale.update(overflowed)
        take_step(self._adamw, divisor, overflowed)
        if self._masters is not None:
            self._masters.step(gradients[: self._copies], divisor, overflowed)
        return norm

    def memory(self) -> dict[str, int]:
        """Bytes of this rank's parameters, of their gradients after a step, and of the optimizer's state."""
        parts: dict[str, list[Tensor]] = {
            "parameter_memory": [*self._local],
            "gradient_memory": [one.grad for one in self._local if one.grad is not None],
            "optimizer_memory": state_of(self._adamw),
        }
        masters = self._masters.memory() if self._masters is not None else {}
        return {name: byte_count([*held, *masters.get(name, ())]) for name, held in parts.items()}

    def _join_tied(self, gradients: list[Tensor]) -> None:
        """First and last stage hold a copy of the embedding each: both get the sum of the two gradients."""
        if not self._is_tied_apart or not self._ends:
            return
        tied = []
        for stage in self._ends:
            weight = getattr(stage.model, TIED).weight
            tied.append(next(grad for one, grad in zip(self.parameters, gradients, strict=True) if one is weight))
        if len(tied) == 2:
            tied[0].add_(tied[1])
            tied[1].copy_(tied[0])
        else:
            distributed.all_reduce(tied[0], group=self._mesh.ends)

    def _holders(self, parameter: nn.Parameter) -> int:
        """How many ranks of a stage hold the same numbers as this one."""
        parts = 1
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            for axis, placement in enumerate(parameter.placements):
                parts *= 1 if placement.is_replicate() else mesh.size(axis)
        layout = self._mesh.layout
        return layout.data * layout.context * layout.tensor // parts


def _local_gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient of what this rank holds, in full: a sum that is still spread over ranks is made here."""
    gradient = parameter.grad
    if gradient is None:
        raise RuntimeError("a parameter has no gradient after the backward pass")
    if not isinstance(gradient, DTensor):
        return gradient
    if isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
    local: Any = gradient.to_local()
    return local.wait() if hasattr(local, "wait") else local  # type: ignore[no-any-return]


def byte_count(tensors: Iterable[Tensor]) -> int:
    """How much memory the tensors take together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
