"""Servers that run an exported model: what they are told about it, and how requests are put together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from paceline.core.errors import InputError
from paceline.core.quantity import Duration
from paceline.load.kserve_grpc import METHOD as GRPC_METHOD
from paceline.load.request import Endpoint, Wire
from paceline.load.tensors import TensorSpec
from paceline.servers import _apps
from paceline.servers._program import HOST, MODEL, ModelFormat, Program, PythonSettings
from paceline.servers.base import Format, Need, ServerSettings


class WorkerSettings(ServerSettings):
    """Of a server that runs a model in workers."""

    workers: int = Field(default=1, ge=1, le=1024)
    """How many run the model side by side"""
    threads: int | None = Field(default=None, ge=1)
    """Threads of each worker's engine; the cores divided by the workers unless set"""
    max_batch: int = Field(default=1, ge=1, le=65_536)
    """Requests that are run together, at most; 1 runs each by itself"""

    @property
    def threads_of_worker(self) -> int:
        """Of one worker's engine."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.workers)

    @property
    def batch_delay(self) -> float | None:
        """In seconds; None where the server decides itself."""
        return None


class BatchingSettings(WorkerSettings):
    """Of a server that can be told how long to wait for a batch."""

    max_delay: Duration = Field(default=0.005, gt=0, le=3600)
    """How long the first request of a batch waits for others, at most"""

    @property
    def batch_delay(self) -> float | None:
        return self.max_delay


class WorkerAppSettings(WorkerSettings, PythonSettings):
    """Of a Python package that decides itself how long to wait for a batch."""


class AppSettings(BatchingSettings, PythonSettings):
    """Of a Python package with batching."""


@dataclass(frozen=True)
class ExportedModel(ModelFormat):
    """A model that Paceline has exported, and the app of ours that serves it if the server needs one."""

    path: str  # of an inference request
    format: Format = "onnx"
    apps: tuple[str, ...] = ()  # files of _apps, copied into the server's folder; the first is started

    def check(self, server: type[Program], settings: ServerSettings, need: Need) -> None:
        requirements = server.requirements
        if requirements is None or need.device == "cpu":
            return
        assert isinstance(settings, PythonSettings)
        own = settings.python is not None or requirements.has_own_python
        if not (own or requirements.torch):
            message = (
                f"{server.name} on {need.device}: the environment made here has ONNX Runtime for the CPU; "
                f"run it with target: cpu, or name an interpreter with onnxruntime-gpu as 'python'"
            )
            raise InputError("needs-cpu", message, key="target", value=need.device, suggestion="cpu")

    def prepare(self, server: Program) -> None:
        from paceline.servers.export import export

        need = server.need
        server.say(f"exporting {need.model}")
        server.artifact = export(
            need.model,
            scale=need.scale,
            format=self.format,
            precision=need.precision,
            seed=need.seed,
            device=need.device,
            allow_import=need.allow_import,
        )
        for name in self.apps:
            shutil.copyfile(Path(_apps.__path__[0]) / name, server.folder / name)

    def endpoint(self, server: Program, wire: Wire) -> Endpoint:
        if wire == "kserve-grpc":
            return Endpoint(wire=wire, host=HOST, port=server.grpc_port, path=GRPC_METHOD, model=MODEL)
        return Endpoint(wire=wire, host=HOST, port=server.port, path=self.path, model=MODEL)

    def command(self, server: Program) -> Sequence[str]:
        write_app_config(server)
        return [str(server.python), str(server.folder / self.apps[0])]

    def facts(self, server: Program) -> dict[str, Any]:
        settings = server.settings
        assert isinstance(settings, WorkerSettings)
        facts: dict[str, Any] = {
            "engine": "onnxruntime" if self.format == "onnx" else "torch",
            "workers": settings.workers,
        }
        facts |= {"threads": settings.threads_of_worker, "max_batch": settings.max_batch}
        if settings.max_batch > 1 and settings.batch_delay is not None:
            facts["max_delay"] = settings.batch_delay
        return facts


def write_app_config(server: Program) -> None:
    """What an app of ours reads when it is started."""
    artifact, settings = server.artifact, server.settings
    assert artifact is not None
    assert isinstance(settings, WorkerSettings)
    config = {
        "model": MODEL,
        "path": str(artifact.path),
        "inputs": [_tensor(spec) for spec in artifact.inputs],
        "outputs": [_tensor(spec) for spec in artifact.outputs],
        "device": server.need.device,
        "host": HOST,
        "port": server.port,
        "workers": settings.workers,
        "threads": settings.threads_of_worker,
        "max_batch": settings.max_batch,
        "max_delay": settings.batch_delay,
    }
    if server.grpc_port:
        config["grpc_port"] = server.grpc_port
    (server.folder / "serve.json").write_text(json.dumps(config, indent=2))


def _tensor(spec: TensorSpec) -> dict[str, object]:
    return spec.metadata | {"dtype": spec.dtype.name}
