"""Runs the stages of `make test` one after the other and prints how long each took, and all of them together."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A named command and, once it has run, its exit code and its time."""

    name: str
    command: str
    code: int = 0
    seconds: float = 0.0

    @classmethod
    def read(cls, text: str) -> Stage:
        """`name: command`, as the Makefile writes it."""
        name, separator, command = text.partition(": ")
        if not separator:
            raise ValueError(f"'{text}' is not 'name: command'")
        return cls(name, command.strip())


def run(stage: Stage) -> Stage:
    """A stage that fails does not keep the others from running: a person who waited learns everything at once."""
    print(f"\n--- {stage.name}: {stage.command}", flush=True)
    begin = time.monotonic()
    code = subprocess.run(stage.command, shell=True, check=False).returncode
    return Stage(stage.name, stage.command, code, time.monotonic() - begin)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d}"


def table(stages: Sequence[Stage]) -> str:
    """A line for each stage and one for all."""
    total = Stage("total", "", max((stage.code for stage in stages), default=0), sum(stage.seconds for stage in stages))
    width = max(len(stage.name) for stage in (*stages, total))
    return "\n".join(
        f"{stage.name:<{width}}  {clock(stage.seconds):>6}  {'failed' if stage.code else 'ok'}"
        for stage in (*stages, total)
    )


def main(texts: Iterable[str]) -> int:
    """The exit code is 1 if any stage failed."""
    done = [run(stage) for stage in [Stage.read(text) for text in texts]]
    print(f"\n--- minutes:seconds\n{table(done)}", flush=True)
    return int(any(stage.code for stage in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
