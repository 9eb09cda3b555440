"""Which cluster a plan is for, and what its figures rest on: rows that were measured, ceilings, or a datasheet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import geometric_mean, median

from paceline.analysis.compare.verdicts import Side
from paceline.analysis.plan import LIBAI, Cluster
from paceline.analysis.plan_calibration import (
    V100_NODES,
    Calibration,
    Observation,
    calibration,
    h200_observations,
    miss,
    published_observations,
)
from paceline.core.device import is_accelerator
from paceline.core.environment import Gpu
from paceline.core.errors import InputError
from paceline.core.layout import Layout, LayoutPrecision, ModelFamily
from paceline.core.profile import Ceiling, Profile
from paceline.core.quantity import show_duration, show_scaled
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.transformer import PLANNED, Transformer, as_published, transformer
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


REFERENCE = "H200"  # whose rows the assumptions about any GPU are fitted to
NOT_IN_FORMULAS = "sharded parameters, sequence parallelism, fp8 or schedule other than 1F1B"


@dataclass(frozen=True)
class DeviceError:
    """How far off a plan from the datasheet was on a device of which nothing was known but that."""

    device: str
    program: str
    layouts: int
    typical: float  # the median, as a part of what was measured


@cache
def errors_elsewhere() -> tuple[DeviceError, ...]:
    """For each device with known rows: those predicted from its datasheet and from the rows of the other devices."""
    rows = (
        ("V100-SXM2", "LiBai", published_observations("libai")),
        ("V100-SXM2", "Megatron-LM", published_observations("megatron")),
        (REFERENCE, "Paceline", h200_observations()),
    )
    errors = []
    for device, program, measured in rows:
        cluster = _by_datasheet(device, measured[0].layout.precision)
        (other,) = {name for name, *_ in rows} - {device}
        part, overhead = assumptions(other, [one for name, _, same in rows if name == other for one in same])
        cluster = replace(cluster, rate=part * (cluster.peak or 0.0), layer_overhead=overhead)
        typical = median(abs(miss(one, cluster)) for one in measured)
        errors.append(DeviceError(device, program, len(measured), typical))
    return tuple(errors)


def assumptions(device: str, rows: Sequence[Observation]) -> tuple[float, float]:
    """The part of the datasheet's rate that layers reach on one GPU, and what a layer costs in addition."""
    fit = _fit_to_one_gpu(device, rows).cluster
    return fit.rate / (fit.peak or 0.0), fit.layer_overhead


def _fit_to_one_gpu(device: str, rows: Sequence[Observation]) -> Calibration:
    alone = [one for one in rows if one.layout.world_size == 1]
    start = _by_datasheet(device, alone[0].layout.precision)
    neutral = replace(start, rate=(start.peak or 0.0) / 2, layer_overhead=1e-4)  # not what earlier fits have said
    return calibration(alone, neutral, only=("rate", "layer_overhead"))


def _by_datasheet(device: str, precision: LayoutPrecision) -> Cluster:
    """With the usual nodes; how much memory there is does not change the time."""
    return estimate(ClusterRequest(32, device, 1, None, None, precision), device).cluster


def experience(device: str) -> str:
    """How far off a plan from this datasheet is, where that was measured, or on other devices."""
    if REFERENCE in device:
        fit = _fit_to_one_gpu(REFERENCE, h200_observations())
        rows = f"{len(fit.misses)} layouts on one {REFERENCE}"
        return f"that part was fitted to {rows}; {_out_of_sample(fit)}; several GPUs were not measured"
    errors = errors_elsewhere()
    low, high = min(one.typical for one in errors), max(one.typical for one in errors)
    each = ", ".join(f"{one.device} with {one.program} {100 * one.typical:.0f} %" for one in errors)
    return (
        f"no layout was measured on {device}: where one device was predicted in this way from the rows of another, the "
        f"median layout was {100 * low:.0f} to {100 * high:.0f} % off ({each}); measure some, and plan with --calibrate"
    )


