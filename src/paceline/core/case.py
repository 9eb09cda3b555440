"""A case: one benchmark with one concrete set of parameters, on one target."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Category(StrEnum):
    """What kind of thing a benchmark measures."""

    COMPUTE = "compute"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    STORAGE = "storage"
    TRAINING = "training"
    INFERENCE = "inference"
    PARALLEL = "parallel"
    SERVING = "serving"
    HARNESS = "harness"


_OF_MODELS = frozenset({Category.TRAINING, Category.INFERENCE, Category.PARALLEL, Category.SERVING})
_ORDER = {category.value: place for place, category in enumerate(Category)}


def is_micro(category: str) -> bool:
    """Whether its benchmarks measure one operation each; so do those of a category that somebody added."""
    return category not in _OF_MODELS and category not in (Category.HARNESS, "", "other")


def is_of_model(category: str) -> bool:
    """Whether its benchmarks measure whole models."""
    return category in _OF_MODELS


def section_order(category: str) -> tuple[bool, int]:
    """Where its section stands in a report: models, what is under them, then the categories of others."""
    return not is_of_model(category), _ORDER.get(category, len(_ORDER))


# Parameters that have another name than in earlier versions, by benchmark: suites and records may have the earlier one.
RENAMED: dict[str, dict[str, str]] = {
    "collective": {"hosts": "hostfile"},
    "rdma": {"peer": "remote_host"},
    "tcp": {"hosts": "endpoints", "peer": "remote_host"},
}


def current_names(benchmark: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a benchmark's parameters under the names that these have now."""
    renamed = RENAMED.get(benchmark, {})
    return {renamed.get(name, name): value for name, value in values.items()}


Origin = Literal["local", "network"]
_KEYED = json.JSONEncoder(sort_keys=True, default=str)


class Case(BaseModel):
    """One benchmark with one concrete set of parameters: all of them, after defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int  # number in the run, from 0
    benchmark: str
    parameters: dict[str, Any]
    title: str  # what tells this case from its neighbours, for people
    target: str = "cpu"  # cpu, or KIND:INDEX: cuda:0, cuda:*
    ranks: int = Field(default=1, ge=1)
    timeout: float = 600.0
    memory_limit: int | None = None  # bytes of host memory for all its processes on a machine; None for nearly all
    repeat: int = 1  # which repetition, from 1
    position: int | None = None  # place in the order of measuring, from 0; None where that is the order of the suite
    require: bool = False  # whether it is a failure that the machine cannot do it
    expected: float | None = None  # seconds that it would take by its own account
    sends: str = ""  # what it sends to a server, in words
    category: str = "other"  # what kind of benchmark it is, for reports
    origin: Origin = "local"  # a case from the network may not import a user's code
    env: dict[str, str] = Field(default_factory=dict)  # variables of its processes
    superbench: str = ""  # the name of its benchmark in a config of SuperBench's, with its note
    at_once: bool = False  # measured at the same time as the same work on the other devices
    power_limit: float | None = None  # watts that its devices may draw while it runs; None leaves it as it is
    clock_limit: float | None = None  # megahertz that their cores run at most while it runs
    trace: str = ""  # the file that a trace of its steps goes to; without one none is taken

    @model_validator(mode="after")
    def _has_current_names(self) -> Self:
        """A case of an earlier version is the same work as one of this version."""
        if self.benchmark in RENAMED:
            current = current_names(self.benchmark, self.parameters)
            self.parameters.clear()  # in its place, since the case is frozen
            self.parameters.update(current)
        return self

    @property
    def key(self) -> str:
        """The same for the same work, in this run and in any other."""
        what = [self.benchmark, self.parameters, self.target, self.ranks, *([self.env] if self.env else [])]
        what += [self.limits] if self.limits else []
        return hashlib.sha256(_KEYED.encode(what).encode()).hexdigest()[:16]

    @property
    def limits(self) -> str:
        """What its devices are held to, in words; empty where nothing is."""
        power = f"{self.power_limit:g} W" if self.power_limit is not None else ""
        clock = f"{self.clock_limit:g} MHz" if self.clock_limit is not None else ""
        return ", ".join(filter(None, (power, clock)))

    @property
    def work_key(self) -> tuple[str, str, str, int, int]:
        """The same for the same work on any device of a kind, in one repetition."""
        kind = self.target.partition(":")[0]
        return (
            self.benchmark,
            _KEYED.encode([self.parameters, self.env, self.superbench, self.limits]),
            kind,
            self.ranks,
            self.repeat,
        )


def measuring_order(cases: Iterable[Case]) -> list[Case]:
    """The cases as they are measured: those of one place, a case and its peer, by their numbers."""
    return sorted(cases, key=lambda case: (case.position or 0, case.index))
