"""What the verb `plan` knows of the GPUs it plans for: this machine's profile, a datasheet, or published figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.analysis.plan.cluster import Cluster
from paceline.analysis.plan.published import LIBAI
from paceline.core.device import is_accelerator
from paceline.core.errors import InputError
from paceline.core.layout import LayoutPrecision
from paceline.core.quantity import show_scaled
from paceline.devices import datasheet
from paceline.devices.datasheet import Datasheet
from paceline.machine import describe
from paceline.machine.profile import identity_of, load_profile

if TYPE_CHECKING:
    from paceline.core.environment import Gpu
    from paceline.core.profile import Profile

# What compiled layers of BERT and GPT-2 with a large micro-batch were measured to reach on an H200, as a part of the
# datasheet's rate and of the fastest matrix product, and what a layer costs beside, however small the batch.
OF_DATASHEET = 0.53
OF_MATRIX_PRODUCT = 0.67
LAYER_OVERHEAD = 250e-6
OF_MEMORY_BANDWIDTH = 0.9
OF_LINKS = 0.75  # an all-reduce's part of what the links of a GPU carry
OVERLAP = 0.8  # of the gradients' reduction with the backward pass
PCIE = 20e9  # an all-reduce between GPUs without links of their own
SMALL_ALL_REDUCE = 20e-6
SMALL_BETWEEN_NODES = 40e-6
NETWORK_PER_GPU = 50e9  # a port of 400 Gbit/s for each GPU
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Wanted:
    """What the user says of the GPUs."""

    gpus: int  # all nodes together
    device: str | None
    memory: int | None
    gpus_per_node: int | None
    network: float | None  # bytes per second of one node
    precision: LayoutPrecision | None


@dataclass(frozen=True)
class Known:
    """The cluster to plan for, and what its figures rest on."""

    cluster: Cluster
    device: str
    precision: LayoutPrecision
    basis: tuple[str, ...]
    is_published: bool = False  # whether it is the one of the published figures, trained as they were


def find_cluster(wanted: Wanted) -> Known:
    """The best that is known of the GPUs: measured, else promised, else published of others."""
    if wanted.device is not None:
        return _of_datasheet(wanted, wanted.device, _known_sheet(wanted.device), gpu=None, here=0)
    environment = describe()
    gpus = [gpu for gpu in environment.usable_gpus if gpu.name]
    if not gpus:
        return _published(wanted)
    profile = load_profile(identity_of(environment))
    precision: LayoutPrecision = wanted.precision or "bf16"
    name = gpus[0].name or ""
    if profile is not None and profile.ceiling("compute", precision, device_name=name):
        return _of_profile(replace(wanted, precision=precision), profile, gpus)
    sheet = datasheet(name)
    if sheet is None:
        raise InputError(
            "unknown-device",
            f"nothing is known of {name} in {precision}: measure it first (paceline machine --measure), or plan for "
            "another with --device",
            key="--device",
            value=name,
        )
    return _of_datasheet(wanted, name, sheet, gpu=gpus[0], here=len(gpus))


def _of_profile(wanted: Wanted, profile: Profile, gpus: list[Gpu]) -> Known:
    name, precision = gpus[0].name or "", wanted.precision or "bf16"
    product = profile.ceiling("compute", precision, device_name=name)
    assert product is not None
    sheet = datasheet(name)
    memory = profile.ceiling("memory", "device memory", device_name=name)
    basis = [
        f"measured ceilings of {name} on {profile.measured_at:%Y-%m-%d}, run {profile.run_id}: matrix product in "
        f"{precision} {show_scaled(product.value, 'FLOP/s')}, of which layers are assumed to reach "
        f"{_percent(OF_MATRIX_PRODUCT)}"
    ]
    if memory is not None:
        bandwidth = memory.value
    elif sheet is not None:
        bandwidth = OF_MEMORY_BANDWIDTH * sheet.memory_bandwidth
    else:
        message = f"the memory of {name} was not measured: measure again (paceline machine --measure)"
        raise InputError("memory-not-measured", message, value=name)
    sums = [one for one in profile.ceilings if one.name.startswith("all-reduce, ") and is_accelerator(one.device)]
    link = next((one.value for one in sums if one.kind == "link"), None)
    if link is None:
        link, how_linked = _assumed_links(wanted, sheet)
        basis += how_linked
    per_node = wanted.gpus_per_node or (len(gpus) if len(gpus) > 1 else GPUS_PER_NODE)
    network, how = _network(wanted, per_node)
    cluster = Cluster(
        gpus_per_node=per_node,
        memory=_memory(wanted, gpus[0]),
        rate=product.value * OF_MATRIX_PRODUCT,
        peak=product.datasheet or product.value,
        memory_bandwidth=bandwidth,
        intra_bandwidth=link,
        intra_latency=next((one.value for one in sums if one.kind == "latency"), SMALL_ALL_REDUCE),
        inter_bandwidth=network,
        inter_latency=SMALL_BETWEEN_NODES,
        layer_overhead=LAYER_OVERHEAD,
        overlap=OVERLAP,
    )
    return Known(cluster, name, precision, (*basis, *how))


def _of_datasheet(wanted: Wanted, name: str, sheet: Datasheet, *, gpu: Gpu | None, here: int) -> Known:
    precision: LayoutPrecision = wanted.precision or ("bf16" if sheet.rate("bf16") else "fp16")
    rate = sheet.rate(precision)
    if rate is None:
        message = f"{name} does not compute in {precision}: choose another --precision"
        raise InputError("precision-not-supported", message, key="--precision", value=precision)
    link, how_linked = _assumed_links(wanted, sheet)
    per_node = wanted.gpus_per_node or (here if here > 1 else GPUS_PER_NODE)
    network, how = _network(wanted, per_node)
    cluster = Cluster(
        gpus_per_node=per_node,
        memory=_memory(wanted, gpu),
        rate=rate * OF_DATASHEET,
        peak=rate,
        memory_bandwidth=OF_MEMORY_BANDWIDTH * sheet.memory_bandwidth,
        intra_bandwidth=link,
        intra_latency=SMALL_ALL_REDUCE,
        inter_bandwidth=network,
        inter_latency=SMALL_BETWEEN_NODES,
        layer_overhead=LAYER_OVERHEAD,
        overlap=OVERLAP,
    )
    reached = f"the datasheet of {name}: {show_scaled(rate, 'FLOP/s')} in {precision}, of which layers are assumed to "
    return Known(cluster, name, precision, (f"{reached}reach {_percent(OF_DATASHEET)}", *how_linked, *how))


def _published(wanted: Wanted) -> Known:
    if wanted.precision not in (None, "fp16"):
        raise InputError(
            "precision-not-published",
            f"there is no GPU here, and the published figures that stand in for one are in fp16: name the GPU to plan "
            f"for in {wanted.precision}, such as --device H200 --memory 141GB",
            key="--precision",
            value=wanted.precision,
        )
    cluster = replace(
        LIBAI,
        gpus_per_node=wanted.gpus_per_node or LIBAI.gpus_per_node,
        memory=wanted.memory or LIBAI.memory,
        inter_bandwidth=wanted.network or LIBAI.inter_bandwidth,
    )
    basis = (
        "the throughputs that LiBai published of nodes with eight V100, to which the formulas were fitted: no GPU is "
        "here and none is named; plan for yours with --device NAME --memory SIZE",
    )
    return Known(cluster, "V100", "fp16", basis, is_published=True)


def _known_sheet(name: str) -> Datasheet:
    sheet = datasheet(name)
    if sheet is None:
        raise InputError(
            "unknown-device",
            f"there is no datasheet of '{name}': write the name as the driver gives it, such as H200, "
            "'H100 80GB HBM3', A100-SXM4-80GB, L40S or V100-SXM2",
            key="--device",
            value=name,
        )
    return sheet


def _memory(wanted: Wanted, gpu: Gpu | None) -> float:
    if wanted.memory is not None:
        return float(wanted.memory)
    if gpu is not None and gpu.memory_total:
        return float(gpu.memory_total)
    message = "how much memory the GPU has is not in its datasheet: add --memory, such as 80GiB"
    raise InputError("missing-memory", message, key="--memory")


def _assumed_links(wanted: Wanted, sheet: Datasheet | None) -> tuple[float, list[str]]:
    reached, how = PCIE, "over PCIe"
    if sheet is not None and sheet.link_bandwidth:
        reached, how = OF_LINKS * sheet.link_bandwidth, f"{_percent(OF_LINKS)} of NVLink"
    words = f"an all-reduce between the GPUs of a node assumed to reach {show_scaled(reached, 'B/s')}, {how}"
    return reached, [words] if wanted.gpus > 1 else []


def _network(wanted: Wanted, per_node: int) -> tuple[float, list[str]]:
    if wanted.network is not None:
        return wanted.network, [f"a network of {show_scaled(wanted.network, 'B/s')} for each node, as given"]
    assumed = NETWORK_PER_GPU * per_node
    words = f"a network of {show_scaled(assumed, 'B/s')} for each node assumed; give yours with --network"
    return assumed, [words] if wanted.gpus > per_node else []


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
