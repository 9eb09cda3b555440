"""PyTriton: NVIDIA's Triton with Python functions as models, as a package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.servers._program import MODEL, ExportedModelServer, with_onnxruntime


class PyTriton(ExportedModelServer):
    """A function of ours in Triton runs the model in ONNX Runtime."""

    name = "pytriton"
    summary = "Triton by PyTriton, with ONNX Runtime; HTTP and gRPC, dynamic batching"
    wires = ("kserve-binary", "kserve-json", "kserve-grpc")
    path = f"/v2/models/{MODEL}/infer"
    apps = ("pytriton_app.py", "onnx_model.py")
    requirements = with_onnxruntime(
        "pytriton",
        "nvidia-pytriton",
        "0.7.0",
        system_python=True,  # its Triton embeds the distribution's Python
        machines=("x86_64", "aarch64"),
    )
    ready_path = f"/v2/models/{MODEL}/ready"
    grace = 20.0

    _shared: frozenset[Path] = frozenset()

    def _command(self) -> Sequence[str]:
        return [*super()._command(), str(self._short_path())]

    def start(self) -> float:
        seconds = super().start()
        self._shared = frozenset(_shared_memory(self.processes()))
        return seconds

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
                _, folder, name = line.partition("/dev/shm/")
                if folder and not name.endswith("(deleted)"):
                    yield Path("/dev/shm") / name
