"""Say which data x tensor x pipeline layout to train a model in."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

import click

from paceline.core.layout import LayoutPrecision, ModelFamily

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from paceline.analysis.plan.search import Candidate, Plan
    from paceline.analysis.plan.transformer import Transformer
    from paceline.cli._cluster import Known, Wanted
    from paceline.core.run import RunRecords

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
@click.option("--precision", type=click.Choice(["fp32", "fp16", "bf16"]), help="Unset is bf16 where the GPU has it.")
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
    from paceline.analysis.plan.published import as_published
    from paceline.analysis.plan.search import plan
    from paceline.cli._cluster import find_cluster
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
    from paceline.cli._cluster import Wanted

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


def _document(found: Plan, shown: Sequence[Candidate], known: Known) -> dict[str, Any]:
    from paceline.analysis.plan.reasons import reasons

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


def _show(found: Plan, shown: Sequence[Candidate], known: Known) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from paceline.analysis.plan.reasons import reasons
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


def _verify(found: Plan, shown: Sequence[Candidate], store: str | None, *, as_json: bool) -> int:
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
