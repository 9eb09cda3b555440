"""Which cluster a plan is for, and what its figures rest on: rows that were measured, ceilings, or a datasheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.analysis.plan import LIBAI, Cluster
from paceline.core.device import is_accelerator
from paceline.core.environment import Gpu
from paceline.core.errors import InputError
from paceline.core.layout import LayoutPrecision
from paceline.core.profile import Ceiling, Profile
from paceline.core.quantity import show_scaled
from paceline.devices import datasheet
from paceline.devices.base import Datasheet
from paceline.machine import describe
from paceline.machine.profile import identity_of, load_profile

# What compiled layers of BERT and GPT-2 reach on an H200, as a part of the datasheet's rate and of the fastest matrix
# product (782 TFLOP/s), and what a layer costs in addition, however small the batch: fitted to
# analysis/tables/plan_h200.csv.
OF_DATASHEET = 0.57
OF_MATRIX_PRODUCT = 0.72
LAYER_OVERHEAD = 290e-6
OF_MEMORY_BANDWIDTH = 0.9
OF_LINKS = 0.75  # an all-reduce's part of what the links of a GPU carry
OVERLAP = 0.8  # of the gradients' reduction with the backward pass
PCIE = 20e9  # an all-reduce between GPUs without links of their own
SMALL_ALL_REDUCE = 20e-6
SMALL_BETWEEN_NODES = 40e-6
NETWORK_PER_GPU = 50e9  # a port of 400 Gbit/s for each GPU
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class ClusterRequest:
    """What the user says of the GPUs."""

    gpus: int  # all nodes together
    device: str | None
    memory: int | None
    gpus_per_node: int | None
    network: float | None  # bytes per second of one node
    precision: LayoutPrecision | None


@dataclass(frozen=True)
class ClusterEstimate:
    """The cluster to plan for, and what its figures rest on."""

    cluster: Cluster
    device: str
    chosen: str  # why this device
    precision: LayoutPrecision
    basis: tuple[str, ...]
    is_published: bool = False  # whether it is the one of the published figures, trained as they were
    from_datasheet: bool = False  # whether nothing that was measured is behind the rate


def find_cluster(request: ClusterRequest) -> ClusterEstimate:
    """The best figures of the GPUs: measured, otherwise those of the datasheet, otherwise published ones of others."""
    if request.device is not None:
        return estimate(request, request.device)
    environment = describe()
    gpus = [gpu for gpu in environment.usable_gpus if gpu.name]
    if not gpus:
        return _published(request)
    return estimate(request, gpus[0].name or "", gpus, load_profile(identity_of(environment)))


@dataclass(frozen=True)
class _DeviceFigures:
    """What one GPU computes and moves."""

    precision: LayoutPrecision
    rate: float
    peak: float
    memory_bandwidth: float
    basis: str
    profile: Profile | None = None  # that the figures are from; otherwise from the datasheet


def estimate(
    request: ClusterRequest, name: str, gpus: Sequence[Gpu] = (), profile: Profile | None = None
) -> ClusterEstimate:
    """A cluster of GPUs of this name, by what was measured of those here, if there are some, or by the datasheet."""
    sheet = datasheet(name)
    figures = _measured(request, name, profile, sheet) or _of_datasheet(request, name, sheet)
    bandwidth, latency, of_links = _links(request, figures.profile, sheet)
    memory = request.memory or (gpus[0].memory_total if gpus else None)
    if not memory:
        message = "how much memory the GPU has is not in its datasheet: add --memory, such as 80GiB"
        raise InputError("missing-memory", message, key="--memory")
    per_node = request.gpus_per_node or (len(gpus) if len(gpus) > 1 else GPUS_PER_NODE)
    network, of_network = _network(request, per_node)
    cluster = Cluster(
        gpus_per_node=per_node,
        memory=float(memory),
        rate=figures.rate,
        peak=figures.peak,
        memory_bandwidth=figures.memory_bandwidth,
        intra_bandwidth=bandwidth,
        intra_latency=latency,
        inter_bandwidth=network,
        inter_latency=SMALL_BETWEEN_NODES,
        layer_overhead=LAYER_OVERHEAD,
        overlap=OVERLAP,
    )
    return ClusterEstimate(
        cluster,
        name,
        "as --device names it" if request.device is not None else "which this machine has",
        figures.precision,
        (figures.basis, *of_links, *of_network),
        from_datasheet=figures.profile is None,
    )


def _measured(
    request: ClusterRequest, name: str, profile: Profile | None, sheet: Datasheet | None
) -> _DeviceFigures | None:
    """By the ceilings of the profile; None where it has no matrix product in this precision."""
    precision: LayoutPrecision = request.precision or "bf16"
    product = profile.ceiling("compute", precision, device_name=name) if profile is not None else None
    if profile is None or product is None:
        return None
    streamed = profile.ceiling("memory", "device memory", device_name=name)
    if streamed is not None:
        bandwidth = streamed.value
    elif sheet is not None:
        bandwidth = OF_MEMORY_BANDWIDTH * sheet.memory_bandwidth
    else:
        message = f"the memory of {name} was not measured: measure again (paceline machine --measure)"
        raise InputError("memory-not-measured", message, value=name)
    return _DeviceFigures(
        precision,
        rate=product.value * OF_MATRIX_PRODUCT,
        peak=product.datasheet or product.value,
        memory_bandwidth=bandwidth,
        basis=f"measured ceilings of {name} on {profile.measured_at:%Y-%m-%d}, run {profile.run_id}: matrix product in "
        f"{precision} {show_scaled(product.value, 'FLOP/s')}, of which layers are assumed to reach "
        f"{100 * OF_MATRIX_PRODUCT:.0f} %, as on one H200",
        profile=profile,
    )


def _of_datasheet(request: ClusterRequest, name: str, sheet: Datasheet | None) -> _DeviceFigures:
    if sheet is None:
        precision = request.precision or "bf16"
        message = (
            f"there are no figures of {name} in {precision}: measure it first (paceline machine --measure), or plan "
            "for another with --device"
        )
        if request.device is not None:
            message = (
                f"there is no datasheet of '{name}': write the name as the driver gives it, such as H200, "
                "'H100 80GB HBM3', A100-SXM4-80GB, L40S or V100-SXM2"
            )
        raise InputError("unknown-device", message, key="--device", value=name)
    precision = request.precision or ("bf16" if sheet.rate("bf16") else "fp16")
    peak = sheet.rate(precision)
    if peak is None:
        message = f"{name} does not compute in {precision}: choose another --precision"
        raise InputError("precision-not-supported", message, key="--precision", value=precision)
    return _DeviceFigures(
        precision,
        rate=peak * OF_DATASHEET,
        peak=peak,
        memory_bandwidth=OF_MEMORY_BANDWIDTH * sheet.memory_bandwidth,
        basis=f"the datasheet of {name}: {show_scaled(peak, 'FLOP/s')} in {precision}, of which layers are assumed to "
        f"reach {100 * OF_DATASHEET:.0f} %, as on one H200",
    )


def _links(
    request: ClusterRequest, profile: Profile | None, sheet: Datasheet | None
) -> tuple[float, float, tuple[str, ...]]:
    """Bandwidth and latency of an all-reduce between the GPUs of a node, and what of it is assumed."""
    sums: list[Ceiling] = []
    if profile is not None:
        sums = [one for one in profile.ceilings if one.name.startswith("all-reduce, ") and is_accelerator(one.device)]
    latency = next((one.value for one in sums if one.kind == "latency"), SMALL_ALL_REDUCE)
    measured = next((one.value for one in sums if one.kind == "link"), None)
    if measured is not None:
        return measured, latency, ()
    bandwidth, how = PCIE, "over PCIe"
    if sheet is not None and sheet.link_bandwidth:
        bandwidth, how = OF_LINKS * sheet.link_bandwidth, f"{100 * OF_LINKS:.0f} % of NVLink"
    if request.gpus == 1:
        return bandwidth, latency, ()
    reached = show_scaled(bandwidth, "B/s")
    return bandwidth, latency, (f"an all-reduce between the GPUs of a node assumed to reach {reached}, {how}",)


def _network(request: ClusterRequest, per_node: int) -> tuple[float, tuple[str, ...]]:
    """What a node sends to others, and where that is from if it matters."""
    network = request.network or NETWORK_PER_GPU * per_node
    text = f"a network of {show_scaled(network, 'B/s')} for each node"
    if request.network is not None:
        return network, (f"{text}, as given",)
    return network, (f"{text} assumed; give yours with --network",) if request.gpus > per_node else ()


def _published(request: ClusterRequest) -> ClusterEstimate:
    if request.precision not in (None, "fp16"):
        message = (
            f"there is no GPU here, and the published figures that stand in for one are in fp16: name the GPU to plan "
            f"for in {request.precision}, such as --device H200 --memory 141GB"
        )
        raise InputError("precision-not-published", message, key="--precision", value=request.precision)
    basis = (
        "the throughputs that LiBai published of nodes with eight V100, to which the formulas were fitted; plan for "
        "your GPUs with --device NAME --memory SIZE"
    )
    chosen = "assumed, as this machine has no GPU and --device names none"
    return ClusterEstimate(as_given(LIBAI, request), "V100", chosen, "fp16", (basis,), is_published=True)


def as_given(cluster: Cluster, request: ClusterRequest) -> Cluster:
    """The cluster with what the user says of it."""
    return replace(
        cluster,
        gpus_per_node=request.gpus_per_node or cluster.gpus_per_node,
        memory=request.memory or cluster.memory,
        inter_bandwidth=request.network or cluster.inter_bandwidth,
    )
