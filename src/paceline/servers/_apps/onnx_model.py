"""A model in ONNX Runtime, and the JSON body of the open inference protocol for servers that do not know it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, "np.ndarray[Any, Any]"]


def read_config() -> dict[str, Any]:
    """What Paceline wrote next to this file: the model and how to serve it."""
    config: dict[str, Any] = json.loads((Path(__file__).parent / "serve.json").read_text())
    return config


class BadRequest(ValueError):
    """A body that is not a request for this model."""


class JsonModel:
    """A model whose requests and answers are JSON; `run` takes and gives arrays by name, the batch their first axis."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.name = config["model"]
        self.inputs = config["inputs"]
        self.outputs = [output["name"] for output in config["outputs"]]
        self.datatypes = {output["name"]: output["datatype"] for output in config["outputs"]}

    def run(self, arrays: Arrays) -> Arrays:
        """The outputs for one batch."""
        raise NotImplementedError

    def run_together(self, requests: list[Arrays]) -> list[Arrays]:
        """The outputs for several requests, as one batch where their shapes allow it."""
        shapes = {tuple((name, array.shape[1:]) for name, array in arrays.items()) for arrays in requests}
        if len(requests) == 1 or len(shapes) > 1:
            return [self.run(arrays) for arrays in requests]
        joined = {name: np.concatenate([arrays[name] for arrays in requests]) for name in requests[0]}
        ends = np.cumsum([len(next(iter(arrays.values()))) for arrays in requests])[:-1]
        parts = {name: np.split(output, ends) for name, output in self.run(joined).items()}
        return [{name: part[row] for name, part in parts.items()} for row in range(len(requests))]

    def decode(self, body: Any) -> Arrays:
        """The arrays of a request's JSON body, read or not."""
        try:
            body = json.loads(body) if isinstance(body, bytes | bytearray | str) else body
            sent = {tensor["name"]: tensor for tensor in body["inputs"]}
            arrays = {}
            for spec in self.inputs:
                tensor = sent[spec["name"]]
                arrays[spec["name"]] = np.asarray(tensor["data"], spec["dtype"]).reshape(tensor["shape"])
            return arrays
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"not a request for this model: {type(error).__name__}: {error}") from None

    def encode(self, arrays: Arrays) -> dict[str, Any]:
        """The JSON body of an answer."""
        outputs = [
            {"name": name, "datatype": self.datatypes[name], "shape": list(array.shape), "data": array.ravel().tolist()}
            for name, array in arrays.items()
        ]
        return {"model_name": self.name, "outputs": outputs}


class OnnxModel(JsonModel):
    """One session of ONNX Runtime."""

    def __init__(self, config: dict[str, Any]) -> None:
        import onnxruntime as ort

        super().__init__(config)
        options = ort.SessionOptions()
        options.intra_op_num_threads = config["threads"]
        # Threads that spin between requests would be seen as the server's work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        provider = "CPUExecutionProvider"
        arguments: list[dict[str, Any]] = [{}]
        if config["device"] != "cpu":
            provider = "CUDAExecutionProvider"
            arguments = [{"device_id": int(config["device"].partition(":")[2] or 0)}]
        self.session = ort.InferenceSession(config["path"], options, [provider], arguments)
        if self.session.get_providers()[0] != provider:
            raise RuntimeError(f"this ONNX Runtime has no {provider}; it offers {ort.get_available_providers()}")

    def run(self, arrays: Arrays) -> Arrays:
        return dict(zip(self.outputs, self.session.run(self.outputs, arrays), strict=True))
