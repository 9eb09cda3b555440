"""Say which data x tensor x pipeline layout to train a model in."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import click

from paceline.analysis.plan.calibrate import LIBAI
from paceline.analysis.plan.cluster import Cluster
from paceline.core.device import is_accelerator
from paceline.core.errors import InputError
from paceline.core.layout import LayoutPrecision, ModelFamily
from paceline.core.quantity import show_scaled
from paceline.core.subject import FloatPrecision
from paceline.devices import datasheet
from paceline.devices.datasheet import Datasheet
from paceline.machine import describe
from paceline.machine.profile import identity_of, load_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from paceline.analysis.plan.search import Candidate, LayoutPlan
    from paceline.analysis.plan.transformer import Transformer
    from paceline.core.environment import Gpu
    from paceline.core.profile import Profile
    from paceline.core.run import RunRecords


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


FAMILIES: dict[str, ModelFamily] = {name: name for name in get_args(ModelFamily)}
BATCH_PER_GPU = 32
HEAD_SIZE = 64
PIPE_WIDTH = 100
MOST = 1_000_000  # of anything that a layout counts
_COUNT = click.IntRange(1, MOST)
_LAYERS = click.IntRange(1, 1000)
_GPUS = click.IntRange(1, 65_536)


@click.command()
@click.argument("model")
@click.option("--layers", type=_LAYERS, default=24, show_default=True, help="Transformer layers.")
@click.option("--hidden", type=_COUNT, default=1024, show_default=True, help="Hidden size.")
@click.option("--heads", type=_COUNT, help="Attention heads; unset is one for every 64 of the hidden size.")
@click.option("--sequence", type=_COUNT, help="Tokens of a sample; unset is 1024 for gpt2 and 512 for bert.")
@click.option("--gpus", type=_GPUS, required=True, help="GPUs to train on, all nodes together.")
@click.option("--gpus-per-node", type=_COUNT, help="GPUs of a node; unset is what this machine has if several, else 8.")
@click.option("--memory", metavar="SIZE", help="Memory of a GPU, such as 80GiB; unset is that of this machine's.")
@click.option("--network", metavar="RATE", help="What one node sends to others, such as 100GB/s.")
@click.option("--global-batch", type=_COUNT, help="Samples of a whole step; unset is 32 for each GPU.")
@click.option("--precision", type=click.Choice(get_args(FloatPrecision)), help="Unset is bf16 where the GPU has it.")
@click.option(
    "--device", metavar="NAME", help="Plan for this GPU by its datasheet, such as H200, not for this machine."
)
@click.option("--top", type=_COUNT, default=5, show_default=True, help="How many layouts to show.")
@click.option("--verify", is_flag=True, help="Measure the shown layouts here, and put that beside the prediction.")
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
    **of_gpus: Any,
) -> None:
    """Say which data x tensor x pipeline layout, micro-batch and checkpointing to train MODEL in: gpt2 or bert.

    Memory and time of every layout are predicted by formulas, and nothing is run. The layouts are words that
    'paceline run parallel --case' takes.
    """
    from paceline.analysis.plan.calibrate import as_published
    from paceline.analysis.plan.search import plan
    from paceline.core.errors import InputError

    if store is not None and not verify:
        raise InputError("store-without-verify", "--store goes with --verify", key="--store", value=store)
    shape = _shape(model, layers, hidden, heads, sequence)
    known = find_cluster(_wanted(gpus, **of_gpus))
    shape = as_published(shape) if known.is_published else shape
    batch = global_batch or _usual_batch(gpus)
    found = plan(shape, known.cluster, gpus=gpus, global_batch=batch, precision=known.precision)
    shown = found.candidates[:top]
    if verify:
        _refuse_elsewhere(of_gpus["device"], gpus)
    if as_json:
        document = _document(found, shown, known)
        click.echo(json.dumps({"event": "plan"} | document) if verify else json.dumps(document, indent=2))
    else:
        _show(found, shown, known)
    if verify:
        sys.exit(_verify(found, shown, store, as_json=as_json))


def _shape(model: str, layers: int, hidden: int, heads: int | None, sequence: int | None) -> Transformer:
    from paceline.analysis.plan.transformer import transformer
    from paceline.core.errors import InputError, unknown

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
    return transformer(FAMILIES[model], layers, hidden, heads, sequence)


def _usual_batch(gpus: int) -> int:
    from paceline.core.errors import InputError

    batch = BATCH_PER_GPU * gpus
    if batch > MOST:
        raise InputError(
            "batch-too-large",
            f"{BATCH_PER_GPU} samples for each of {gpus} GPUs are a batch of {batch:,}, more than the {MOST:,} that a "
            "layout takes: give a smaller --global-batch",
            key="--global-batch",
            value=batch,
        )
    return batch


def _wanted(
    gpus: int,
    device: str | None,
    memory: str | None,
    network: str | None,
    gpus_per_node: int | None,
    precision: LayoutPrecision | None,
) -> Wanted:

    return Wanted(
        gpus=gpus,
        device=device,
        memory=_size("--memory", memory),
        network=_size("--network", network and network.strip().removesuffix("/s")),
        gpus_per_node=gpus_per_node,
        precision=precision,
    )


def _size(flag: str, text: str | None) -> int | None:
    from paceline.core.errors import InputError
    from paceline.core.quantity import parse_size

    if text is None:
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        raise InputError("not-a-size", str(error), where=flag, key=flag, value=text) from None
    if size == 0:
        raise InputError("not-positive", f"{flag} {text} must be more than 0", key=flag, value=text)
    return size


def _document(found: LayoutPlan, shown: Sequence[Candidate], known: Known) -> dict[str, Any]:
    from paceline.analysis.plan.search import reasons

    return {
        "kind": "prediction",
        "basis": list(known.basis),
        "device": known.device,
        "model": asdict(found.model) | {"parameters": found.model.parameters},
        "cluster": asdict(found.cluster),
        "considered": found.considered,
        "too_large": found.too_large,
        "reasons": reasons(found),
        "candidates": [_entry(one) for one in shown],
    }


def _entry(one: Candidate) -> dict[str, Any]:
    layout = one.layout
    return {
        "layout": str(layout),
        **{name: getattr(layout, name) for name in ("data", "tensor", "pipeline", "micro_batch", "checkpointing")},
        "samples_per_s": one.samples_per_s,
        "tokens_per_s": one.tokens_per_s,
        "mfu": one.mfu,
        "step_s": one.time.total,
        "time_s": asdict(one.time),
        "memory_bytes": asdict(one.memory) | {"peak": one.memory.peak, "occupied": one.memory.occupied},
    }


def _show(found: LayoutPlan, shown: Sequence[Candidate], known: Known) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from paceline.analysis.plan.search import reasons
    from paceline.core.quantity import show_size

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    best, cluster = shown[0], found.cluster
    lead = f"Predicted best: {best.layout}, {_rate(best.samples_per_s)} samples/s."
    console.print(Text(lead, "bold"))
    console.print(Text(" ".join(reasons(found))))
    console.print()
    console.print(_times(console, shown))
    console.print()
    console.print(_memories(console, shown))
    console.print()
    console.print(Text("As `paceline run parallel --case` takes them:"))
    for one in shown:
        console.print(Text(str(one.layout)))
    console.print()
    fits = found.considered - found.too_large
    console.print(
        Text(
            f"{found.considered} layouts of {best.layout.world_size} {known.device} with {show_size(cluster.memory)} "
            f"were considered, {fits} fit; of each mesh the fastest is shown. These are predictions, not measurements; "
            "they rest on:",
            "dim",
        )
    )
    for line in known.basis:
        console.print(Padding(Text(line, "dim"), (0, 0, 0, 2)))


def _times(console: Console, shown: Sequence[Candidate]) -> Table:
    table = _table(
        console, "layout", "samples/s", "tokens/s", "MFU", "compute", "recompute", "bubble", "comm.", "optimizer"
    )
    for one in shown:
        time = one.time
        spent = (time.compute, time.recompute, time.bubble, time.communication, time.optimizer)
        table.add_row(
            _short(one),
            _rate(one.samples_per_s),
            _rate(one.tokens_per_s),
            f"{100 * one.mfu:.1f} %" if one.mfu is not None else "unknown",
            *(f"{100 * time.share(part):.1f} %" for part in spent),
        )
    return table


def _memories(console: Console, shown: Sequence[Candidate]) -> Table:
    from paceline.core.quantity import show_size

    names = ("parameters", "casts", "gradients", "optimizer", "activations", "vocabulary")
    table = _table(console, "fullest rank", "peak", "weights", *names[1:])
    for one in shown:
        parts = (getattr(one.memory, name) for name in names)
        stage = f" stage {one.memory.stage}" if one.memory.stage else ""
        table.add_row(_short(one) + stage, show_size(one.memory.peak), *(show_size(part) for part in parts))
    return table


def _short(one: Candidate) -> str:
    layout = one.layout
    return f"{layout.mesh}{' ac' if layout.checkpointing else ''} mb{layout.micro_batch}"


def _table(console: Console, first: str, *numbers: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2, show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rate(value: float) -> str:
    from paceline.core.quantity import show_count

    return show_count(value)


def _refuse_elsewhere(device: str | None, gpus: int) -> None:
    """Only what this machine has can be measured here."""
    from paceline.core.errors import InputError
    from paceline.devices import device_count

    if device is not None:
        message = "--verify measures on this machine: leave out --device"
        raise InputError("verify-with-device", message, key="--device", value=device)
    here = device_count()
    if gpus > here:
        message = f"--verify measures on this machine, which has {here} GPUs, but the plan is for {gpus}"
        raise InputError("too-few-gpus", message, key="--gpus", value=gpus)


def _verify(found: LayoutPlan, shown: Sequence[Candidate], store: str | None, *, as_json: bool) -> int:
    """Measure the layouts like any suite, and show what was predicted beside it; returns the exit code."""
    from paceline.cli import _running
    from paceline.core.suite import Suite

    shape = {"hidden": found.model.hidden, "heads": found.model.heads, "sequence": found.model.sequence}
    cases = [{"benchmark": "parallel", "case": str(one.layout)} | shape for one in shown]
    suite = Suite(name="plan", description="the best layouts of a plan", cases=cases)

    def answer(records: RunRecords) -> None:
        lines = compared(shown, records)
        if as_json:
            click.echo(json.dumps({"event": "verified", "layouts": lines}))
        else:
            _show_compared(lines)

    return _running.start(suite, {}, store, _running.Output(as_json=as_json, report=False, answer=answer), None)


def compared(shown: Sequence[Candidate], records: RunRecords) -> list[dict[str, Any]]:
    """For each layout what was predicted and what was measured; None where it was not."""
    by_word = {record.case.parameters.get("case"): record for record in records.records}
    lines = []
    for one in shown:
        record = by_word.get(str(one.layout))
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
    from rich.console import Console

    from paceline.core.quantity import show_size

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = _table(console, "layout", "predicted", "measured", "off by", "predicted peak", "measured peak", "off by")
    for line in lines:
        table.add_row(
            line["layout"],
            *_beside(line["predicted_samples_per_s"], line["measured_samples_per_s"], _rate),
            *_beside(line["predicted_peak_bytes"], line["measured_peak_bytes"], show_size),
        )
    console.print(table)
    for line in lines:
        if line["cause"]:
            console.print(f"{line['layout']}: {line['cause']}", markup=False)


def _beside(predicted: float, measured: float | None, shown: Any) -> tuple[str, str, str]:
    if measured is None:
        return shown(predicted), "not measured", ""
    return shown(predicted), shown(measured), f"{100 * (predicted / measured - 1):+.1f} %"
