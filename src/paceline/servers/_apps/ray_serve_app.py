"""A model in ONNX Runtime behind Ray Serve, on a Ray of its own."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

import ray
from onnx_model import Arrays, BadRequest, OnnxModel, read_config
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

CONFIG = read_config()


@serve.deployment(
    num_replicas=CONFIG["workers"],
    ray_actor_options={"num_cpus": 0},
    # Ray's own limit of 5 would keep batches small.
    max_ongoing_requests=max(100, 4 * CONFIG["max_batch"]),
    logging_config={"enable_access_log": False},
)
class Paceline:
    """Decodes each request, and runs several together if that is configured."""

    def __init__(self) -> None:
        self.model = OnnxModel(CONFIG)

    async def __call__(self, request: Request) -> Response:
        try:
            arrays = self.model.decode(await request.json())
        except (BadRequest, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        outputs = await self.together(arrays) if CONFIG["max_batch"] > 1 else self.model.run(arrays)
        return JSONResponse(self.model.encode(outputs))

    @serve.batch(max_batch_size=CONFIG["max_batch"], batch_wait_timeout_s=CONFIG["max_delay"])
    async def together(self, requests: list[Arrays]) -> list[Arrays]:
        return self.model.run_together(requests)


def main(temporary: str) -> None:
    options: dict[str, Any] = {
        "address": "local",
        "include_dashboard": False,
        "object_store_memory": 100 * 1024 * 1024,
        "log_to_driver": True,
        "_node_ip_address": CONFIG["host"],
        "_temp_dir": temporary,
    }
    ray.init(**options)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())  # after Ray has set its own
    serve.start(http_options={"host": CONFIG["host"], "port": CONFIG["port"], "location": "HeadOnly"})
    serve.run(Paceline.bind(), name="paceline", route_prefix="/infer")
    (Path(__file__).parent / "deployed").touch()  # the proxy reports that it is healthy before that
    stopped.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
