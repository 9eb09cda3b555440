"""Hangs in a native call that holds the interpreter's lock, with a process of its own beside it."""

from __future__ import annotations

import ctypes
import subprocess

from paceline.core.benchmark import Benchmark, Context
from paceline.core.parameters import Parameters
from paceline.core.record import Result
from paceline_test_plugin.benchmarks._step_time import STEP_TIME, report

LONG = 1000


class Hang(Benchmark[Parameters]):
    """Never comes back, and hears no signal handler of Python."""

    name = "hang"
    summary = "sleeps in C with the lock held"
    Parameters = Parameters
    metrics = (STEP_TIME,)
    primary = "step_time"

    def measure(self, parameters: Parameters, context: Context) -> Result:
        subprocess.Popen(["sleep", str(LONG)])
        report(context, 0.25)
        ctypes.PyDLL(None).sleep(LONG)
        raise AssertionError("unreachable")
