"""Writes the page of one machine's figures from runs in a store: hardware.py STORE RUN... --commit C --title T -o F."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.core.quantity import show_size
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords
from paceline.store import open_store

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8_hybrid", "fp8_e4m3")


def main() -> None:
    """Read the runs and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--commit", required=True, help="of the code that measured")
    parser.add_argument("--title", required=True)
    parser.add_argument("--note", action="append", default=[], help="a paragraph for the top of the page")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    with open_store(arguments.store) as store:
        runs = [store.load(store.find_run(name)) for name in arguments.runs]
    parts = [f"# {arguments.title}", *arguments.note, *(_environment(runs[0], arguments.commit)), LEGEND]
    records = [record for run in runs for record in run.records]
    for benchmark in dict.fromkeys(record.case.benchmark for record in records):
        for compiled in (False, True):
            rows = [r for r in records if r.case.benchmark == benchmark and _is_compiled(r) == compiled]
            if rows and benchmark in ("train", "inference"):
                parts += [f"## {benchmark}, {'compiled' if compiled else 'eager'}", _table(rows)]
    parts += _failures(records)
    parts += ["## Runs", "\n".join(_run_line(run) for run in runs)]
    arguments.output.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


LEGEND = (
    "Throughput with the half-width of its 95 % interval, peak device memory below. Letters mark doubts: "
    "**I** imprecise, **N** noisy, **D** drifting, **U** unsteady, **S** short, **H** host-bound (the host issued "
    "work more slowly than the device did it), **P** power-capped, **T** throttled, **C** contended."
)
MARKS = {
    "imprecise": "I",
    "noisy": "N",
    "drifting": "D",
    "unsteady": "U",
    "short": "S",
    "host-bound": "H",
    "power-capped": "P",
    "throttled": "T",
    "contended": "C",
}


def _environment(run: RunRecords, commit: str) -> list[str]:
    seen = run.run.environment
    gpu = (seen.get("gpus") or [{}])[0]
    driver, software = seen.get("driver") or {}, seen.get("software") or {}
    packages = software.get("packages") or {}
    facts = {
        "measured": f"{run.run.started_at:%Y-%m-%d}, commit `{commit}`, Paceline {run.run.version}",
        "device": gpu.get("name"),
        "driver": f"{driver.get('version')}, CUDA {driver.get('cuda')}",
        "torch": f"{packages.get('torch')} for CUDA {software.get('torch_cuda')}, Python {software.get('python')}",
        "host": f"{(seen.get('cpu') or {}).get('model')}, {seen.get('virtualization') or 'no virtual machine'}",
    }
    return ["\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items())])]


def _is_compiled(record: Record) -> bool:
    return bool(record.facts.get("compiled"))


def _table(records: list[Record]) -> str:
    used = [p for p in PRECISIONS if any(r.case.parameters["precision"] == p for r in records)]
    extra = ["compiling cost"] if any(_is_compiled(r) for r in records) else []
    lines = [
        "| model | batch | unit | " + " | ".join([*used, *extra]) + " |",
        "|---|---:|---|" + "---:|" * len([*used, *extra]),
    ]
    rows: dict[tuple[str, int], dict[str, Record]] = {}
    for record in records:
        if record.outcome is Outcome.OK:
            key = (record.case.parameters["model"], record.facts["batch_size"])
            rows.setdefault(key, {})[record.case.parameters["precision"]] = record
    for (model, batch), by_precision in rows.items():
        first = next(iter(by_precision.values())).measurement("throughput")
        cells = [_cell(by_precision.get(precision)) for precision in used]
        if extra:
            costs = [r.measurement("compile_time") for r in by_precision.values()]
            cells.append(", ".join(f"{cost.value:.0f} s" for cost in costs if cost))
        unit = first.metric.unit if first else ""
        lines.append(f"| {model} | {batch} | {unit} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(record: Record | None) -> str:
    rate = record.measurement("throughput") if record else None
    if record is None or rate is None or rate.interval is None:
        return ""
    marks = "".join(dict.fromkeys(MARKS.get(doubt.kind, "?") for doubt in record.doubts))
    memory = record.measurement("peak_device_memory")
    value = f"{rate.value:,.0f}" if rate.value >= 100 else f"{rate.value:.3g}"
    shown = f"{value} ± {rate.interval.relative(rate.value):.1%}" + (f" **{marks}**" if marks else "")
    return shown + (f"<br>{show_size(memory.value)}" if memory else "")


def _failures(records: list[Record]) -> list[str]:
    bad = [record for record in records if record.outcome is not Outcome.OK]
    if not bad:
        return []
    lines = [f"- {r.case.benchmark} {r.case.title}: {r.outcome}. {r.cause.message if r.cause else ''}" for r in bad]
    return ["## What did not succeed", "\n".join(lines)]


def _run_line(run: RunRecords) -> str:
    seconds = sum(record.seconds for record in run.records)
    command = " ".join(run.run.command)
    return f"- `{command}`: {len(run.records)} of {len(run.run.cases)} cases in {seconds / 60:.1f} minutes"


if __name__ == "__main__":
    main()
