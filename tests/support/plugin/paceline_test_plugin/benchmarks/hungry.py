"""Wants more memory than it may have."""

from __future__ import annotations

import resource

import psutil

from paceline.core.benchmark import Benchmark, Context
from paceline.core.parameters import Parameters
from paceline.core.record import Result
from paceline_test_plugin.benchmarks._step_time import STEP_TIME

ALLOWED = 64 << 20
WANTED = 1 << 30


class Hungry(Benchmark[Parameters]):
    """Runs out of the host's memory."""

    name = "hungry"
    summary = "allocates beyond its limit"
    Parameters = Parameters
    metrics = (STEP_TIME,)
    primary = "step_time"

    def measure(self, parameters: Parameters, context: Context) -> Result:
        limit = psutil.Process().memory_info().vms + ALLOWED
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        bytearray(WANTED)
        raise AssertionError("unreachable")
