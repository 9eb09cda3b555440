"""The rows that a data-parallel rank trains on."""

from __future__ import annotations

import torch

from paceline.benchmarks.model.session import DISTINCT_ROWS
from paceline.benchmarks.parallel._mesh import Mesh
from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.models.base import Batch, Workload


def draw(parameters: ParallelParameters, workload: Workload, mesh: Mesh) -> Batch:
    """This data-parallel rank's rows of the one endless batch that the seed defines."""
    layout = parameters.layout
    size = layout.micro_batch * layout.micro_batches
    first = mesh.data_rank * size
    distinct = min(layout.global_batch, DISTINCT_ROWS)
    drawn = workload.make_batch(distinct, torch.Generator().manual_seed(parameters.seed))
    index = torch.arange(first, first + size) % distinct
    return Batch(tuple(one[index] for one in drawn.inputs), tuple(one[index] for one in drawn.targets))
