"""Misbehaves: writes into foreign descriptors, leaves processes behind, prints or takes too much."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field

from paceline.core.benchmark import Benchmark, Context
from paceline.core.parameters import Parameters
from paceline.core.quantity import Duration, Size
from paceline.core.record import Measurement, Result
from paceline_test_plugin.benchmarks._step_time import STEP_TIME, report


class UnrulyParameters(Parameters):
    """Which way, and how much."""

    how: Literal["scribble", "daemon", "print", "grow", "helper-grows"] = "scribble"
    """What it does"""
    size: Size = Field(default=1 << 20, ge=0)
    """How much it prints or takes"""
    lasts: Duration = 0.0
    """How long it goes on after that"""


class Unruly(Benchmark[UnrulyParameters]):
    """Misbehaves, and has a result nevertheless."""

    name = "unruly"
    summary = "misbehaves"
    Parameters = UnrulyParameters
    metrics = (STEP_TIME,)
    primary = "step_time"

    def measure(self, parameters: UnrulyParameters, context: Context) -> Result:
        report(context, 0.25)
        {
            "scribble": _scribble,
            "daemon": _leave_daemon,
            "print": lambda: _print(parameters.size),
            "grow": lambda: _grow(parameters.size),
            "helper-grows": lambda: _let_helper_grow(parameters.size),
        }[parameters.how]()
        time.sleep(parameters.lasts)
        return Result(measurements=[Measurement.of_samples(STEP_TIME, [0.25, 0.25, 0.25])])


def _scribble() -> None:
    for descriptor in range(3, 1100):
        for rubbish in (b"rubbish", b'.{"result":', b".[1]", b"", b'+{"a":1}'):
            with suppress(OSError):
                os.write(descriptor, rubbish)


def _leave_daemon() -> None:
    """As daemons are made: by a child that is gone at once, in a session of its own."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 10
    while not any(_name(entry) == "sleep" for entry in Path("/proc").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.005)


def _name(entry: Path) -> str:
    with suppress(OSError):
        return (entry / "comm").read_text().strip()
    return ""


def _print(size: int) -> None:
    os.write(1, b"the first line\n")
    block = b"x" * 63 + b"\n"
    for _ in range(size // (1 << 20)):
        os.write(1, block * (1 << 14))
    os.write(1, b"the last line\n")
    os._exit(3)


def _grow(size: int) -> None:
    pieces = [bytearray(os.urandom(4096) * 256) for _ in range(size >> 20)]
    time.sleep(60)
    pieces.clear()


def _let_helper_grow(size: int) -> None:
    program = f"x = bytearray({size}); x[::4096] = b'1' * len(x[::4096])"
    subprocess.run(["python3", "-c", program], check=True)
