"""Cannot do what it is asked for on any machine."""

from __future__ import annotations

from paceline.core.benchmark import Benchmark, Context
from paceline.core.errors import Unsupported
from paceline.core.parameters import Parameters
from paceline.core.record import Result
from paceline_test_plugin.benchmarks._step_time import STEP_TIME


class Refuses(Benchmark[Parameters]):
    """Finds the machine wanting."""

    name = "refuses"
    summary = "is unsupported everywhere"
    Parameters = Parameters
    metrics = (STEP_TIME,)
    primary = "step_time"

    def measure(self, parameters: Parameters, context: Context) -> Result:
        raise Unsupported("this machine has no flux capacitor; use one that has")
