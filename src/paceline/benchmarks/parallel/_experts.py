"""Mixtures of experts over a mesh: experts on different ranks, or a part of the width of every expert on each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from paceline.benchmarks.parallel._stage import Stage
from paceline.models._modules.experts import Experts, MixtureOfExperts, Permuted


def mixtures(module: nn.Module) -> Iterator[MixtureOfExperts]:
    """All that a module has."""
    return (layer for layer in module.modules() if isinstance(layer, MixtureOfExperts))


def split_experts(stage: Stage, mesh: Any) -> None:
    """Leave each rank of the mesh its share of the experts, and send it their tokens from all ranks."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    for layer in mixtures(stage):
        for name, weight in list(layer.experts.named_parameters()):
            setattr(layer.experts, name, nn.Parameter(weight.detach().chunk(ranks)[rank].clone()))
        layer.exchange = _Exchange(mesh.get_group(), ranks)


class ScaledGradient(torch.autograd.Function):
    """x as it is, with its gradient multiplied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class _Exchange:
    """Sends every row to the rank of its expert, and brings back what the expert made of it."""

    def __init__(self, group: Any, ranks: int) -> None:
        self._group, self._ranks = group, ranks

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, experts: Callable[..., Tensor], rows: Tensor, counts: Tensor) -> Tensor:
        """Rows sorted by expert, so many for each of all experts."""
        by_rank = counts.view(self._ranks, -1)
        theirs = torch.empty_like(by_rank)  # how many rows each rank has for each expert here
        distributed.all_to_all_single(theirs, by_rank, group=self._group)
        sent, received = by_rank.sum(1).tolist(), theirs.sum(1).tolist()
        arrived = self._all_to_all(rows, received, sent)
        here = torch.arange(theirs.shape[1], device=rows.device).repeat(self._ranks)
        order = here.repeat_interleave(theirs.flatten()).argsort(stable=True)
        inverse = order.argsort()
        # Gradients of these weights are sums over all ranks that sent rows, but those of a mesh are means over them.
        sorted_rows = ScaledGradient.apply(Permuted.apply(arrived, order, inverse), self._ranks)  # type: ignore[no-untyped-call]
        made = ScaledGradient.apply(experts(sorted_rows, theirs.sum(0)), 1 / self._ranks)  # type: ignore[no-untyped-call]
        return self._all_to_all(Permuted.apply(made, inverse, order), sent, received)  # type: ignore[no-untyped-call]

    def _all_to_all(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        return all_to_all_single_autograd(rows.contiguous(), received, sent, self._group)


def split_widths(layer: MixtureOfExperts, mesh: Any) -> None:
    """Leave each rank of the mesh a part of the width of every expert, and sum what the parts make."""

    def spread(experts: Experts, name: str, axis: int) -> None:
        setattr(experts, name, nn.Parameter(distribute_tensor(getattr(experts, name).detach(), mesh, [Shard(axis)])))

    def whole_gradient(x: Tensor) -> Tensor:
        return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])

    def mix(x: Tensor, probabilities: Tensor, chosen: Tensor) -> Tensor:
        part = layer.mixed(whole_gradient(x), whole_gradient(probabilities), chosen)
        return DTensor.from_local(part, mesh, [Partial()], run_check=False).redistribute(mesh, [Replicate()]).to_local()

    spread(layer.experts, "expand_weights", 1)
    spread(layer.experts, "contract_weights", 2)
    layer.mix = mix
