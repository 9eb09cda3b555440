"""The machines that a plan is for: rates, links, and how much of them a training reaches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs. Bandwidths are bytes per second in one direction, latencies seconds."""

    gpus_per_node: int
    memory: float  # bytes of one GPU
    rate: float  # FLOP/s that the layers of a model reach on one GPU when its batch is large
    peak: float | None  # FLOP/s that an MFU is a part of; None where it is not known
    memory_bandwidth: float
    intra_bandwidth: float  # bus bandwidth of an all-reduce among all GPUs of a node
    intra_latency: float  # of the smallest all-reduce in a node
    inter_bandwidth: float  # of one node to the others, shared by its GPUs
    inter_latency: float
    neighbours: int = 1  # GPUs of a node that each is linked to directly; 1 where a switch links all
    # What the training program makes of it:
    layer_overhead: float = 0.0  # seconds that a layer costs in every micro-batch, however small
    head_cost: float = 1.0  # time of a FLOP of the vocabulary's projection, relative to one of a layer
    attention_cost: float = 1.0  # the same for a FLOP of attention's scores
    overlap: float = 0.0  # part of the data-parallel reduction that may hide behind the last backward pass
    contention: float = 0.0  # N nodes have (2/N)^this of the bandwidth that two have
    skips_masked: bool = True  # whether causal attention computes only the half that is not masked
    reduced_bytes: int = 4  # of a gradient on the wire


@dataclass(frozen=True)
class RankPlacement:
    """Where the ranks of one axis of the mesh lie: every `stride`-th rank, `size` of them."""

    size: int
    stride: int
    per_node: int

    @property
    def crosses(self) -> bool:
        """Whether some group of this axis spans nodes."""
        span = self.size * self.stride
        return span > self.per_node or self.per_node % span != 0

    @property
    def members(self) -> int:
        """How many ranks of a group are on one node."""
        return max(1, min(self.size, self.per_node // self.stride))

    @property
    def nodes(self) -> int:
        """How many nodes a group spans."""
        return -(-self.size // self.members)


def all_reduce_time(cluster: Cluster, volume: float, where: RankPlacement) -> float:
    """Seconds to sum `volume` bytes over a group while all other groups of the axis do the same.

    A ring sends 2 (n-1)/n of the volume over each of its links. Between nodes the groups of a node share its network.
    """
    if where.size == 1:
        return 0.0
    sent = 2 * (where.size - 1) / where.size * volume
    inside = 0.0
    if where.members > 1:
        # Without a switch, a small group has only the links between its own members.
        linked = min(where.members - 1, cluster.neighbours) / cluster.neighbours
        inside = sent / (cluster.intra_bandwidth * linked)
    if not where.crosses:
        return inside + cluster.intra_latency
    groups = where.per_node / where.members
    lost = float((max(2, where.nodes) / 2) ** cluster.contention)
    return max(inside, sent * groups * lost / cluster.inter_bandwidth) + cluster.inter_latency


def send_time(cluster: Cluster, volume: float, where: RankPlacement) -> float:
    """Seconds to hand `volume` bytes to the next rank of the axis, by its slowest link.

    Where neighbours are on different nodes, all ranks of a node that have such a neighbour send at once.
    """
    if where.size == 1:
        return 0.0
    if not where.crosses:
        return volume / cluster.intra_bandwidth + cluster.intra_latency
    senders = min(where.stride, where.per_node)
    return volume * senders / cluster.inter_bandwidth + cluster.inter_latency
