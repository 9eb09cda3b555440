"""How the embedded server is set up: what it is given, and which CPUs each instance has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict

from paceline.core.parameters import OnOff
from paceline.servers.artifact import Artifact
from paceline.servers.processing import Processing

EngineName = Literal["null", "torch", "torch-compile", "torchscript", "torch-export", "onnxruntime", "openvino"]

GraphChoice = Annotated[Literal["auto", "off"], OnOff]


class Configuration(BaseModel):
    """Everything is decided; nothing here has a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str  # of the model, as clients say it
    artifact: Artifact
    engine: EngineName
    graph: GraphChoice
    device: str
    allow_import: bool
    host: str
    port: int  # 0 for a free one
    grpc_port: int | None  # None for no gRPC
    shared_memory: bool  # whether tensors may lie in memory of other processes of this machine
    processing: Processing | None  # of images or texts; None takes tensors
    max_batch: int
    max_delay: float  # seconds
    preferred: tuple[int, ...]
    max_queue: int
    instances: int
    threads: int | None
    cpus: tuple[int, ...] | None
    grace: float  # seconds to answer what is in work when asked to end


def shares(instances: int, cpus: Sequence[int] | None, available: Sequence[int]) -> list[tuple[int, ...] | None]:
    """CPUs for each instance: disjoint where they suffice, else all for each; None leaves it to the system."""
    if cpus is None and (instances == 1 or len(available) < instances):
        return [None] * instances
    chosen = list(available if cpus is None else cpus)
    if len(chosen) < instances:
        return [tuple(chosen)] * instances
    each, more = divmod(len(chosen), instances)
    parts: list[tuple[int, ...] | None] = []
    for index in range(instances):
        count = each + (index < more)
        parts.append(tuple(chosen[:count]))
        chosen = chosen[count:]
    return parts


def threads_for(share: Sequence[int] | None, threads: int | None, available: Sequence[int]) -> int:
    """As many threads as CPUs, unless the user says otherwise."""
    return threads or len(share or available)


def available_cpus() -> list[int]:
    """The CPUs that this process may use."""
    return sorted(os.sched_getaffinity(0))
