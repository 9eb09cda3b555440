"""Raises an exception of its own."""

from __future__ import annotations

import os

from paceline.core.benchmark import Benchmark, Context
from paceline.core.parameters import Parameters
from paceline.core.record import Result
from paceline_test_plugin.benchmarks._step_time import STEP_TIME


class Raises(Benchmark[Parameters]):
    """Has a mistake, and says in its message where it lives."""

    name = "raises"
    summary = "raises"
    Parameters = Parameters
    metrics = (STEP_TIME,)
    primary = "step_time"

    def measure(self, parameters: Parameters, context: Context) -> Result:
        raise ValueError(f"no weights in {os.environ.get('HOME')}/weights")
