"""A benchmark: a name, typed parameters, the metrics it yields, and `measure()`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from paceline.core.case import Case
from paceline.core.metric import Metric
from paceline.core.parameters import Parameters
from paceline.core.record import Result

P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Progress:
    """Where a case stands while it runs; samples are those taken since the last report."""

    phase: str  # preparing, compiling, warming up, measuring, ...
    metric: str = ""
    unit: str = ""
    samples: tuple[float, ...] = ()
    work: float | None = None  # per sample, to show a rate
    rate_unit: str = ""


@dataclass(frozen=True)
class Context:
    """What a case's process knows beside its parameters."""

    case: Case
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    report: Callable[[Progress], None] = field(default=lambda _progress: None)
    keep: Callable[[Result], None] = field(default=lambda _result: None)  # this stands, whatever happens from now on
    began: float = field(default_factory=time.perf_counter)

    @property
    def target(self) -> str:
        """Where this rank runs; `cuda:*` and several ranks give each rank the device of its local rank."""
        target = self.case.target
        if target.startswith("cuda") and (target.endswith("*") or self.world_size > 1):
            return f"cuda:{self.local_rank}"
        return target


class Benchmark(ABC, Generic[P]):
    """Base of every benchmark; a subclass in a scanned module is registered by its `name`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    category: ClassVar[str] = "other"  # compute, memory, communication, storage, training, ...: a report's sections
    Parameters: ClassVar[type[Parameters]]
    metrics: ClassVar[tuple[Metric, ...]]
    primary: ClassVar[str]  # the metric that leads a report
    distributed: ClassVar[bool] = False  # whether several ranks may measure it together
    traceable: ClassVar[bool] = False  # whether it takes a trace of its steps where the case wants one

    @abstractmethod
    def measure(self, parameters: P, context: Context) -> Result:
        """Do the work and return what was seen; runs in a process of its own."""

    @classmethod
    def title(cls, parameters: P) -> str:
        """What tells this case from others, in a few words."""
        changed = parameters.model_dump(exclude_defaults=True, mode="json")
        return " ".join(f"{key}={value}" for key, value in changed.items())

    @classmethod
    def check(cls, parameters: P, case: Case) -> None:
        """Refuse, before anything runs, what parameters alone cannot tell to be wrong (raise InputError)."""

    @classmethod
    def ranks(cls, parameters: P) -> int | None:
        """How many ranks the parameters themselves call for; None leaves it to the suite and the target."""
        return None

    @classmethod
    def nodes(cls, parameters: P) -> int | None:
        """Over how many hosts the parameters themselves spread the ranks; None leaves it to where they are started."""
        return None

    @classmethod
    def imports(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """Heavy modules that the warm server should have imported before it forks this case."""
        return ()
