"""MLServer: the open inference protocol over HTTP and gRPC, with adaptive batching."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from paceline.servers._environment import Requirements
from paceline.servers._exporting import AppSettings, ExportedModel, write_app_config
from paceline.servers._program import HOST, MODEL, Program
from paceline.servers.base import Artifact, ServerSettings


class MlServer(Program):
    """A runtime of ours in MLServer runs the model in ONNX Runtime."""

    name = "mlserver"
    summary = "MLServer with ONNX Runtime; HTTP and gRPC, adaptive batching"
    Settings: ClassVar[type[ServerSettings]] = AppSettings
    model_format = ExportedModel(f"/v2/models/{MODEL}/infer", apps=("mlserver_app.py", "onnx_model.py"))
    wires = ("kserve-json", "kserve-grpc")
    requirements = Requirements(
        server="mlserver",
        packages=("mlserver==1.7.1", "onnxruntime==1.31.1"),
        shown=("mlserver", "onnxruntime", "onnxruntime-gpu"),
    )
    ready_path = f"/v2/models/{MODEL}/ready"

    settings: AppSettings
    artifact: Artifact

    def _command(self) -> Sequence[str]:
        write_app_config(self)
        self._write("settings.json", self._server_settings())
        self._write("model-settings.json", self._model_settings())
        return [str(self.python), "-c", "from mlserver.cli import main; main()", "start", str(self.folder)]

    def _server_settings(self) -> dict[str, Any]:
        return {
            "debug": False,  # it logs every request otherwise
            "host": HOST,
            "http_port": self.port,
            "grpc_port": self.grpc_port,
            "grpc_max_message_length": -1,
            "metrics_endpoint": None,
            "parallel_workers": self.settings.workers,
        }

    def _model_settings(self) -> dict[str, Any]:
        settings = self.settings
        batching = {"max_batch_size": settings.max_batch, "max_batch_time": settings.max_delay}
        return {
            "name": MODEL,
            "implementation": "mlserver_app.OnnxRuntime",
            "inputs": [spec.metadata for spec in self.artifact.inputs],
            "outputs": [spec.metadata for spec in self.artifact.outputs],
        } | (batching if settings.max_batch > 1 else {})

    def _write(self, name: str, content: dict[str, Any]) -> None:
        (self.folder / name).write_text(json.dumps(content, indent=2))
