"""PyTriton: NVIDIA's Triton with Python functions as models, as a package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from paceline.servers._environment import Requirements
from paceline.servers._exporting import AppSettings, ExportedModel
from paceline.servers._program import MODEL, Program
from paceline.servers.base import ServerSettings, Started


class PyTriton(Program):
    """A function of ours in Triton runs the model in ONNX Runtime."""

    name = "pytriton"
    summary = "Triton by PyTriton, with ONNX Runtime; HTTP and gRPC, dynamic batching"
    Settings: ClassVar[type[ServerSettings]] = AppSettings
    model_format = ExportedModel(f"/v2/models/{MODEL}/infer", apps=("pytriton_app.py", "onnx_model.py"))
    wires = ("kserve-binary", "kserve-json", "kserve-grpc")
    requirements = Requirements(
        server="pytriton",
        packages=("nvidia-pytriton==0.7.0", "onnxruntime==1.31.1"),
        shown=("nvidia-pytriton", "onnxruntime", "onnxruntime-gpu"),
        system_python=True,  # its Triton embeds the distribution's Python
        machines=("x86_64", "aarch64"),
    )
    ready_path = f"/v2/models/{MODEL}/ready"
    grace = 20.0

    _shared: frozenset[Path] = frozenset()

    def _command(self) -> Sequence[str]:
        return [*super()._command(), str(self._short_path())]

    def start(self) -> Started:
        started = super().start()
        self._shared = frozenset(_shared_memory(self.processes()))
        return started

    def stop(self) -> None:
        shared = self._shared | frozenset(_shared_memory(self.processes()))
        super().stop()
        for left in shared:  # it outlives processes that were killed
            left.unlink(missing_ok=True)
        self._shared = frozenset()


def _shared_memory(pids: list[int]) -> Iterator[Path]:
    """The named memory that these processes have mapped."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                _, found, name = line.partition("/dev/shm/")
                if found and not name.endswith("(deleted)"):
                    yield Path("/dev/shm") / name
