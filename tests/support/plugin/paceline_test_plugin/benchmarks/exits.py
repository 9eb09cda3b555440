"""Leaves without a word."""

from __future__ import annotations

import os

from paceline.core.benchmark import Benchmark, Context
from paceline.core.parameters import Parameters
from paceline.core.record import Result
from paceline_test_plugin.benchmarks._step_time import STEP_TIME


class ExitsParameters(Parameters):
    """With which code."""

    code: int = 3
    """Exit code of the process"""


class Exits(Benchmark[ExitsParameters]):
    """Ends its process by itself."""

    name = "exits"
    summary = "leaves with an exit code"
    Parameters = ExitsParameters
    metrics = (STEP_TIME,)
    primary = "step_time"

    def measure(self, parameters: ExitsParameters, context: Context) -> Result:
        os._exit(parameters.code)
