"""The mesh of ranks, and a stage: the whole model or a run of its layers, computing a loss where it is the last."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from paceline.core.layout import Layout
from paceline.models.base import Batch, Workload


@dataclass(frozen=True)
class Mesh:
    """This rank's position among the ranks, and the groups it belongs to; one rank alone has no groups.

    Pipeline is the outermost axis and tensor the innermost, so that ranks that communicate most are neighbours.
    """

    layout: Layout
    rank: int = 0
    device_mesh: Any = None  # by the name of an axis, the ranks that differ from this one along it alone
    fine_mesh: Any = None  # where the axis `data` is made of replicas, context and experts: each by itself
    expert_mesh: Any = None  # where there are experts: the ranks that hold the same ones are its axis `data`
    ends: Any = None  # the group of the first and the last pipeline rank, on these two alone

    @classmethod
    def of(cls, layout: Layout, rank: int, device_type: str) -> Mesh:
        """Every rank must call this at the same time."""
        if layout.world_size == 1:
            return cls(layout)

        def meshed(**sizes: int) -> Any:
            return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

        pipeline, tensor, context, expert = layout.pipeline, layout.tensor, layout.context, layout.expert
        replicas = layout.data // expert
        # Ranks with other samples and ranks with other tokens train the same weights: they are one axis.
        device_mesh = meshed(pipeline=pipeline, data=layout.data * context, tensor=tensor)
        fine_mesh = expert_mesh = None
        if context > 1 or expert > 1:
            fine_mesh = meshed(pipeline=pipeline, replica=replicas, context=context, expert=expert, tensor=tensor)
        if expert > 1:
            expert_mesh = meshed(pipeline=pipeline, data=replicas * context, expert=expert, tensor=tensor)
        ends = None  # keeps the embedding of the first stage and the head of the last one equal
        plane = layout.data * context * tensor
        for first in range(plane if layout.pipeline > 1 else 0):
            pair = [first, (layout.pipeline - 1) * plane + first]
            group = distributed.new_group(pair)
            ends = group if rank in pair else ends
        return cls(layout, rank, device_mesh, fine_mesh, expert_mesh, ends)

    @property
    def pipeline_rank(self) -> int:
        return self.rank // (self.layout.data * self.layout.context * self.layout.tensor)

    @property
    def data_rank(self) -> int:
        """Which of the samples; context lies between replicas and experts."""
        layout = self.layout
        expert = self.rank // layout.tensor % layout.expert
        replica = self.rank // (layout.tensor * layout.expert * layout.context) % (layout.data // layout.expert)
        return replica * layout.expert + expert

    @property
    def context_rank(self) -> int:
        """Which of the tokens."""
        return self.rank // (self.layout.tensor * self.layout.expert) % self.layout.context


# What of a model only its beginning or only its end needs; a token embedding that is also the head is both.
_ENTRY = ("position_embedding", "type_embedding", "embedding_norm")
_EXIT = ("final_norm", "head_transform", "head_norm", "head_bias", "lm_head")
TIED = "token_embedding"


class Recomputed(nn.Module):
    """A layer that keeps its input alone, and is computed again in the backward pass.

    Compiled as one, the second computation leaves out what no gradient needs: the last product, if only a sum follows.
    A layer that ends with a norm therefore leaves it to the next one, as `before`: the sum is kept, not its norm.
    """

    def __init__(self, layer: nn.Module, before: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.before = before

    def forward(self, x: Tensor) -> Tensor:
        # Nothing in a layer is random; reading the state of the generator would also break a CUDA graph.
        return checkpoint(self._compute, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]

    def _compute(self, x: Tensor) -> Tensor:
        return self.layer(x if self.before is None else _normed(self.before, x))  # type: ignore[no-any-return]


class LastNorm(nn.Module):
    """The norm that the last layer has left."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return _normed(self.norm, x)


class DeferredSum(nn.Module):
    """A layer that leaves its last sum to the next one, where a compiler joins it with the norm that follows.

    Compiled layer by layer, the sum would otherwise be written by one kernel and read again by the next.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Any = layer

    def forward(self, state: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.layer.without_last_sum(_summed(state))  # type: ignore[no-any-return]


class LastSum(nn.Module):
    """The sum that the last layer has left."""

    def forward(self, state: tuple[Tensor, Tensor]) -> Tensor:
        return _summed(state)


def _summed(state: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    return state if isinstance(state, Tensor) else state[0] + state[1]


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    return norm(x).to(x.dtype)  # type: ignore[no-any-return]


class Stage(nn.Module):
    """Some layers of a model; the first stage embeds tokens, the last one returns the loss of a micro-batch."""

    def __init__(
        self,
        workload: Workload,
        layers: range,
        *,
        first: bool,
        last: bool,
        autocast: Callable[[], AbstractContextManager[object]],
        wire: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.first, self.last = first, last
        model: Any = workload.module
        self.model: Any = model
        self._loss = workload.loss
        self._autocast = autocast
        self._wire = wire  # the format between layers and between stages; None leaves it as it is
        # What a mesh puts around the layers: splitting the sequence, and joining it again.
        self.enter: Callable[[Tensor], Tensor] = lambda x: x
        self.leave: Callable[[Tensor], Tensor] = lambda x: x
        self.embed: Callable[..., Tensor] = self._embed
        self.score: Callable[..., Tensor] = self._score
        # Leave only what the stage computes with; the rest is freed.
        model.blocks = model.blocks[layers.start : layers.stop]
        self.tied = bool(getattr(model, "tied", True))  # whether the head is the embedding
        embeds = first or (last and self.tied)
        for name in (*(() if first else _ENTRY), *(() if last else _EXIT), *(() if embeds else (TIED,))):
            if getattr(model, name, None) is not None:
                setattr(model, name, None)

    def forward(self, *inputs: Tensor, labels: Tensor, positions: Tensor | None = None) -> Tensor:
        """From tokens or the stage before to the next stage or the loss; `positions` are those that are scored."""
        with self._autocast():
            x = self.enter(self.embed(*inputs)) if self.first else inputs[0]
            for block in self.model.blocks:
                x = block(x)
            if not self.last:
                return self._as_wired(x)
            return self.score(self.leave(x), labels, positions)

    def recompute_layers(self, *, whole: bool) -> None:
        """Trade time for memory; call it when the layers are final. Not whole leaves every norm in its layer."""
        recomputed: list[nn.Module] = []
        before: nn.Module | None = None
        for block in self.model.blocks:
            recomputed.append(Recomputed(block, before))
            last: str | None = getattr(block, "last_norm", None)
            if last is not None and whole:
                before = getattr(block, last)
                setattr(block, last, nn.Identity())
        if before is not None:
            recomputed.append(LastNorm(before))
        self.model.blocks = nn.ModuleList(recomputed)

    def defer_sums(self) -> None:
        """Let every layer that can leave its last sum to the next one; call it when the layers are final."""
        blocks = self.model.blocks
        if len(blocks) and all(hasattr(block, "without_last_sum") for block in blocks):
            self.model.blocks = nn.ModuleList([*(DeferredSum(block) for block in blocks), LastSum()])

    def _as_wired(self, x: Tensor) -> Tensor:
        return x if self._wire is None else x.to(self._wire)

    def _embed(self, *inputs: Tensor) -> Tensor:
        return self._as_wired(self.model.embed(*inputs))

    def _score(self, x: Tensor, labels: Tensor, positions: Tensor | None) -> Tensor:
        logits = self.model.head(x) if positions is None else self.model.head(x, positions)
        return self._loss(logits, Batch((), (labels,)))
