"""BentoML: services in worker processes, with batching that learns its delay."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.benchmarks.serving.servers._environment import Requirements
from paceline.benchmarks.serving.servers._exporting import AppServer, WorkerAppSettings
from paceline.benchmarks.serving.servers._program import HOST


class BentoMl(AppServer):
    """A service of ours decodes the body and runs the model in ONNX Runtime."""

    name = "bentoml"
    summary = "BentoML with ONNX Runtime; HTTP, adaptive batching"
    requirements = Requirements(
        server="bentoml",
        packages=("bentoml==1.4.39", "onnxruntime==1.31.1"),
        shown=("bentoml", "onnxruntime", "onnxruntime-gpu"),
    )
    Settings = WorkerAppSettings
    apps = ("bentoml_app.py", "onnx_model.py")
    path = "/infer"
    ready_path = "/readyz"

    def _command(self) -> Sequence[str]:
        self._write_config()
        start = [str(self.python), "-m", "bentoml", "serve", "bentoml_app:Paceline", "--working-dir", str(self.folder)]
        return [*start, "--host", HOST, "--port", str(self.port)]

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"BENTOML_HOME": str(self.folder / "bentoml"), "BENTOML_DO_NOT_TRACK": "True"}
