"""BentoML: services in worker processes, with batching that learns its delay."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.servers._program import HOST, ExportedModelServer, WorkerAppSettings, with_onnxruntime


class BentoMl(ExportedModelServer):
    """A service of ours decodes the body and runs the model in ONNX Runtime."""

    name = "bentoml"
    summary = "BentoML with ONNX Runtime; HTTP, adaptive batching"
    Settings = WorkerAppSettings
    wires = ("kserve-json",)
    path = "/infer"
    apps = ("bentoml_app.py", "onnx_model.py")
    requirements = with_onnxruntime("bentoml", "bentoml", "1.4.39")
    ready_path = "/readyz"

    def _command(self) -> Sequence[str]:
        self._write_app_config()
        start = [str(self.python), "-m", "bentoml", "serve", "bentoml_app:Paceline", "--working-dir", str(self.folder)]
        return [*start, "--host", HOST, "--port", str(self.port)]

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"BENTOML_HOME": str(self.folder / "bentoml"), "BENTOML_DO_NOT_TRACK": "True"}
