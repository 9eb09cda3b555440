"""Say which data x tensor x pipeline layout to train a model in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, get_args

import click

from paceline.analysis.plan import Candidate, LayoutPlan, plan, reasons
from paceline.api.sources import read_sources
from paceline.cli._plan_cluster import ClusterEstimate, ClusterRequest, find_cluster
from paceline.core.errors import InputError, unknown
from paceline.core.layout import LayoutPrecision, ModelFamily
from paceline.core.quantity import parse_size, show_count, show_size
from paceline.core.subject import FloatPrecision
from paceline.core.transformer import PLANNED, Transformer, as_published, transformer
from paceline.devices import device_count
from paceline.report.render import terminal

if TYPE_CHECKING:
    from paceline.analysis.plan_calibration import Calibration
    from paceline.core.run import RunRecords
    from paceline.report.document import Document


FAMILIES: dict[str, ModelFamily] = {name: name for name in PLANNED}
BATCH_PER_GPU = 32
HEAD_SIZE = 64
MOST = 1_000_000  # of anything that a layout counts
_COUNT = click.IntRange(1, MOST)


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
@click.option(
    "--calibrate",
    "results",
    metavar="RESULTS",
    multiple=True,
    help="Fit the formulas to the layouts measured in a run, a tag or a file, and say the error; may be repeated.",
)
@click.option("--top", type=_COUNT, default=5, show_default=True, help="How many layouts to show.")
@click.option("--verify", is_flag=True, help="Measure the shown layouts here, and compare that with the prediction.")
@click.option("--store", metavar="PATH|URL", help="With --verify: where results go; with --calibrate: where they are.")
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
    results: tuple[str, ...],
) -> None:
    """Say which data x tensor x pipeline layout, micro-batch and checkpointing to train MODEL in: gpt2 or bert.

    Memory and time of every layout are predicted by formulas, and nothing is run. The layouts are words that
    'paceline run parallel --case' takes.
    """
    if store is not None and not (verify or results):
        message = "--store goes with --verify or --calibrate"
        raise InputError("store-without-verify", message, key="--store", value=store)
    shape = _shape(model, layers, hidden, heads, sequence)
    size = _size("--memory", memory)
    rate = _size("--network", network and network.strip().removesuffix("/s"))
    estimate, fit = _cluster(ClusterRequest(gpus, device, size, gpus_per_node, rate, precision), results, store)
    shape = as_published(shape) if estimate.is_published else shape
    batch = _batch(gpus, global_batch)
    layouts = plan(shape, estimate.cluster, gpus=gpus, global_batch=batch, precision=estimate.precision)
    shown = layouts.candidates[:top]
    if verify:
        _refuse_elsewhere(device, gpus)
    if as_json:
        document = _document(layouts, shown, estimate, fit)
        click.echo(json.dumps({"event": "plan"} | document) if verify else json.dumps(document, indent=2))
    else:
        terminal.show(_page(layouts, shown, estimate))
    if verify:
        sys.exit(_measure(layouts, shown, store, as_json=as_json))


def _shape(model: str, layers: int, hidden: int, heads: int | None, sequence: int | None) -> Transformer:
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


def _cluster(
    request: ClusterRequest, results: Sequence[str], store: str | None
) -> tuple[ClusterEstimate, Calibration | None]:
    from paceline.cli._plan_cluster import calibrated, experience

    if results:
        return calibrated(request, read_sources(results, store))
    estimate = find_cluster(request)
    if estimate.from_datasheet:
        estimate = replace(estimate, basis=(*estimate.basis, experience(estimate.device)))
    return estimate, None


def _batch(gpus: int, given: int | None) -> int:
    batch = given or BATCH_PER_GPU * gpus
    if batch > MOST:
        message = (
            f"{BATCH_PER_GPU} samples for each of {gpus} GPUs are a batch of {batch:,}, more than the {MOST:,} that a "
            "layout takes: give a smaller --global-batch"
        )
        raise InputError("batch-too-large", message, key="--global-batch", value=batch)
    return batch


def _refuse_elsewhere(device: str | None, gpus: int) -> None:
    if device is not None:
        message = "--verify measures on this machine: leave out --device"
        raise InputError("verify-with-device", message, key="--device", value=device)
    if gpus > (here := device_count()):
        message = f"--verify measures on this machine, which has {here} GPUs, but the plan is for {gpus}"
        raise InputError("too-few-gpus", message, key="--gpus", value=gpus)


def _measure(layouts: LayoutPlan, shown: Sequence[Candidate], store: str | None, *, as_json: bool) -> int:
    """Measure the layouts like any suite, and compare the result with the prediction; the exit code."""
    from paceline.api.cases import expand_here
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
    return _running.start(suite.name, expand_here(suite, {}), store, output)


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


def _document(
    layouts: LayoutPlan, shown: Sequence[Candidate], estimate: ClusterEstimate, fit: Calibration | None
) -> dict[str, Any]:
    parts = ("data", "tensor", "pipeline", "micro_batch", "checkpointing")
    return {
        "kind": "prediction",
        "basis": list(estimate.basis),
        "device": estimate.device,
        "device_chosen": estimate.chosen,
        "calibration": _calibration(fit) if fit is not None else None,
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


def _calibration(fit: Calibration) -> dict[str, Any]:
    """What was fitted, and each layout with what a fit to the others fit of it."""
    misses = fit.misses or [None] * len(fit.observations)
    return {
        "fitted": {name: getattr(fit.cluster, name) for name in fit.fitted},
        "median_error": fit.typical_miss,
        "layouts": [
            {"layout": str(one.layout), "measured_samples_per_s": one.samples_per_s, "error_left_out": miss}
            for one, miss in zip(fit.observations, misses, strict=True)
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
    where = f"on {best.layout.world_size} {estimate.device}, {estimate.chosen}"
    answer = f"Predicted best: {best.layout}, {show_count(best.samples_per_s)} samples/s {where}."
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
