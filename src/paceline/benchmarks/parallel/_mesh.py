"""The ranks as a mesh: pipeline outermost, tensor innermost, so that ranks that communicate most are neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.core.layout import Layout


@dataclass(frozen=True)
class Mesh:
    """This rank's position in the mesh, and the groups it belongs to; one rank alone has no groups."""

    layout: Layout
    rank: int = 0
    device_mesh: Any = None
    ends: Any = None  # the group of the first and the last pipeline rank, on these two alone

    @classmethod
    def of(cls, layout: Layout, rank: int, device_type: str) -> Mesh:
        """Every rank must call this at the same time."""
        if layout.world_size == 1:
            return cls(layout)
        from torch import distributed
        from torch.distributed.device_mesh import init_device_mesh

        shape = (layout.pipeline, layout.data, layout.tensor)
        device_mesh = init_device_mesh(device_type, shape, mesh_dim_names=("pipeline", "data", "tensor"))
        ends = None  # keeps the embedding of the first stage and the head of the last one equal
        plane = layout.data * layout.tensor
        for first in range(plane if layout.pipeline > 1 else 0):
            pair = [first, (layout.pipeline - 1) * plane + first]
            group = distributed.new_group(pair)
            ends = group if rank in pair else ends
        return cls(layout, rank, device_mesh, ends)

    def along(self, axis: str) -> Any:
        """The mesh of the ranks that differ from this one along one axis only."""
        return self.device_mesh[axis]

    @property
    def pipeline_rank(self) -> int:
        return self.rank // (self.layout.data * self.layout.tensor)

    @property
    def data_rank(self) -> int:
        return self.rank // self.layout.tensor % self.layout.data
