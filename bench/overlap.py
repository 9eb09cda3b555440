"""What two measurements on the same cores cost each other, which is why a leader lets no two of them overlap.

Each is measured alone, before and after the two are measured at once, so that it shows whether the machine itself
drifted meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

GEMM = ("gemm", "--size", "1024")
TRAIN = ("train", "--model", "resnet18", "--scale", "tiny")
PAIRS = ((GEMM, GEMM), (TRAIN, GEMM))
MEASURING = ("--target", "cpu", "--budget", "5s")
TIMES = {"gemm": "time", "train": "step_time"}  # of one call, of one step
RUN = (sys.executable, "-m", "paceline", "run")


@dataclass(frozen=True)
class Taken:
    """The time of a step, with its interval, and what made it uncertain."""

    median: float
    low: float
    high: float
    warnings: tuple[str, ...]


def main() -> None:
    """Print the table."""
    click.echo(f"{'measured':8} {'beside':14} {'median':>10} {'95 % interval':>22}  {'ratio':>5}  warnings")
    for pair in PAIRS:
        before = [_measured(command) for command in pair]
        with ThreadPoolExecutor(len(pair)) as pool:
            together = list(pool.map(_measured, pair))
        after = [_measured(command) for command in pair]
        for place, (name, *_) in enumerate(pair):
            for beside, taken in (
                ("nothing", before[place]),
                (f"another {pair[1 - place][0]}", together[place]),
                ("nothing again", after[place]),
            ):
                _print(name, beside, taken, before[place])


def _measured(command: Sequence[str]) -> Taken:
    with tempfile.TemporaryDirectory() as folder:
        words = [*RUN, *command, *MEASURING, "--json", "--no-report", "--store", str(Path(folder) / "bench.db")]
        ended = subprocess.run(words, capture_output=True, check=True)
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    record = next(event["record"] for event in events if event["event"] == "case_ended")
    wanted = TIMES[command[0]]
    summary = next(one["summary"] for one in record["measurements"] if one["metric"]["name"] == wanted)
    interval = summary["median_interval"]
    warnings = tuple(warning["kind"] for warning in record["warnings"])
    return Taken(summary["median"], interval["low"], interval["high"], warnings)


def _print(name: str, beside: str, taken: Taken, alone: Taken) -> None:
    interval = f"{taken.low * 1e3:.1f} to {taken.high * 1e3:.1f} ms"
    click.echo(
        f"{name:8} {beside:14} {taken.median * 1e3:7.1f} ms {interval:>22}  {taken.median / alone.median:5.2f}  "
        f"{', '.join(taken.warnings) or '-'}"
    )
