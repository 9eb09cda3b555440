"""Servers that run an exported model: their settings, and what an app of ours in them reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from paceline.core.errors import InputError
from paceline.core.quantity import Duration
from paceline.load.kserve_grpc import METHOD as GRPC_METHOD
from paceline.load.request import Endpoint, Wire
from paceline.servers import _apps
from paceline.servers._environment import Requirements
from paceline.servers._program import HOST, MODEL, Program, PythonSettings
from paceline.servers.base import Artifact, Format, Need, ServerSettings
from paceline.servers.export import export


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
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.workers)


class BatchingSettings(WorkerSettings):
    """Of a server that takes the longest wait for a batch as a setting."""

    max_delay: Duration = Field(default=0.005, gt=0, le=3600)
    """How long the first request of a batch waits for others, at most"""


class WorkerAppSettings(WorkerSettings, PythonSettings):
    """Of a Python package that decides itself how long to wait for a batch."""


class AppSettings(BatchingSettings, PythonSettings):
    """Of a Python package with batching."""


class ExportedModelServer(Program):
    """Serves a model that Paceline has exported, by an app of ours if the server needs one."""

    Settings: ClassVar[type[ServerSettings]] = AppSettings
    path: ClassVar[str]  # of an inference request
    format: ClassVar[Format] = "onnx"
    apps: ClassVar[tuple[str, ...]] = ()  # files of _apps, copied into the server's folder; the first is started

    settings: WorkerSettings
    artifact: Artifact

    @classmethod
    def check(cls, settings: ServerSettings, need: Need) -> None:
        super().check(settings, need)
        requirements = cls.requirements
        if requirements is None or requirements.torch or requirements.has_own_python or need.device == "cpu":
            return
        assert isinstance(settings, PythonSettings)
        if settings.python is None:
            message = (
                f"{cls.name} on {need.device}: the environment made here has ONNX Runtime for the CPU; "
                f"run it with target: cpu, or name an interpreter with onnxruntime-gpu as 'python'"
            )
            raise InputError("needs-cpu", message, key="target", value=need.device, suggestion="cpu")

    def prepare(self) -> None:
        super().prepare()
        self.say(f"exporting {self.need.model}")
        self.artifact = export(self.need, self.format)
        for name in self.apps:
            shutil.copyfile(Path(_apps.__path__[0]) / name, self.folder / name)

    def endpoint(self, wire: Wire) -> Endpoint:
        if wire == "kserve-grpc":
            return Endpoint(wire=wire, host=HOST, port=self.grpc_port, path=GRPC_METHOD, model=MODEL)
        return Endpoint(wire=wire, host=HOST, port=self.port, path=self.path, model=MODEL)

    def _command(self) -> Sequence[str]:
        self._write_app_config()
        return [str(self.python), str(self.folder / self.apps[0])]

    def _batching(self) -> dict[str, Any]:
        settings = self.settings
        delay = settings.max_delay if isinstance(settings, BatchingSettings) else None  # None: the server decides
        sizes = {"workers": settings.workers, "threads": settings.threads_of_worker, "max_batch": settings.max_batch}
        return sizes | {"max_delay": delay}

    def _facts(self) -> dict[str, Any]:
        facts = {"engine": "onnxruntime" if self.format == "onnx" else "torch"} | self._batching()
        if facts["max_batch"] == 1 or facts["max_delay"] is None:
            del facts["max_delay"]
        return facts

    def _write_app_config(self) -> None:
        """What an app of ours reads when it is started."""
        config = {
            "model": MODEL,
            "path": str(self.artifact.path),
            "inputs": [spec.metadata | {"dtype": spec.dtype.name} for spec in self.artifact.inputs],
            "outputs": [spec.metadata | {"dtype": spec.dtype.name} for spec in self.artifact.outputs],
            "device": self.need.device,
            "host": HOST,
            "port": self.port,
            **({"grpc_port": self.grpc_port} if self.grpc_port else {}),
            **self._batching(),
        }
        (self.folder / "serve.json").write_text(json.dumps(config, indent=2))


def with_onnxruntime(server: str, package: str, version: str, **more: Any) -> Requirements:
    """A Python package in which an app of ours runs the model in ONNX Runtime."""
    name = package.partition("[")[0]
    packages, shown = (f"{package}=={version}", "onnxruntime==1.31.1"), (name, "onnxruntime", "onnxruntime-gpu")
    return Requirements(server=server, packages=packages, shown=shown, **more)
