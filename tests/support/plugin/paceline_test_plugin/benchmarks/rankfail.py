"""One rank fails while the others wait for it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Literal

from paceline.benchmarks.ranks import join
from paceline.core.benchmark import Benchmark, Context, Progress
from paceline.core.parameters import Parameters
from paceline.core.record import Result
from paceline.devices import kind_named
from paceline_test_plugin.benchmarks._step_time import STEP_TIME


class RankFailParameters(Parameters):
    """How the second rank fails."""

    how: Literal["raise", "abort", "kill", "both", "sleep"] = "raise"
    """How it fails"""


class RankFail(Benchmark[RankFailParameters]):
    """A collective that one rank never joins."""

    name = "rankfail"
    summary = "the second rank fails, the others wait in a barrier"
    Parameters = RankFailParameters
    metrics = (STEP_TIME,)
    primary = "step_time"
    distributed = True

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        return ("torch",)

    def measure(self, parameters: RankFailParameters, context: Context) -> Result:
        from torch import distributed

        with join(context, kind_named("cpu")):
            store = distributed.distributed_c10d._get_default_store()  # type: ignore[no-untyped-call]
            if parameters.how == "sleep":
                context.report(Progress(phase="sleeping"))
            if context.rank == 1:
                time.sleep(3600 if parameters.how == "sleep" else 0.3)  # so that the others are inside the barrier
                store.set("failing", "1")
                if parameters.how in ("raise", "both"):
                    raise ValueError("rank one has a fault of its own")
                if parameters.how == "abort":
                    os.abort()
                os.kill(os.getpid(), 9)
            if parameters.how == "both":  # a moment later, and for a reason of its own
                store.wait(["failing"])
                time.sleep(0.5)
                raise ValueError("rank zero has one, too")
            distributed.barrier()
        raise AssertionError("unreachable")
