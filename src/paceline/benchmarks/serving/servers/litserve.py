"""LitServe: a FastAPI server in front of worker processes, with batching."""

from __future__ import annotations

from paceline.benchmarks.serving.servers._environment import Requirements
from paceline.benchmarks.serving.servers._exporting import AppServer


class LitServe(AppServer):
    """An app of ours decodes the body and runs the model in ONNX Runtime."""

    name = "litserve"
    summary = "LitServe with ONNX Runtime; HTTP, batching"
    requirements = Requirements(
        server="litserve",
        packages=("litserve==0.2.19", "onnxruntime==1.31.1"),
        shown=("litserve", "onnxruntime", "onnxruntime-gpu"),
    )
    apps = ("litserve_app.py", "onnx_model.py")
    path = "/predict"
    ready_path = "/health"
