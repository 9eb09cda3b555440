"""Needs a library that nobody has."""

from __future__ import annotations

from paceline.core.benchmark import Benchmark, Context
from paceline.core.parameters import Parameters
from paceline.core.record import Result
from paceline_test_plugin.benchmarks._step_time import STEP_TIME


class Needs(Benchmark[Parameters]):
    """Imports what is not installed, when it is measured."""

    name = "needs"
    summary = "imports a missing library"
    Parameters = Parameters
    metrics = (STEP_TIME,)
    primary = "step_time"

    def measure(self, parameters: Parameters, context: Context) -> Result:
        import a_library_that_nobody_has  # noqa: F401

        raise AssertionError("unreachable")
