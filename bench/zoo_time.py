"""How long rows of the suite `zoo` take, as it is and under the default rules of steadiness, and how wide they end.

`python -m bench zoo-time --only resnet50 --only bert-base --target cuda:0` measures the rows in both ways, each in a
run of its own, and prints where the time of each goes. Rows are told as they end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click

DEFAULTS = ("--set", "span=8s", "--set", "warm_up=10s", "--set", "budget=10s")  # of every case that says nothing
WAYS: dict[str, tuple[str, ...]] = {"as it is": (), "default rules": DEFAULTS}


@dataclass
class Taken:
    """What the rows of one run took together."""

    wall: float = 0.0  # seconds
    rows: int = 0
    parts: Counter[str] = field(default_factory=Counter)  # seconds by what they went to
    stopped: Counter[str] = field(default_factory=Counter)
    widths: list[float] = field(default_factory=list)  # of the interval of the median, as a part of it

    def add(self, record: dict[str, Any]) -> str:
        """One more row, and how it ended."""
        facts, outcome = record["facts"], str(record["outcome"])
        if outcome != "ok":
            return outcome
        self.rows += 1
        spent = {name: seconds or 0.0 for name, seconds in facts["spent"].items()}
        spent["starting"] = facts.get("startup_seconds") or 0.0
        spent["all else"] = record["seconds"] - sum(spent.values())
        self.parts.update(spent)
        self.stopped[facts["stopped"]] += 1
        summary = next(one for one in record["measurements"] if one["metric"]["name"] == "step_time")["summary"]
        interval = summary["median_interval"]
        if interval:
            self.widths.append((interval["high"] - interval["low"]) / 2.0 / summary["median"])
        return f"{record['seconds']:.1f} s, {facts['stopped']}"

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts.most_common())
        ended = ", ".join(f"{name} {count}" for name, count in self.stopped.items())
        width = f"median width {median(self.widths):.2%}, widest {max(self.widths):.2%}" if self.widths else "no widths"
        return f"{self.rows} rows in {self.wall:.0f} s; {width}; ended by {ended}; seconds: {parts}"


@click.command()
@click.option("--target", default=None, help="the device; the first GPU, otherwise the CPU")
@click.option("--only", multiple=True, required=True, help="words in the name of a row; may be given again")
@click.option("--set", "settings", multiple=True, help="NAME=VALUE of a parameter: scale=tiny")
@click.option("--way", type=click.Choice([*WAYS]), multiple=True, help="one way of measuring alone")
def main(target: str | None, only: tuple[str, ...], settings: tuple[str, ...], way: tuple[str, ...]) -> None:
    """A line for each way, and the time of the first as a part of that of the second."""
    words = [word for one in only for word in ("--only", one)]
    words += [word for one in settings for word in ("--set", one)]
    words += ["--target", target] if target else []
    taken = {name: _run(name, [*words, *WAYS[name]]) for name in way or WAYS}
    if len(taken) == len(WAYS):
        short, long = taken.values()
        click.echo(f"the suite as it is takes {short.wall / long.wall:.0%} of the time under the default rules")


def _run(name: str, words: list[str]) -> Taken:
    taken, begun = Taken(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paceline", "run", "zoo", "--json", "--no-report", *words]
        command += ["--store", str(Path(folder) / "zoo.db")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                event = json.loads(line)
                if event["event"] == "case_ended":
                    record = event["record"]
                    said = taken.add(record)
                    click.echo(f"{name}: {record['case']['benchmark']} {record['case']['title']}: {said}", err=True)
    if running.returncode not in (0, 1):
        raise click.ClickException(f"paceline run zoo ended with {running.returncode}")
    taken.wall = time.monotonic() - begun
    click.echo(f"{name}: {taken}")
    return taken
