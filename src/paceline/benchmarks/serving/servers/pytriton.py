"""PyTriton: NVIDIA's Triton with Python functions as models, as a package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.benchmarks.serving.servers._environment import Requirements
from paceline.benchmarks.serving.servers._exporting import MODEL, AppServer, GrpcServer
from paceline.benchmarks.serving.servers.base import Started


class PyTriton(AppServer, GrpcServer):
    """A function of ours in Triton runs the model in ONNX Runtime."""

    name = "pytriton"
    summary = "Triton by PyTriton, with ONNX Runtime; HTTP and gRPC, dynamic batching"
    wires = ("kserve-binary", "kserve-json", "kserve-grpc")
    requirements = Requirements(
        server="pytriton",
        packages=("nvidia-pytriton==0.7.0", "onnxruntime==1.31.1"),
        shown=("nvidia-pytriton", "onnxruntime", "onnxruntime-gpu"),
        system_python=True,  # its Triton embeds the distribution's Python
        machines=("x86_64", "aarch64"),
    )
    apps = ("pytriton_app.py", "onnx_model.py")
    path = f"/v2/models/{MODEL}/infer"
    ready_path = f"/v2/models/{MODEL}/ready"
    grace = 20.0

    _shared: str = ""

    def _command(self) -> Sequence[str]:
        return [*super()._command(), str(self._short_path())]

    def start(self) -> Started:
        started = super().start()
        self._shared = f"pytrtion{self.processes()[0]}-*"  # as it is spelt
        return started

    def stop(self) -> None:
        super().stop()
        if self._shared:  # memory that outlives an app which was killed
            for left in Path("/dev/shm").glob(self._shared):
                left.unlink(missing_ok=True)