@dataclass(frozen=True)
class MeasuredRow:
    """A throughput of a layout on a device; None where a published table does not name it."""

    device: str | None
    observation: Observation
    run: RunRecords

    @property
    def precision(self) -> LayoutPrecision:
        return self.observation.layout.precision


def calibrated(request: ClusterRequest, sides: Sequence[Side]) -> tuple[ClusterEstimate, Calibration]:
    """The cluster that the results were measured on, fitted to them."""
    rows = _one_kind(request, [row for side in sides for run in side.runs for row in rows_of(run)], sides)
    observations = _merged(rows)
    before = _start(request, rows[0])
    fit = calibration(observations, before.cluster)
    names = ", ".join(side.name for side in sides)
    basis: tuple[str, ...] = (
        f"{_layouts(len(observations))} measured on {before.device} in {before.precision} ({names}), to which "
        f"{_fitted(fit)} were fitted",
        _out_of_sample(fit),
    )
    without = [record for side in sides for record in side.records if _is_layout(record) and not _of_parallel(record)]
    if without:
        basis += (f"results left out, as the formulas know no {NOT_IN_FORMULAS}: {len(without)}",)
    assumed = before.basis[1:]  # the first is of the rate, which was fitted
    if "intra_bandwidth" in fit.fitted:
        assumed = tuple(line for line in assumed if "all-reduce" not in line)
    if "inter_bandwidth" in fit.fitted:
        assumed = tuple(line for line in assumed if "network" not in line)
    result = replace(before, cluster=fit.cluster, basis=(*basis, *assumed), chosen="which the results are of")
    return replace(result, from_datasheet=False), fit


def rows_of(run: RunRecords) -> Iterator[MeasuredRow]:
    """Throughputs of the benchmarks that train whole models, where a plan's formulas know the way."""
    is_published = not run.run.environment.is_known
    for record in run.records:
        rate = record.measurement("throughput") if record.outcome is Outcome.OK else None
        trained = _of_parallel(record) or _of_train(record)
        if rate is None or trained is None:
            continue
        model, layout = trained
        model = as_published(model) if is_published else model
        yield MeasuredRow(record.subject.device, Observation(model, layout, rate.value), run)


def _of_parallel(record: Record) -> tuple[Transformer, Layout] | None:
    """Model and layout of a case of `parallel`; None for one whose schedule or sharding has no formula."""
    from paceline.benchmarks.parallel._parameters import ParallelParameters

    if not _is_layout(record):
        return None
    parameters = ParallelParameters.read(record.case.parameters)
    has_formula = parameters.schedule_name in ("", "1f1b") and parameters.shard == "replicate"
    has_formula = has_formula and parameters.layout.model in PLANNED
    if not has_formula or parameters.sequence_parallel or parameters.layout.precision == "fp8":
        return None
    return parameters.transformer, parameters.layout


def _is_layout(record: Record) -> bool:
    return record.case.benchmark == "parallel" and record.outcome is Outcome.OK


def _of_train(record: Record) -> tuple[Transformer, Layout] | None:
    """The same of a case of `train` with a whole GPT-2 or BERT: its ranks are data parallel."""
    from paceline.models import MODELS

    subject, ranks = record.subject, record.case.ranks
    precision = subject.precision
    if record.case.benchmark != "train" or subject.scale != "full" or not subject.batch or subject.model is None:
        return None
    spec = MODELS.registry().entries.get(subject.model)
    if spec is None or precision not in ("fp32", "fp16", "bf16"):
        return None
    family: ModelFamily | None = next((name for name in PLANNED if name == spec.family), None)
    if family is None:
        return None
    sizes = [spec.settings[name] for name in ("layers", "hidden", "heads", "sequence", "vocabulary")]
    layout = Layout(
        model=family,
        layers=sizes[0],
        precision=precision,
        data=ranks,
        tensor=1,
        pipeline=1,
        micro_batch=subject.batch // ranks,
        global_batch=subject.batch,
        nodes=1,
        gpus=ranks,
    )
    return transformer(family, *sizes), layout


