"""The ranks as a mesh: pipeline outermost, tensor innermost, so that those who talk most are neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.core.layout import Layout


@dataclass(frozen=True)
class Mesh:
    """This rank's place in the mesh, and the groups it belongs to; one rank alone has no groups."""

    layout: Layout
    rank: int = 0
    device_mesh: Any = None
    ends: Any = None  # the group of the first and the last pipeline rank, on these two alone

    @classmethod
    def of(cls, layout: Layout, rank: int, device_type: str) -> Mesh:
        """Every rank must call this at the same time."""
        if layout.world_size == 1:
            return cls(layout)
        from torch.distributed.device_mesh import init_device_mesh

        shape = (layout.pipeline, layout.data, layout.tensor)
        device_mesh = init_device_mesh(device_type, shape, mesh_dim_names=("pipeline", "data", "tensor"))
        return cls(layout, rank, device_mesh, _group_of_ends(layout, rank))

    def along(self, axis: str) -> Any:
        """The mesh of those who differ from this rank along one axis only."""
        return self.device_mesh[axis]

    @property
    def pipeline_rank(self) -> int:
        return self.rank // (self.layout.data * self.layout.tensor)

    @property
    def data_rank(self) -> int:
        return self.rank // self.layout.tensor % self.layout.data


def _group_of_ends(layout: Layout, rank: int) -> Any:
    """The group that keeps the embedding of the first stage and the head of the last one equal."""
    if layout.pipeline == 1:
        return None
    from torch import distributed

    own = None
    plane = layout.data * layout.tensor
    for place in range(plane):
        pair = [place, (layout.pipeline - 1) * plane + place]
        group = distributed.new_group(pair)
        own = group if rank in pair else own
    return own
