"""Crashes in native code."""

from __future__ import annotations

import ctypes
import os
from typing import Literal

from paceline.core.benchmark import Benchmark, Context
from paceline.core.parameters import Parameters
from paceline.core.record import Result
from paceline_test_plugin.benchmarks._step_time import STEP_TIME, report


class CrashParameters(Parameters):
    """Which way."""

    how: Literal["abort", "segfault"] = "abort"
    """Which way to crash"""


class Crash(Benchmark[CrashParameters]):
    """Ends by a signal of its own making."""

    name = "crash"
    summary = "aborts or reads where nothing is"
    Parameters = CrashParameters
    metrics = (STEP_TIME,)
    primary = "step_time"

    def measure(self, parameters: CrashParameters, context: Context) -> Result:
        report(context, 0.25)
        os.write(2, b"the last words of native code\n")
        if parameters.how == "abort":
            os.abort()
        ctypes.string_at(0)
        raise AssertionError("unreachable")
