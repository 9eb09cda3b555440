"""A model in ONNX Runtime behind LitServe."""

from __future__ import annotations

from typing import Any

import litserve
from fastapi import HTTPException
from onnx_model import Arrays, BadRequest, OnnxModel, read_config


class OnnxApi(litserve.LitAPI):
    """Decodes and encodes in the worker, as LitServe does."""

    def setup(self, device: str) -> None:
        self.model = OnnxModel(read_config())

    # Without an annotation LitServe hands over the body; with one it would look for a parameter of the query.
    def decode_request(self, request) -> Arrays:  # type: ignore[no-untyped-def]
        try:
            return self.model.decode(request)
        except BadRequest as error:
            raise HTTPException(400, str(error)) from None

    def batch(self, inputs: list[Arrays]) -> list[Arrays]:
        return inputs

    def predict(self, inputs: Arrays | list[Arrays]) -> Arrays | list[Arrays]:
        return self.model.run_together(inputs) if isinstance(inputs, list) else self.model.run(inputs)

    def unbatch(self, output: list[Arrays]) -> list[Arrays]:
        return output

    def encode_response(self, output: Arrays) -> dict[str, Any]:
        return self.model.encode(output)


if __name__ == "__main__":
    config = read_config()
    api = OnnxApi(
        max_batch_size=config["max_batch"], batch_timeout=config["max_delay"] if config["max_batch"] > 1 else 0.0
    )
    # The engine knows the device; who asks decides how long an answer may take.
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=config["workers"], timeout=False)
    server.run(host=config["host"], port=config["port"], generate_client_file=False, log_level="warning")
