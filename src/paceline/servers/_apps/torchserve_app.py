"""A TorchScript model as a handler of TorchServe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from onnx_model import Arrays, BadRequest, JsonModel
from ts.utils.util import PredictionException


class Handler(JsonModel):
    """Answers every request of a batch; TorchServe hands over as many as have come."""

    def __init__(self) -> None:
        """Nothing is known before `initialize`."""

    def initialize(self, context: Any) -> None:
        # TorchServe copies the model's files elsewhere; the context says where.
        config = json.loads((Path(context.system_properties["model_dir"]) / "serve.json").read_text())
        super().__init__(config)
        torch.set_num_threads(config["threads"])
        self.device = torch.device(config["device"])
        self.module = torch.jit.load(config["path"], map_location=self.device)
        self.context = context

    @torch.inference_mode()
    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        try:
            requests = [self.decode(entry.get("body") or entry.get("data")) for entry in data]
        except BadRequest as error:
            raise PredictionException(str(error), 400) from None
        return [self.encode(outputs) for outputs in self.run_together(requests)]

    def run(self, arrays: Arrays) -> Arrays:
        outputs = self.module(*(torch.from_numpy(arrays[spec["name"]]).to(self.device) for spec in self.inputs))
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        return {name: output.cpu().numpy() for name, output in zip(self.outputs, outputs, strict=True)}