def _one_kind(request: ClusterRequest, rows: Sequence[MeasuredRow], sides: Sequence[Side]) -> list[MeasuredRow]:
    """Those of one device in one precision; where there are several, the request has to choose."""
    names = ", ".join(side.name for side in sides)
    chosen = [row for row in rows if request.device is None or request.device in (row.device or "V100")]
    chosen = [row for row in chosen if request.precision in (None, row.precision)]
    if not chosen:
        wanted = " ".join(["", *(f"of {word}" for word in (request.device, request.precision) if word)])
        message = (
            f"there is no measured throughput{wanted} of a GPT-2 or BERT in {names}: measure some layouts with "
            "'paceline run parallel --case LAYOUT' or 'paceline plan ... --verify'"
        )
        raise InputError("nothing-to-calibrate", message, key="--calibrate", value=names)
    for flag, kinds in (
        ("--device", sorted({row.device or "V100" for row in chosen})),
        ("--precision", sorted({row.precision for row in chosen})),
    ):
        if len(kinds) > 1:
            message = f"{names} has rows of {' and '.join(kinds)}: choose one with {flag}"
            raise InputError("several-kinds", message, key=flag, value=names)
    return chosen


def _merged(rows: Sequence[MeasuredRow]) -> list[Observation]:
    """Each layout once, so that leaving one out leaves all of its repeats out."""
    rates: dict[tuple[Transformer, Layout], list[float]] = {}
    for row in rows:
        one = row.observation
        rates.setdefault((one.model, one.layout), []).append(one.samples_per_s)
    return [Observation(model, layout, geometric_mean(same)) for (model, layout), same in rates.items()]


def _start(request: ClusterRequest, row: MeasuredRow) -> ClusterEstimate:
    """The cluster before the fit: by the ceilings of the machine that measured, or by the datasheet."""
    request = replace(request, precision=row.precision)
    if row.device is None:
        return ClusterEstimate(as_given(V100_NODES, request), "V100", "", row.precision, ("",), is_published=True)
    environment = row.run.run.environment
    gpus = [gpu for gpu in environment.usable_gpus if gpu.name == row.device]
    return estimate(request, row.device, gpus, load_profile(identity_of(environment)))


def _fitted(fit: Calibration) -> str:
    cluster = fit.cluster
    texts = {
        "rate": f"the rate of layers ({show_scaled(cluster.rate, 'FLOP/s')})",
        "layer_overhead": f"the fixed time of a layer ({show_duration(cluster.layer_overhead)})",
        "head_cost": f"the cost of the head ({cluster.head_cost:.2g})",
        "attention_cost": f"of attention ({cluster.attention_cost:.2g})",
        "intra_bandwidth": f"the links in a node ({show_scaled(cluster.intra_bandwidth, 'B/s')})",
        "intra_latency": f"their latency ({show_duration(cluster.intra_latency)})",
        "inter_bandwidth": f"those between nodes ({show_scaled(cluster.inter_bandwidth, 'B/s')})",
        "overlap": f"overlap ({cluster.overlap:.2g})",
        "contention": f"contention ({cluster.contention:.2g})",
    }
    return ", ".join(text for name, text in texts.items() if name in fit.fitted)


def _out_of_sample(fit: Calibration) -> str:
    if fit.typical_miss is None or fit.worst is None:
        return "one layout: how far off the plan is for others cannot be said; measure more"
    worst, where = fit.worst
    return (
        "out of sample, each layout predicted by a fit to the others, the median is "
        f"{_percent(fit.typical_miss)} off, the worst {_percent(abs(worst))} too {'fast' if worst > 0 else 'slow'} "
        f"({where.layout})"
    )


def _layouts(count: int) -> str:
    return f"{count} layouts" if count > 1 else "1 layout"


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %" if part < 0.1 else f"{100 * part:.0f} %"
