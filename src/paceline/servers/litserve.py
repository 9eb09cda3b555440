"""LitServe: a FastAPI server in front of worker processes, with batching."""

from __future__ import annotations

from paceline.servers._program import ExportedModelServer, with_onnxruntime


class LitServe(ExportedModelServer):
    """An app of ours decodes the body and runs the model in ONNX Runtime."""

    name = "litserve"
    summary = "LitServe with ONNX Runtime; HTTP, batching"
    wires = ("kserve-json",)
    path = "/predict"
    apps = ("litserve_app.py", "onnx_model.py")
    requirements = with_onnxruntime("litserve", "litserve", "0.2.19")
    ready_path = "/health"
