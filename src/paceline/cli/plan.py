"""Say which data x tensor x pipeline layout to train a model in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import click

from paceline.analysis.plan.search import Candidate, LayoutPlan, plan, reasons
from paceline.analysis.plan.timing import LIBAI, Cluster
from paceline.core.device import is_accelerator
from paceline.core.errors import InputError, unknown
from paceline.core.layout import LayoutPrecision, ModelFamily
from paceline.core.quantity import parse_size, show_count, show_scaled, show_size
from paceline.core.subject import FloatPrecision
from paceline.core.transformer import as_published, transformer
from paceline.devices import datasheet, device_count
from paceline.machine import describe
from paceline.machine.profile import identity_of, load_profile
from paceline.report.render import terminal

if TYPE_CHECKING:
    from paceline.core.environment import Gpu
    from paceline.core.profile import Ceiling, Profile
    from paceline.core.run import RunRecords
    from paceline.report.document import Document


# What compiled layers of BERT and GPT-2 with a large micro-batch were measured to reach on an H200, as a part of the
# datasheet's rate and of the fastest matrix product, and what a layer costs in addition, however small the batch.
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

FAMILIES: dict[str, ModelFamily] = {name: name for name in get_args(ModelFamily)}
BATCH_PER_GPU = 32
HEAD_SIZE = 64
MOST = 1_000_000  # of anything that a layout counts
_COUNT = click.IntRange(1, MOST)


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
    precision: LayoutPrecision
    basis: tuple[str, ...]
    is_published: bool = False  # whether it is the one of the published figures, trained as they were


def find_cluster(request: ClusterRequest) -> ClusterEstimate:
    """The best figures of the GPUs: measured, otherwise those of the datasheet, otherwise published ones of others."""
    if request.device is not None:
        return estimate(request, request.device)
    environment = describe()
    gpus = [gpu for gpu in environment.usable_gpus if gpu.name]
    if not gpus:
        return _published(request)
    return estimate(request, gpus[0].name or "", gpus, load_profile(identity_of(environment)))


def estimate(
    request: ClusterRequest, name: str, gpus: Sequence[Gpu] = (), profile: Profile | None = None
) -> ClusterEstimate:
    """A cluster of GPUs of this name, by what was measured of those here, if there are some, or by the datasheet."""
    sheet = datasheet(name)
    precision: LayoutPrecision = request.precision or "bf16"
    product = profile.ceiling("compute", precision, device_name=name) if profile is not None else None
    streamed: Ceiling | None = None
    sums: list[Ceiling] = []
    if profile is not None and product is not None:
        rate, peak = product.value * OF_MATRIX_PRODUCT, product.datasheet or product.value
        streamed = profile.ceiling("memory", "device memory", device_name=name)
        sums = [one for one in profile.ceilings if one.name.startswith("all-reduce, ") and is_accelerator(one.device)]
        basis = [
            f"measured ceilings of {name} on {profile.measured_at:%Y-%m-%d}, run {profile.run_id}: matrix product in "
            f"{precision} {show_scaled(product.value, 'FLOP/s')}, of which layers are assumed to reach "
            f"{100 * OF_MATRIX_PRODUCT:.0f} %"
        ]
    elif sheet is not None:
        precision = request.precision or ("bf16" if sheet.rate("bf16") else "fp16")
        of_sheet = sheet.rate(precision)
        if of_sheet is None:
            message = f"{name} does not compute in {precision}: choose another --precision"
            raise InputError("precision-not-supported", message, key="--precision", value=precision)
        rate, peak = of_sheet * OF_DATASHEET, of_sheet
        basis = [
            f"the datasheet of {name}: {show_scaled(peak, 'FLOP/s')} in {precision}, of which layers are assumed to "
            f"reach {100 * OF_DATASHEET:.0f} %"
        ]
    else:
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
    if streamed is not None:
        bandwidth = streamed.value
    elif sheet is not None:
        bandwidth = OF_MEMORY_BANDWIDTH * sheet.memory_bandwidth
    else:
        message = f"the memory of {name} was not measured: measure again (paceline machine --measure)"
        raise InputError("memory-not-measured", message, value=name)
    link = next((one.value for one in sums if one.kind == "link"), None)
    if link is None:
        link, how = PCIE, "over PCIe"
        if sheet is not None and sheet.link_bandwidth:
            link, how = OF_LINKS * sheet.link_bandwidth, f"{100 * OF_LINKS:.0f} % of NVLink"
        if request.gpus > 1:
            reached = show_scaled(link, "B/s")
            basis.append(f"an all-reduce between the GPUs of a node assumed to reach {reached}, {how}")
    memory = request.memory or (gpus[0].memory_total if gpus else None)
    if not memory:
        message = "how much memory the GPU has is not in its datasheet: add --memory, such as 80GiB"
        raise InputError("missing-memory", message, key="--memory")
    per_node = request.gpus_per_node or (len(gpus) if len(gpus) > 1 else GPUS_PER_NODE)
    network = request.network or NETWORK_PER_GPU * per_node
    of_network = f"a network of {show_scaled(network, 'B/s')} for each node"
    if request.network is not None:
        basis.append(f"{of_network}, as given")
    elif request.gpus > per_node:
        basis.append(f"{of_network} assumed; give yours with --network")
    cluster = Cluster(
        gpus_per_node=per_node,
        memory=float(memory),
        rate=rate,
        peak=peak,
        memory_bandwidth=bandwidth,
        intra_bandwidth=link,
        intra_latency=next((one.value for one in sums if one.kind == "latency"), SMALL_ALL_REDUCE),
        inter_bandwidth=network,
        inter_latency=SMALL_BETWEEN_NODES,
        layer_overhead=LAYER_OVERHEAD,
        overlap=OVERLAP,
    )
    return ClusterEstimate(cluster, name, precision, tuple(basis))


def _published(request: ClusterRequest) -> ClusterEstimate:
    if request.precision not in (None, "fp16"):
        message = (
            f"there is no GPU here, and the published figures that stand in for one are in fp16: name the GPU to plan "
            f"for in {request.precision}, such as --device H200 --memory 141GB"
        )
        raise InputError("precision-not-published", message, key="--precision", value=request.precision)
    cluster = replace(
        LIBAI,
        gpus_per_node=request.gpus_per_node or LIBAI.gpus_per_node,
        memory=request.memory or LIBAI.memory,
        inter_bandwidth=request.network or LIBAI.inter_bandwidth,
    )
    basis = (
        "the throughputs that LiBai published of nodes with eight V100, to which the formulas were fitted: no GPU is "
        "here and none is named; plan for yours with --device NAME --memory SIZE"
    )
    return ClusterEstimate(cluster, "V100", "fp16", (basis,), is_published=True)


@click.command()
@click.argument("model")
@click.option("--layers", type=click.IntRange(1, 1000), default=24, show_default=True, help="Transformer layers.")
@click.option("--hidden", type=_COUNT, default=1024, show_default=True, help="Hidden size.")
@click.option("--heads", type=_COUNT, help="Attention heads; unset is one for every 64 of the hidden size.")
@click.option("--sequence", type=_COUNT, help="Tokens of a sample; unset is 1024 for gpt2 and 512 for bert.")
@click.option("--gpus", type=click.IntRange(1, 65_536), required=True, help="GPUs to train on, all nodes together.")
@click.option(
    "--gpus-per-node", type=_COUNT, help="GPUs of a node; unset is what this machine has if several, otherwise 8."
)
@click.option("--memory", metavar="SIZE", help="Memory of a GPU, such as 80GiB; unset is that of this machine's.")
@click.option("--network", metavar="RATE", help="What one node sends to others, such as 100GB/s.")
@click.option("--global-batch", type=_COUNT, help="Samples of a whole step; unset is 32 for each GPU.")
@click.option("--precision", type=click.Choice(get_args(FloatPrecision)), help="Unset is bf16 where the GPU has it.")
@click.option(
    "--device", metavar="NAME", help="Plan for this GPU by its datasheet, such as H200, not for this machine."
)
@click.option("--top", type=_COUNT, default=5, show_default=True, help="How many layouts to show.")
@click.option("--verify", is_flag=True, help="Measure the shown layouts here, and compare that with the prediction.")
@click.option("--store", metavar="PATH|URL", help="With --verify: where results go.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(
    model: str,
    layers: int,
    hidden: int,
    heads: int | None,
    sequence: int | None,
    gpus: int,
    global_batch: int | None,
    top: int,
    verify: bool,
    store: str | None,
    as_json: bool,
    device: str | None,
    memory: str | None,
    network: str | None,
    gpus_per_node: int | None,
    precision: LayoutPrecision | None,
) -> None:
    """Say which data x tensor x pipeline layout, micro-batch and checkpointing to train MODEL in: gpt2 or bert.

    Memory and time of every layout are predicted by formulas, and nothing is run. The layouts are words that
    'paceline run parallel --case' takes.
    """
    if store is not None and not verify:
        raise InputError("store-without-verify", "--store goes with --verify", key="--store", value=store)
    if model not in FAMILIES:
        raise unknown("model", model, FAMILIES, key="model")
    usual = max(1, hidden // HEAD_SIZE)
    if heads is None and hidden % usual:
        message = f"--hidden {hidden} is not a multiple of {usual} heads, one for every {HEAD_SIZE}: give --heads"
        raise InputError("missing-heads", message, key="--heads")
    heads = heads or usual
    if hidden % heads:
        message = f"--hidden {hidden} is not a multiple of --heads {heads}"
        raise InputError("not-a-multiple", message, key="--hidden", value=hidden)
    shape = transformer(FAMILIES[model], layers, hidden, heads, sequence)
    size = _size("--memory", memory)
    rate = _size("--network", network and network.strip().removesuffix("/s"))
    estimate = find_cluster(ClusterRequest(gpus, device, size, gpus_per_node, rate, precision))
    shape = as_published(shape) if estimate.is_published else shape
    batch = global_batch or BATCH_PER_GPU * gpus
    if batch > MOST:
        message = (
            f"{BATCH_PER_GPU} samples for each of {gpus} GPUs are a batch of {batch:,}, more than the {MOST:,} that a "
            "layout takes: give a smaller --global-batch"
        )
        raise InputError("batch-too-large", message, key="--global-batch", value=batch)
    layouts = plan(shape, estimate.cluster, gpus=gpus, global_batch=batch, precision=estimate.precision)
    shown = layouts.candidates[:top]
    if verify and device is not None:
        message = "--verify measures on this machine: leave out --device"
        raise InputError("verify-with-device", message, key="--device", value=device)
    if verify and gpus > (here := device_count()):
        message = f"--verify measures on this machine, which has {here} GPUs, but the plan is for {gpus}"
        raise InputError("too-few-gpus", message, key="--gpus", value=gpus)
    if as_json:
        document = _document(layouts, shown, estimate)
        click.echo(json.dumps({"event": "plan"} | document) if verify else json.dumps(document, indent=2))
    else:
        terminal.show(_page(layouts, shown, estimate))
    if not verify:
        return
    # Measure the layouts like any suite, and compare the result with the prediction.
    from paceline.cli import _running
    from paceline.core.suite import Suite

    size_of_model = {"hidden": layouts.model.hidden, "heads": layouts.model.heads, "sequence": layouts.model.sequence}
    cases = [{"benchmark": "parallel", "case": str(one.layout)} | size_of_model for one in shown]
    suite = Suite(name="plan", description="the best layouts of a plan", cases=cases)

    def answer(records: RunRecords) -> None:
        lines = compared(shown, records)
        if as_json:
            click.echo(json.dumps({"event": "verified", "layouts": lines}))
        else:
            _show_compared(lines)

    output = _running.Output(as_json=as_json, report=False, answer=answer)
    sys.exit(_running.start(suite.name, _running.expand_here(suite, {}), store, output))


def _size(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        raise InputError("not-a-size", str(error), where=flag, key=flag, value=text) from None
    if size == 0:
        raise InputError("not-positive", f"{flag} {text} must be more than 0", key=flag, value=text)
    return size


def _document(layouts: LayoutPlan, shown: Sequence[Candidate], estimate: ClusterEstimate) -> dict[str, Any]:
    parts = ("data", "tensor", "pipeline", "micro_batch", "checkpointing")
    return {
        "kind": "prediction",
        "basis": list(estimate.basis),
        "device": estimate.device,
        "model": asdict(layouts.model) | {"parameters": layouts.model.parameters},
        "cluster": asdict(layouts.cluster),
        "considered": layouts.considered,
        "too_large": layouts.too_large,
        "reasons": reasons(layouts),
        "candidates": [
            {
                "layout": str(one.layout),
                **{name: getattr(one.layout, name) for name in parts},
                "samples_per_s": one.samples_per_s,
                "tokens_per_s": one.tokens_per_s,
                "mfu": one.mfu,
                "step_s": one.time.total,
                "time_s": asdict(one.time),
                "memory_bytes": asdict(one.memory) | {"peak": one.memory.peak, "occupied": one.memory.occupied},
            }
            for one in shown
        ],
    }


def _page(layouts: LayoutPlan, shown: Sequence[Candidate], estimate: ClusterEstimate) -> Document:
    from paceline.report.document import Block, Document, Lines, Section, Table, Tone

    best = shown[0]
    parts = ("compute", "recompute", "bubble", "communication", "optimizer")
    names = ("parameters", "casts", "gradients", "optimizer", "activations", "vocabulary")
    times, memories = [], []
    for one in shown:
        short = f"{one.layout.mesh}{' ac' if one.layout.checkpointing else ''} mb{one.layout.micro_batch}"
        mfu = f"{100 * one.mfu:.1f} %" if one.mfu is not None else "unknown"
        shares = [f"{100 * one.time.share(getattr(one.time, part)):.1f} %" for part in parts]
        times.append((short, show_count(one.samples_per_s), show_count(one.tokens_per_s), mfu, *shares))
        stage = f" stage {one.memory.stage}" if one.memory.stage else ""
        sizes = [show_size(getattr(one.memory, name)) for name in names]
        memories.append((short + stage, show_size(one.memory.peak), *sizes))
    summary = (
        f"{layouts.considered} layouts of {best.layout.world_size} {estimate.device} with "
        f"{show_size(layouts.cluster.memory)} were considered, {layouts.considered - layouts.too_large} fit; of each "
        "mesh the fastest is shown. These are predictions, not measurements; they rest on:"
    )
    of_times = ("layout", "samples/s", "tokens/s", "MFU", *parts[:3], "comm.", parts[4])
    of_memory = ("fullest rank", "peak", "weights", *names[1:])
    as_cases = ("As `paceline run parallel --case` takes them:", *(str(one.layout) for one in shown))
    sections = (
        Section(items=(Lines((" ".join(reasons(layouts)),), Tone.TEXT),)),
        Section(items=(Table.of_lines(of_times, times, 1),)),
        Section(items=(Table.of_lines(of_memory, memories, 1),)),
        Section(items=(Lines(as_cases, Tone.TEXT),)),
        Section(items=(Lines((summary,), Tone.NOTE), Lines(estimate.basis, Tone.BASIS))),
    )
    answer = f"Predicted best: {best.layout}, {show_count(best.samples_per_s)} samples/s."
    return Document("Plan", (Block(answer, "", sections),))


def compared(shown: Sequence[Candidate], records: RunRecords) -> list[dict[str, Any]]:
    """For each layout what was predicted and what was measured; None where it was not."""
    by_layout = {record.case.parameters.get("case"): record for record in records.records}
    lines = []
    for one in shown:
        record = by_layout.get(str(one.layout))
        rate = record.measurement("throughput") if record else None
        memory = record.measurement("peak_device_memory") if record else None
        lines.append(
            {
                "layout": str(one.layout),
                "predicted_samples_per_s": one.samples_per_s,
                "measured_samples_per_s": rate.value if rate else None,
                "predicted_peak_bytes": one.memory.peak,
                "measured_peak_bytes": memory.value if memory else None,
                "cause": record.cause.message if record and record.cause else None,
            }
        )
    return lines


def _show_compared(lines: Sequence[dict[str, Any]]) -> None:
    from paceline.report.document import Table

    def cells(line: dict[str, Any], name: str, shown: Callable[[float], str]) -> tuple[str, str, str]:
        predicted, measured = line[f"predicted_{name}"], line[f"measured_{name}"]
        if measured is None:
            return shown(predicted), "not measured", ""
        return shown(predicted), shown(measured), f"{100 * (predicted / measured - 1):+.1f} %"

    headers = ("layout", "predicted", "measured", "off by", "predicted peak", "measured peak", "off by")
    rows = [
        (line["layout"], *cells(line, "samples_per_s", show_count), *cells(line, "peak_bytes", show_size))
        for line in lines
    ]
    printer = terminal.Printer(terminal.open_console())
    printer.show_table(Table.of_lines(headers, rows, 1))
    for line in lines:
        if line["cause"]:
            printer.item(f"{line['layout']}: {line['cause']}", 0)
