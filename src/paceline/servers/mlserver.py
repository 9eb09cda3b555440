"""MLServer: the open inference protocol over HTTP and gRPC, with adaptive batching."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from paceline.servers._program import HOST, MODEL, AppSettings, ExportedModelServer, with_onnxruntime


class MlServer(ExportedModelServer):
    """A runtime of ours in MLServer runs the model in ONNX Runtime."""

    name = "mlserver"
    summary = "MLServer with ONNX Runtime; HTTP and gRPC, adaptive batching"
    wires = ("kserve-json", "kserve-grpc")
    path = f"/v2/models/{MODEL}/infer"
    apps = ("mlserver_app.py", "onnx_model.py")
    requirements = with_onnxruntime("mlserver", "mlserver", "1.7.1")
    ready_path = f"/v2/models/{MODEL}/ready"

    settings: AppSettings

    def _command(self) -> Sequence[str]:
        self._write_app_config()
        settings = self.settings
        server = {
            "debug": False,  # it logs every request otherwise
            "host": HOST,
            "http_port": self.port,
            "grpc_port": self.grpc_port,
            "grpc_max_message_length": -1,
            "metrics_endpoint": None,
            "parallel_workers": settings.workers,
        }
        model: dict[str, Any] = {
            "name": MODEL,
            "implementation": "mlserver_app.OnnxRuntime",
            "inputs": [spec.metadata for spec in self.artifact.inputs],
            "outputs": [spec.metadata for spec in self.artifact.outputs],
        }
        if settings.max_batch > 1:
            model |= {"max_batch_size": settings.max_batch, "max_batch_time": settings.max_delay}
        (self.folder / "settings.json").write_text(json.dumps(server, indent=2))
        (self.folder / "model-settings.json").write_text(json.dumps(model, indent=2))
        return [str(self.python), "-c", "from mlserver.cli import main; main()", "start", str(self.folder)]
