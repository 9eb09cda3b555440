"""Context parallelism: the ranks of a group have a part of every sample's tokens each, and gather keys and values.

The tokens are cut into twice as many chunks as there are ranks, and a rank has one from each end: a causal mask leaves
a late token more work than an early one, and so all ranks have the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from paceline.benchmarks.parallel._stage import Stage
from paceline.models._modules.decoder import GroupedQueryAttention, Rotary, attend


def local_tokens(tokens: int, ranks: int, rank: int) -> Tensor:
    """Which tokens of a sample a rank has."""
    chunks = torch.arange(tokens).view(2 * ranks, -1)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]))


def split_context(stage: Stage, mesh: Any, tokens: int) -> None:
    """Let the stage's layers attend over all tokens, of which each rank of the mesh has those of `local_tokens`."""
    mine = local_tokens(tokens, mesh.size(), mesh.get_local_rank())
    turned: set[Rotary] = set()
    for module in stage.modules():
        if isinstance(module, GroupedQueryAttention):
            module.attend = _GatheredAttention(mesh)
            if module.rotary not in turned:  # layers share one
                module.rotary.table = module.rotary.table[:, mine.to(module.rotary.table.device)]
                turned.add(module.rotary)


class _GatheredAttention:
    """Causal attention of this rank's two chunks of queries over the keys up to each."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh
        self._rank, self._ranks = mesh.get_local_rank(), mesh.size()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
        assert causal
        chunk = query.shape[2] // 2
        keys, values = self._gathered(key), self._gathered(value)
        parts = []
        for part, place in zip(query.chunk(2, 2), (self._rank, 2 * self._ranks - 1 - self._rank), strict=True):
            end = (place + 1) * chunk
            # The last token of the chunk sees every key before its end, those before it one less each.
            mask = torch.ones(chunk, end, dtype=torch.bool, device=query.device).tril(end - chunk)
            parts.append(attend(part, keys[:, :, :end], values[:, :, :end], mask=mask))
        return torch.cat(parts, 2)

    def _gathered(self, x: Tensor) -> Tensor:
        """Of all ranks, in the order of the tokens; gradients are summed where they belong."""
        spread = DTensor.from_local(x, self._mesh, [Shard(2)], run_check=False)
        whole = spread.redistribute(self._mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        early, late = torch.unflatten(whole, 2, (self._ranks, 2, -1)).unbind(3)
        return torch.cat((early.flatten(2, 3), late.flip(2).flatten(2, 3)), 2)
