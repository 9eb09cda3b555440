"""Tasks of a worker of the load generator."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.load.request import Endpoint, Wire
from paceline.load.task import WorkerTask


def task_of(**more: Any) -> WorkerTask:
    values: dict[str, Any] = {"payloads": [b"x"], "metadata": [()], "samples": np.array([1, 2, 3], np.int32)}
    return WorkerTask(**{"parent": 1, "endpoint": endpoint_at(9)} | values | more)


def endpoint_at(port: int, wire: Wire = "kserve-json") -> Endpoint:
    return Endpoint(wire, "127.0.0.1", port, "/", "x")


def times(*seconds: float) -> Any:
    return np.array(seconds, np.float64)
