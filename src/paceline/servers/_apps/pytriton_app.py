"""A model in ONNX Runtime behind PyTriton, which brings a Triton of its own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx_model import Arrays, OnnxModel, read_config
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

ATTEMPTS = 3  # on a busy machine Triton may ask for an instance before that listens, and gives up
LARGEST_REQUEST = 4096  # samples, where requests are not put together


def instance(config: dict[str, Any]) -> Callable[..., Arrays]:
    """A function with a session of its own."""
    model = OnnxModel(config)

    @batch
    def infer(**arrays: np.ndarray[Any, Any]) -> Arrays:
        return model.run(arrays)

    return infer


def tensors(specs: list[dict[str, Any]]) -> list[Tensor]:
    return [Tensor(name=spec["name"], dtype=np.dtype(spec["dtype"]), shape=tuple(spec["shape"][1:])) for spec in specs]


def main() -> None:
    # Without it Triton and the memory that it shares with this process would be left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    config = read_config()
    together = config["max_batch"] > 1
    batching = ModelConfig(max_batch_size=LARGEST_REQUEST, batcher=None)
    if together:
        delay = DynamicBatcher(max_queue_delay_microseconds=round(config["max_delay"] * 1e6))
        batching = ModelConfig(max_batch_size=config["max_batch"], batcher=delay)
    addresses = TritonConfig(
        http_address=config["host"],
        http_port=config["port"],
        grpc_address=config["host"],
        grpc_port=config["grpc_port"],
        allow_metrics=False,
    )
    for attempt in reversed(range(ATTEMPTS)):
        with Triton(config=addresses, workspace=Path(sys.argv[1]) / f"triton-{attempt}") as triton:
            try:
                triton.bind(
                    model_name=config["model"],
                    infer_func=[instance(config) for _ in range(config["workers"])],
                    inputs=tensors(config["inputs"]),
                    outputs=tensors(config["outputs"]),
                    config=batching,
                )
            except Exception as error:
                if attempt and "Connection refused" in str(error):
                    continue
                raise
            triton.serve()
            return


if __name__ == "__main__":
    main()
