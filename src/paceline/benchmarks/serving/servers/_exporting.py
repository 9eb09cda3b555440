"""Servers that run an exported model: what they are told about it, and how requests are put together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from paceline.benchmarks.serving.artifact import Artifact, Format
from paceline.benchmarks.serving.protocol.kserve_grpc import METHOD as GRPC_METHOD
from paceline.benchmarks.serving.servers import _apps
from paceline.benchmarks.serving.servers._process import free_port
from paceline.benchmarks.serving.servers._program import HOST, Program, PythonProgram, PythonSettings
from paceline.benchmarks.serving.servers.base import Endpoint, Need, ServerSettings, Wire
from paceline.benchmarks.serving.tensors import TensorSpec
from paceline.core.errors import InputError
from paceline.core.quantity import Duration

MODEL = "model"  # what every server calls what it serves


class WorkerSettings(ServerSettings):
    """Of a server that runs a model in workers."""

    workers: int = Field(default=1, ge=1, le=1024)
    """How many run the model side by side"""
    threads: int | None = Field(default=None, ge=1)
    """Threads of each worker's engine; the cores divided by the workers unless set"""
    max_batch: int = Field(default=1, ge=1, le=65_536)
    """Requests that are run together, at most; 1 runs each by itself"""


class BatchingSettings(WorkerSettings):
    """Of a server that can be told how long to wait for a batch."""

    max_delay: Duration = Field(default=0.005, gt=0, le=3600)
    """How long the first request of a batch waits for others, at most"""


class ExportingServer(Program):
    """A program that runs a model which Paceline has exported."""

    format: ClassVar[Format] = "onnx"
    path: ClassVar[str]  # of an inference request

    settings: WorkerSettings
    artifact: Artifact

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a request holds; only after `prepare()`."""
        return self.artifact.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What an answer holds; only after `prepare()`."""
        return self.artifact.outputs

    @property
    def threads(self) -> int:
        """Of one worker's engine."""
        return self.settings.threads or max(1, len(os.sched_getaffinity(0)) // self.settings.workers)

    @property
    def max_delay(self) -> float | None:
        """In seconds; None where the server decides itself."""
        return self.settings.max_delay if isinstance(self.settings, BatchingSettings) else None

    def prepare(self) -> None:
        from paceline.benchmarks.serving.export import export

        need = self.need
        self.say(f"exporting {need.model}")
        self.artifact = export(
            need.model,
            scale=need.scale,
            format=self.format,
            precision=need.precision,
            seed=need.seed,
            device=need.device,
            allow_import=need.allow_import,
        )

    def endpoint(self, wire: Wire) -> Endpoint:
        return Endpoint(wire=wire, host=HOST, port=self.port, path=self.path, model=MODEL)

    def _facts(self) -> dict[str, Any]:
        settings = self.settings
        facts: dict[str, Any] = {
            "engine": "onnxruntime" if self.format == "onnx" else "torch",
            "workers": settings.workers,
        }
        facts |= {"threads": self.threads, "max_batch": settings.max_batch}
        if settings.max_batch > 1 and self.max_delay is not None:
            facts["max_delay"] = self.max_delay
        return facts


class GrpcServer(ExportingServer):
    """One that also speaks gRPC, at a port of its own."""

    grpc_port = 0

    def _choose_ports(self) -> None:
        self.port, self.grpc_port = free_port(), free_port()

    def endpoint(self, wire: Wire) -> Endpoint:
        if wire == "kserve-grpc":
            return Endpoint(wire=wire, host=HOST, port=self.grpc_port, path=GRPC_METHOD, model=MODEL)
        return super().endpoint(wire)


class WorkerAppSettings(WorkerSettings, PythonSettings):
    """Of a Python package that decides itself how long to wait for a batch."""


class AppSettings(BatchingSettings, PythonSettings):
    """Of a Python package with batching."""


class AppServer(PythonProgram, ExportingServer):
    """A Python package that runs an app of ours, which is copied into the server's folder with what it is to serve."""

    Settings: ClassVar[type[ServerSettings]] = AppSettings
    wires: ClassVar[tuple[Wire, ...]] = ("kserve-json",)
    apps: ClassVar[tuple[str, ...]]  # files of _apps; the first is started

    settings: WorkerAppSettings | AppSettings  # what both bases want

    @classmethod
    def check(cls, settings: ServerSettings, need: Need) -> None:
        super().check(settings, need)
        assert isinstance(settings, PythonSettings)
        own = settings.python is not None or cls.requirements.has_own_python
        if need.device != "cpu" and not (own or cls.requirements.torch):
            raise InputError(
                f"{cls.name} on {need.device}: the environment made here has ONNX Runtime for the CPU; "
                f"run it with target: cpu, or name an interpreter with onnxruntime-gpu as 'python'"
            )

    def prepare(self) -> None:
        PythonProgram.prepare(self)
        ExportingServer.prepare(self)
        for name in self.apps:
            shutil.copyfile(Path(_apps.__path__[0]) / name, self.folder / name)

    def _command(self) -> Sequence[str]:
        self._write_config()
        return [str(self.python), str(self.folder / self.apps[0])]

    def _write_config(self) -> None:
        config = {
            "model": MODEL,
            "path": str(self.artifact.path),
            "inputs": [_tensor(spec) for spec in self.artifact.inputs],
            "outputs": [_tensor(spec) for spec in self.artifact.outputs],
            "device": self.need.device,
            "host": HOST,
            "port": self.port,
            "workers": self.settings.workers,
            "threads": self.threads,
            "max_batch": self.settings.max_batch,
            "max_delay": self.max_delay,
        }
        if isinstance(self, GrpcServer):
            config["grpc_port"] = self.grpc_port
        (self.folder / "serve.json").write_text(json.dumps(config, indent=2))


def _tensor(spec: TensorSpec) -> dict[str, object]:
    return spec.metadata | {"dtype": spec.dtype.name}
