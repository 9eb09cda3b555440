"""A TorchScript model as a handler of TorchServe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ts.utils.util import PredictionException


class Handler:
    """Answers every request of a batch; TorchServe hands over as many as have come."""

    def initialize(self, context: Any) -> None:
        # TorchServe copies the model's files elsewhere; the context says where.
        self.config = json.loads((Path(context.system_properties["model_dir"]) / "serve.json").read_text())
        torch.set_num_threads(self.config["threads"])
        self.device = torch.device(self.config["device"])
        self.module = torch.jit.load(self.config["path"], map_location=self.device)
        self.context = context

    @torch.inference_mode()
    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        requests = [self.decode(entry.get("body") or entry.get("data")) for entry in data]
        ends = np.cumsum([len(request[0]) for request in requests])[:-1]
        same = len({tuple(tensor.shape[1:] for tensor in request) for request in requests}) == 1
        if len(requests) > 1 and same:
            outputs = self.run([torch.cat(parts) for parts in zip(*requests, strict=True)])
            rows = zip(*(np.split(output, ends) for output in outputs), strict=True)
            return [self.encode(list(row)) for row in rows]
        return [self.encode(self.run(request)) for request in requests]

    def run(self, inputs: list[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
        outputs = self.module(*(tensor.to(self.device) for tensor in inputs))
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        return [output.cpu().numpy() for output in outputs]

    def decode(self, body: Any) -> list[torch.Tensor]:
        try:
            body = json.loads(body) if isinstance(body, bytes | bytearray | str) else body
            sent = {tensor["name"]: tensor for tensor in body["inputs"]}
            tensors = []
            for spec in self.config["inputs"]:
                tensor = sent[spec["name"]]
                array = np.asarray(tensor["data"], spec["dtype"]).reshape(tensor["shape"])
                tensors.append(torch.from_numpy(array))
            return tensors
        except (KeyError, TypeError, ValueError) as error:
            raise PredictionException(f"not a request for this model: {error}", 400) from None

    def encode(self, outputs: list[np.ndarray[Any, Any]]) -> dict[str, Any]:
        tensors = [
            {"name": spec["name"], "datatype": spec["datatype"], "shape": list(array.shape)}
            | {"data": array.ravel().tolist()}
            for spec, array in zip(self.config["outputs"], outputs, strict=True)
        ]
        return {"model_name": self.config["model"], "outputs": tensors}
