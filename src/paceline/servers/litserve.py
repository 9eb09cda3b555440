"""LitServe: a FastAPI server in front of worker processes, with batching."""

from __future__ import annotations

from typing import ClassVar

from paceline.servers._environment import Requirements
from paceline.servers._exporting import AppSettings, ExportedModel
from paceline.servers._program import Program
from paceline.servers.base import ServerSettings


class LitServe(Program):
    """An app of ours decodes the body and runs the model in ONNX Runtime."""

    name = "litserve"
    summary = "LitServe with ONNX Runtime; HTTP, batching"
    Settings: ClassVar[type[ServerSettings]] = AppSettings
    wires = ("kserve-json",)
    model_format = ExportedModel("/predict", apps=("litserve_app.py", "onnx_model.py"))
    requirements = Requirements(
        server="litserve",
        packages=("litserve==0.2.19", "onnxruntime==1.31.1"),
        shown=("litserve", "onnxruntime", "onnxruntime-gpu"),
    )
    ready_path = "/health"
