"""A parallel training with one thing wrong."""

from __future__ import annotations

import time
from typing import Any, Literal

from paceline.benchmarks.parallel._parameters import ParallelParameters
from paceline.benchmarks.parallel.parallel import Parallel

FAILING_STEP = 3


class FaultyParameters(ParallelParameters):
    """What is wrong."""

    fault: Literal["scale", "weight", "tie", "raise", "memory", "hang"] = "scale"
    """Every gradient too large, one data rank counted more, tied weights apart, or the last rank fails"""


class FaultyParallel(Parallel):
    """Like the real one, but for its trainer."""

    name = "faulty-parallel"
    summary = "trains something else, or fails"
    Parameters = FaultyParameters

    def trainer(self, training: Any, mesh: Any) -> Any:
        from paceline.benchmarks.parallel._trainer import ParallelTrainer

        parameters = training.parameters

        class FaultyTrainer(ParallelTrainer):
            steps = 0

            def scaled(self, loss: Any) -> Any:
                factor = {"scale": 2.0, "weight": 1.0 + self.mesh.data_rank}.get(parameters.fault, 1.0)
                return factor * super().scaled(loss)

            def step(self) -> Any:
                self.steps += 1
                if self.steps == FAILING_STEP and mesh.rank == parameters.layout.world_size - 1:
                    _fail(parameters.fault)
                return super().step()

        trainer = FaultyTrainer(parameters, training.device, mesh, compiled=training.compiled, capturable=False)
        if parameters.fault == "tie":
            trainer.optimizer._join_tied = lambda gradients: None  # type: ignore[method-assign]
        return trainer


def _fail(fault: str) -> None:
    if fault == "raise":
        raise ValueError("the last rank has a fault of its own")
    if fault == "memory":
        raise MemoryError("the last rank wants more than there is")
    if fault == "hang":
        time.sleep(3600)
