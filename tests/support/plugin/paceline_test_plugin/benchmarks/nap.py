"""Sleeps in steps and says how long each took."""

from __future__ import annotations

import os
import time

from pydantic import Field

from paceline.core.benchmark import Benchmark, Context
from paceline.core.parameters import Parameters
from paceline.core.quantity import Duration
from paceline.core.record import Measurement, Result
from paceline_test_plugin.benchmarks._step_time import STEP_TIME, report


class NapParameters(Parameters):
    """How long to sleep, and in how many steps."""

    duration: Duration = 0.05
    """Time to sleep in all"""
    steps: int = Field(default=5, ge=1)
    """In how many steps"""


class Nap(Benchmark[NapParameters]):
    """Does nothing for a while."""

    name = "nap"
    summary = "sleeps"
    Parameters = NapParameters
    metrics = (STEP_TIME,)
    primary = "step_time"

    def measure(self, parameters: NapParameters, context: Context) -> Result:
        samples = []
        factor = float(os.environ.get("PACELINE_TEST_NAP_FACTOR", "1"))  # of a machine that is to be slow
        for _ in range(parameters.steps):
            begun = time.monotonic()
            time.sleep(factor * parameters.duration / parameters.steps)
            samples.append(time.monotonic() - begun)
            report(context, samples[-1])
        return Result(measurements=[Measurement.of_samples(STEP_TIME, samples)])
