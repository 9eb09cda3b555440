"""What the server process is told: one JSON file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict

from paceline.benchmarks.serving.artifact import Artifact
from paceline.benchmarks.serving.processing import Processing
from paceline.core.parameters import OnOff

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
