"""A provider of one benchmark, which says what the process of a case looks like from inside."""

from __future__ import annotations

import os
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.case import Case
from paceline.core.metric import Metric
from paceline.core.parameters import Parameters
from paceline.core.record import Measurement, Result

PROVIDER = __name__
STEP_TIME = Metric(name="step_time", unit="s")


class ProbingParameters(Parameters):
    """What to do besides."""

    seconds: float = 0.0
    """How long to sleep before the end"""
    error: str = ""
    """What to raise at the end"""
    seed: int | None = None
    """Where random numbers begin"""


class Probing(Benchmark[ProbingParameters]):
    """Looks around."""

    name = "probing"
    summary = "looks around"
    Parameters = ProbingParameters
    metrics = (STEP_TIME,)
    primary = "step_time"
    distributed = True

    def measure(self, parameters: ProbingParameters, context: Context) -> Result:
        context.report(Progress(phase="measuring", metric="step_time", unit="s", samples=(0.25,)))
        facts: dict[str, Any] = {
            "descriptors": [str(Path(f"/proc/self/fd/{number}").readlink()) for number in range(3)],
            "memory": resource.getrlimit(resource.RLIMIT_DATA)[0],
            "random": random.random(),
            "folder": str(Path.cwd()),
            "temporary": tempfile.gettempdir(),
            "environment": dict(os.environ),
            "ranks": [context.rank, context.world_size, context.local_rank],
        }
        result = Result(measurements=[Measurement.of_samples(STEP_TIME, [0.25, 0.75])], facts=facts)
        context.keep(result)
        time.sleep(parameters.seconds)
        if parameters.error:
            raise ValueError(parameters.error)
        return result


def probing_case(index: int = 0, ranks: int = 1, **more: Any) -> Case:
    """A case of it."""
    return Case.model_validate(
        {"index": index, "benchmark": "probing", "parameters": {}, "title": "probing", "ranks": ranks, **more}
    )
