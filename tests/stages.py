"""Runs the stages of `make test` one after the other and prints how long each took, and all of them together.

A stage whose name begins with `+` runs beside the next one, for it leaves a processor unused; what it prints comes when
both have ended.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Stage:
    """A named command and, once it has run, its exit code and its time."""

    name: str
    command: str
    is_beside: bool = False
    code: int = 0
    seconds: float = 0.0
    printed: str = ""

    @classmethod
    def read(cls, text: str) -> Stage:
        """`name: command`, as the Makefile writes it."""
        name, separator, command = text.partition(": ")
        if not separator:
            raise ValueError(f"'{text}' is not 'name: command'")
        return cls(name.removeprefix("+"), command.strip(), name.startswith("+"))


def run(stage: Stage) -> Stage:
    """A stage that fails does not keep the others from running: a person who waited learns everything at once."""
    if not stage.is_beside:
        print(f"\n--- {stage.name}: {stage.command}", flush=True)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if stage.is_beside else {}
    begin = time.monotonic()
    done = subprocess.run(stage.command, shell=True, check=False, text=True, **streams)  # type: ignore[call-overload]
    return replace(stage, code=done.returncode, seconds=time.monotonic() - begin, printed=done.stdout or "")


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d}"


def table(stages: Sequence[Stage]) -> str:
    """A line for each stage and one for all; what ran beside another took no time of its own."""
    seconds = sum(stage.seconds for stage in stages if not stage.is_beside)
    total = Stage("total", "", code=max((stage.code for stage in stages), default=0), seconds=seconds)
    width = max(len(stage.name) for stage in (*stages, total))
    return "\n".join(
        f"{stage.name:<{width}}  {clock(stage.seconds):>6}  {'failed' if stage.code else 'ok'}"
        for stage in (*stages, total)
    )


def main(texts: Iterable[str]) -> int:
    """The exit code is 1 if any stage failed."""
    done: list[Stage] = []
    beside: list[Future[Stage]] = []
    with ThreadPoolExecutor() as pool:
        for stage in [Stage.read(text) for text in texts]:
            if stage.is_beside:
                beside.append(pool.submit(run, stage))
                continue
            begin = time.monotonic()
            ended = run(stage)
            others = [one.result() for one in beside]
            for other in others:
                print(f"\n--- {other.name}: {other.command}\n{other.printed}", flush=True)
            done += [*others, replace(ended, seconds=time.monotonic() - begin)]
            beside.clear()
    print(f"\n--- minutes:seconds\n{table(done)}", flush=True)
    return int(any(stage.code for stage in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
