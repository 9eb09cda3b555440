"""Mixtures of experts: a router sends each token to a few of many feed-forward layers.

Tokens are sorted by their expert, so that all products of a layer are one grouped product. On a GPU no shape depends on
how many tokens an expert has: nothing waits for the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.core.transformer import GATE_BLOCK
from paceline.models._modules.decoder import Decoder, GatedFeedForward, gated

if TYPE_CHECKING:
    from paceline.models.mixtral import MoeShape

# From torch 2.10 on; the private one of earlier versions wants groups of 8 rows, and otherwise ends the process.
_grouped_mm: Callable[..., Tensor] | None = getattr(F, "grouped_mm", None)


def grouped_linear(x: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Rows of x, sorted by group, times the weight [outputs, inputs] of their group; `counts` rows are in each."""
    kind = x.device.type
    if x.is_meta:  # a product of as many rows, so that it is counted as such
        return F.linear(x, weights[0])
    if torch.is_autocast_enabled(kind):
        x, weights = x.to(torch.get_autocast_dtype(kind)), weights.to(torch.get_autocast_dtype(kind))
    if x.is_cuda and x.dtype is torch.bfloat16 and _grouped_mm is not None:
        return _grouped_mm(x, weights.transpose(-2, -1), offs=counts.cumsum(0).to(torch.int32))
    rows = torch.split(x, counts.tolist())
    return torch.cat([F.linear(part, weight) for part, weight in zip(rows, weights, strict=True)])


class Permuted(torch.autograd.Function):
    """x[order]; its gradient is put back in the order it came in, without the atomic sums of a general index."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x[order]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.saved_tensors[0]], None, None


class Experts(nn.Module):
    """Feed-forward layers with gates, side by side."""

    def __init__(self, count: int, hidden: int, width: int) -> None:
        super().__init__()
        self.expand_weights = nn.Parameter(torch.empty(count, 2 * width, hidden))
        self.contract_weights = nn.Parameter(torch.empty(count, hidden, width))
        self.block = math.gcd(width, GATE_BLOCK)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows sorted by expert, so many for each."""
        inside = gated(grouped_linear(rows, local(self.expand_weights), counts), self.block)
        return grouped_linear(inside, local(self.contract_weights), counts)


def local(weight: Tensor) -> Tensor:
    """What this device holds of a weight that may be spread over several."""
    part: Tensor = weight.to_local() if hasattr(weight, "to_local") else weight
    return part


class MixtureOfExperts(nn.Module):
    """The sum of a token's likeliest experts by their probability, and of those that all tokens share."""

    def __init__(self, shape: MoeShape) -> None:
        super().__init__()
        self.count, self.used, self.renormalised = shape.experts, shape.experts_used, shape.renormalised
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = Experts(shape.experts, shape.hidden, shape.feed_forward)
        self.shared = GatedFeedForward(shape.hidden, shape.shared_width) if shape.shared_width else None
        # What a mesh replaces where each rank has a part of every expert, or some of the experts.
        self.mix: Callable[[Tensor, Tensor, Tensor], Tensor] = self.mixed
        self.exchange: Callable[..., Tensor] = lambda experts, rows, counts: experts(rows, counts)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        probabilities, chosen = self.router(flat).float().softmax(-1).topk(self.used)
        if self.renormalised:
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        mixed = self.mix(flat, probabilities, chosen)
        if self.shared is not None:
            mixed = mixed + self.shared(flat)
        return mixed.view(x.shape)

    def mixed(self, x: Tensor, probabilities: Tensor, chosen: Tensor) -> Tensor:
        """Tokens [tokens, hidden] through their chosen experts [tokens, used]."""
        expert_of = chosen.flatten()
        order = expert_of.argsort(stable=True)
        inverse = order.argsort()
        counts = (expert_of[:, None] == torch.arange(self.count, device=x.device)).sum(0)
        copies = x[:, None].expand(-1, self.used, -1).flatten(0, 1)
        rows = Permuted.apply(copies, order, inverse)  # type: ignore[no-untyped-call]
        rows = self.exchange(self.experts, rows, counts)
        back: Tensor = Permuted.apply(rows, inverse, order).view(*chosen.shape, -1)  # type: ignore[no-untyped-call]
        return (back * probabilities.unsqueeze(-1).to(back.dtype)).sum(1)


class MoeDecoder(Decoder):
    """A decoder whose feed-forward layers are mixtures of experts, all but the first few."""

    shape: MoeShape

    def feed_forward(self, layer: int) -> nn.Module:
        """That of a layer."""
        if layer < self.shape.dense_layers:
            return GatedFeedForward(self.shape.hidden, self.shape.dense_width)
        return MixtureOfExperts(self.shape)
