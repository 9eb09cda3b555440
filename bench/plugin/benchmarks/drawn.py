"""Waits about as long as it is told to: how long exactly is drawn, and cannot be known before."""

from __future__ import annotations

import random
import time

from pydantic import Field

from paceline.core.benchmark import Benchmark, Context
from paceline.core.metric import Better, Metric
from paceline.core.parameters import Parameters
from paceline.core.quantity import Duration
from paceline.core.record import Measurement, Result

WAITED = Metric(name="waited", unit="s", better=Better.NEITHER, description="how long it waited")
SPREAD = 0.3  # deviation of the logarithm


class DrawnParameters(Parameters):
    """About how long, and which draw."""

    about: Duration = 1.0
    """The median"""
    draw: int = Field(default=-1, le=-1)
    """Which draw; below zero, so that one is not taken for nearer to another than a third is"""


class Drawn(Benchmark[DrawnParameters]):
    """Leaves the processor alone, so that several fit beside each other on one machine."""

    name = "drawn"
    summary = "waits, for a drawn time"
    Parameters = DrawnParameters
    metrics = (WAITED,)
    primary = "waited"

    def measure(self, parameters: DrawnParameters, context: Context) -> Result:
        seconds = parameters.about * random.Random(parameters.draw).lognormvariate(0.0, SPREAD)
        time.sleep(seconds)
        return Result(measurements=[Measurement.of_samples(WAITED, [seconds])])
