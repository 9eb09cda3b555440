"""One line of the table, and lines that are kept in a file while they are made."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click


@dataclass(frozen=True)
class Ratio:
    """One figure, what it was made of, and what it should be."""

    name: str
    value: float
    target: str
    is_met: bool
    made_of: str

    def __str__(self) -> str:
        met = "yes" if self.is_met else "no"
        return f"{self.name:34} {self.value:8.4g}  {self.target:<8}  {met:3}  {self.made_of}"


HEAD = f"{'':34} {'ratio':>8}  {'target':<8}  {'':3}  made of"


@dataclass
class Wanted:
    """Which lines are to be made: those that were asked for, are not done yet, and for which there is time."""

    target: str | None = None
    only: tuple[str, ...] = ()
    done: set[str] = field(default_factory=set)
    ends: float = float("inf")  # of the monotonic clock
    left: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> bool:
        if name in self.done or (self.only and not any(words in name for words in self.only)):
            return False
        if time.monotonic() > self.ends:
            self.left.append(name)
            return False
        return True


def kept(about: str, ratios: Callable[[Wanted], Iterable[Ratio]]) -> click.Command:
    """A command that makes lines, keeps each in a file as soon as it is known, and goes on where it ended."""

    @click.command(help=about)
    @click.option("--target", default=None, help="the device; the first GPU, otherwise the CPU")
    @click.option("--only", multiple=True, help="words in the name of a line; may be given again")
    @click.option("--seconds", default=540.0, show_default=True, help="nothing begins after so many")
    @click.option(
        "--results", type=click.Path(path_type=Path, dir_okay=False),
        help="a file of JSON lines; what it has is not done again",
    )  # fmt: skip
    def command(target: str | None, only: tuple[str, ...], seconds: float, results: Path | None) -> None:
        lines = results.read_text(encoding="utf-8").splitlines() if results is not None and results.exists() else []
        before = [Ratio(**json.loads(line)) for line in lines]
        wanted = Wanted(target, only, {one.name for one in before}, time.monotonic() + seconds)
        click.echo(HEAD)
        for ratio in before:
            click.echo(f"{ratio}  (done before)")
        for ratio in ratios(wanted):
            click.echo(str(ratio))
            if results is not None:
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(ratio)) + "\n")
        if wanted.left:
            click.echo(f"left for lack of time: {'; '.join(wanted.left)}")

    return command
