"""Writes the page of one machine's figures from runs: hardware.py STORE@COMMIT:RUN,RUN ... --title T -o F."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import hardware_micro
from hardware_beside import beside_sections, is_beside
from hardware_marks import legend, marks

from paceline.core.environment import Driver, Gpu
from paceline.core.quantity import show_size
from paceline.core.record import Outcome, Record
from paceline.core.run import RunRecords
from paceline.store import open_store

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8_hybrid", "fp8_e4m3")


def main() -> None:
    """Read the runs and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", help="STORE@COMMIT:RUN,RUN; the commit is that of the code that measured")
    parser.add_argument("--title", required=True)
    parser.add_argument("--note", action="append", default=[], help="a paragraph for the top of the page")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    found = [pair for source in arguments.sources for pair in _read(source)]
    runs, commits = [run for run, _ in found], [commit for _, commit in found]
    text = page(runs, title=arguments.title, commits=commits, notes=arguments.note)
    arguments.output.write_text(text, encoding="utf-8")


def _read(source: str) -> Iterator[tuple[RunRecords, str]]:
    location, _, rest = source.rpartition("@")
    commit, _, names = rest.partition(":")
    if not (location and commit and names):
        raise SystemExit(f"'{source}' is not STORE@COMMIT:RUN,RUN")
    with open_store(location) as store:
        for name in names.split(","):
            yield store.load(store.find_run(name)), commit


LEGEND = "Models: throughput with the half-width of its 95 % interval, peak device memory below."


def page(runs: Sequence[RunRecords], *, title: str, commits: Sequence[str], notes: Sequence[str] = ()) -> str:
    """The whole page, in Markdown; each run was measured by the code of its commit."""
    records = [record for run in runs for record in run.records]
    micro = hardware_micro.micro_sections(runs)
    models = _models([record for run in runs if not is_beside(run) for record in run.records])
    legends = [hardware_micro.LEGEND if micro else "", LEGEND if models else "", legend(records)]
    parts = [
        f"# {title}",
        *notes,
        _environment(runs, commits),
        *(text for text in legends if text),
        *micro,
        *models,
        *beside_sections(runs),
        *_failures(records),
        "## Runs",
        "\n".join(_run_line(run, commit) for run, commit in zip(runs, commits, strict=True)),
    ]
    return "\n\n".join(parts) + "\n"


def _environment(runs: Sequence[RunRecords], commits: Sequence[str]) -> str:
    seen = runs[0].run.environment
    days = sorted({f"{run.run.started_at:%Y-%m-%d}" for run in runs})
    gpu, driver, software = next(iter(seen.gpus), Gpu()), seen.driver or Driver(), seen.software
    torch = f"{software.packages.get('torch')} for CUDA {software.torch_cuda}, Python {software.python}"
    facts = {
        "measured": f"{' and '.join(days)}, commit {_words(commits)}, Paceline {runs[0].run.version}",
        "device": gpu.name,
        "driver": f"{driver.version}, CUDA {driver.cuda}",
        "torch": torch,
        "host": f"{seen.cpu.model}, {seen.virtualization or 'no virtual machine'}",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items())])


def _words(commits: Sequence[str]) -> str:
    return ", ".join(f"`{commit}`" for commit in dict.fromkeys(commits))


def _models(records: Sequence[Record]) -> list[str]:
    """Tables of training and inference, eager and compiled."""
    parts = []
    for benchmark in dict.fromkeys(r.case.benchmark for r in records if r.case.benchmark in ("train", "inference")):
        for compiled in (False, True):
            rows = [r for r in records if r.case.benchmark == benchmark and _is_compiled(r) == compiled]
            if any(r.outcome is Outcome.OK for r in rows):
                parts += [f"## {benchmark}, {'compiled' if compiled else 'eager'}", _table(rows)]
    return parts


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
    letters = marks(record)
    memory = record.measurement("peak_device_memory")
    value = f"{rate.value:,.0f}" if rate.value >= 100 else f"{rate.value:.3g}"
    shown = f"{value} ± {rate.interval.relative(rate.value):.1%}" + (f" **{letters}**" if letters else "")
    return shown + (f"<br>{show_size(memory.value)}" if memory else "")


def _failures(records: Sequence[Record]) -> list[str]:
    parts = []
    failed = [record for record in records if not record.is_success]
    impossible = [record for record in records if record.outcome is Outcome.UNSUPPORTED and record.is_success]
    for title, found in (("What did not succeed", failed), ("Not possible on this machine", impossible)):
        said: dict[str, list[str]] = {}
        for record in found:
            message = record.cause.message if record.cause else "no cause was recorded"
            ended = f"{record.outcome}: " if record in failed else ""
            said.setdefault(ended + message, []).append(f"{record.case.benchmark} {record.case.title}".strip())
        if said:
            parts += [f"## {title}", "\n".join(f"- {', '.join(names)}: {why}" for why, names in said.items())]
    return parts


def _run_line(run: RunRecords, commit: str) -> str:
    seconds = sum(record.seconds for record in run.records)
    command = " ".join(run.run.command)
    ended = "" if run.run.status == "finished" else f", {run.run.status}"
    cases = f"{len(run.records)} of {len(run.run.cases)} cases"
    return f"- `{command}`, commit `{commit}`: {cases} in {seconds / 60:.1f} minutes{ended}"


if __name__ == "__main__":
    main()
