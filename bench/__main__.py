"""Measures what Paceline costs: per step, per case, per request, and before it does anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench import (
    bit_flips,
    first_figure,
    flood,
    idle,
    leader_load,
    live_leader,
    load_accuracy,
    overlap,
    planted,
    reference_client,
    selector,
    soak,
    switches,
    ten_thousand,
    tune,
    zoo_time,
)
from bench.analysis import analysis_ratios
from bench.epilogues import epilogue_ratios
from bench.fp8_training import fp8_ratios
from bench.generate import generate_ratios
from bench.load import load_ratios
from bench.ratio import HEAD, Ratio, Wanted, kept
from bench.scheduler import scheduler_ratios
from bench.serving import serving_ratios
from bench.training import training_ratios
from bench.verdicts import __main__ as verdicts
from bench.watcher import watcher_ratios
from paceline.core.errors import PacelineError

IMPORT_TORCH = [sys.executable, "-c", "import torch"]
PACELINE = [sys.executable, "-m", "paceline"]
CASES = 4  # the first one pays for the imports
TIMES = 5


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", required=False)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
def main(name: str | None, rest: tuple[str, ...]) -> None:
    """Print the table line by line, a part of it by NAME, or what takes minutes; the exit code says if it could be."""
    names = [*TABLES, *LONG, *COMMANDS, "first-figure"]
    if name is not None and name not in names:
        raise click.BadParameter(f"'{name}' is none of {', '.join(names)}")
    if name in COMMANDS:
        COMMANDS[name](rest, prog_name=f"python -m bench {name}")
    if rest and name != "first-figure":
        raise click.BadParameter(f"'{rest[0]}': '{name}' takes nothing more")
    try:
        if name == "first-figure":
            first_figure.print_first_figures(rest)
            return
        if name in LONG:
            LONG[name]()
            return
        click.echo(HEAD)
        for ratio in (ratio for part, made in TABLES.items() if name in (None, part) for ratio in made()):
            click.echo(str(ratio))
    except (OSError, subprocess.SubprocessError, LookupError, ValueError, PacelineError) as error:
        click.echo(f"bench: could not measure: {error}{_last_words(error)}", err=True)
        sys.exit(1)


def overhead_ratios() -> list[Ratio]:
    """What a step, a case and a command cost."""
    records = overhead_records()
    return [harness(records), start(records), help_text()]


def harness(records: list[dict[str, Any]]) -> Ratio:
    """A step of a millisecond in the harness against the same step in a bare loop."""
    value = median(_median_of(record, "overhead_ratio") for record in records)
    added = median(_median_of(record, "overhead_per_step") for record in records)
    return Ratio("step in the harness / bare", value, "<= 1.01", value <= 1.01, f"{added * 1e6:+.2f} us per 1 ms step")


def start(records: list[dict[str, Any]]) -> Ratio:
    """A fresh interpreter that imports torch against the start of every case but the first."""
    fresh = median(_wall_seconds(IMPORT_TORCH) for _ in range(TIMES))
    forked = median(float(record["facts"]["startup_seconds"]) for record in records[1:])
    made_of = f"{fresh:.3g} s / {forked * 1e3:.3g} ms"
    return Ratio("fresh interpreter / later case", fresh / forked, ">= 10", fresh / forked >= 10, made_of)


def help_text() -> Ratio:
    """CPU time of `paceline --help` against that of importing torch."""
    helped = median(_cpu_seconds([*PACELINE, "--help"]) for _ in range(TIMES))
    imported = median(_cpu_seconds(IMPORT_TORCH) for _ in range(TIMES))
    value = helped / imported
    return Ratio("CPU: --help / import torch", value, "<= 1/6", value <= 1 / 6, f"{helped:.3g} s / {imported:.3g} s")


def overhead_records() -> list[dict[str, Any]]:
    """The records of a few cases of the benchmark `overhead`, in a store that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["run", "overhead", "--repeat", str(CASES), "--json", "--no-report"]
        ended = subprocess.run(
            [*PACELINE, *arguments, "--store", str(Path(folder) / "bench.db")], check=True, capture_output=True
        )
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    return [event["record"] for event in events if event["event"] == "case_ended"]


def _median_of(record: dict[str, Any], metric: str) -> float:
    found = next(m for m in record["measurements"] if m["metric"]["name"] == metric)
    return float(found["summary"]["median"])


def _wall_seconds(command: list[str]) -> float:
    return _clocked(command, time.perf_counter)


def _cpu_seconds(command: list[str]) -> float:
    return _clocked(command, lambda: os.times().children_user + os.times().children_system)


def _clocked(command: list[str], clock: Callable[[], float]) -> float:
    begun = clock()
    subprocess.run(command, check=True, capture_output=True)
    return clock() - begun


def _last_words(error: Exception) -> str:
    said = getattr(error, "stderr", None) or ""
    words = said.decode(errors="replace") if isinstance(said, bytes) else said
    return f"\n{words.strip()}" if words else ""


TABLES: dict[str, Callable[[], Iterable[Ratio]]] = {
    "overhead": overhead_ratios,
    "load": load_ratios,
    "serving": serving_ratios,
    "scheduler": scheduler_ratios,
    "analysis": analysis_ratios,
    "training": lambda: training_ratios(Wanted()),
    "fp8": lambda: fp8_ratios(Wanted()),
    "generate": lambda: generate_ratios(Wanted()),
    "watcher": watcher_ratios,
}
LONG = {
    "bit-flips": bit_flips.main,
    "live-leader": live_leader.main,
    "leader-load": leader_load.main,
    "load-accuracy": load_accuracy.print_load_accuracy,
    "overlap": overlap.main,
    "selector": selector.main,
    "soak": soak.print_soak,
    "ten-thousand": ten_thousand.print_ten_thousand,
    "flood": flood.print_flood,
    "reference-client": reference_client.main,
    "tune": tune.main,
}
COMMANDS: dict[str, click.Command] = {
    "epilogues": kept("Epilogues of products beside kernels of their own.", epilogue_ratios),
    "idle": idle.main,
    "planted": planted.main,
    "switches": switches.main,
    "training": kept("Training and inference beside loops by hand.", training_ratios),
    "fp8": kept("Training in fp8 beside bf16, with fresh batches.", fp8_ratios),
    "generate": kept("generate beside transformers' generate.", generate_ratios),
    "verdicts": verdicts.main,
    "zoo-time": zoo_time.main,
}

if __name__ == "__main__":
    main()
