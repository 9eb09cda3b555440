"""What `clients.hosts` starts on each host: it takes orders, sends its share of a load, and returns the results."""

from __future__ import annotations

import base64
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from paceline.core.errors import InputError
from paceline.load import processes
from paceline.load.generator import socket_limit
from paceline.load.live import Line
from paceline.load.quality import RequestKind, boot, calibrate
from paceline.load.task import read_payloads, read_task
from paceline.remote.agent import Orders
from paceline.version import VERSION

Words = dict[str, Any]


class ClientAgent:
    """Obeys, one order after the other."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._cores = sorted(os.sched_getaffinity(0))  # to send from
        self._other = self._cores[-1]  # for the null server of a calibration
        self._payloads: Words = {}  # what tasks send, as received last

    def serve(self) -> None:
        """Until the orders end."""
        self._orders.obey(
            {
                "hello": self._hello,
                "clock": lambda _order: {"clock": time.monotonic_ns()},
                "calibrate": self._calibrate,
                "reach": self._reach,
                "payloads": self._keep_payloads,
                "send": self._send,
            }
        )

    def _hello(self, order: Words) -> Words:
        """Describe this host; on the machine of the server its cores are left alone."""
        if order["boot"] and order["boot"] == boot():
            self._cores, self._other = order["load_cores"], order["server_cores"][0]
        return {"hello": {"version": VERSION, "cores": len(self._cores), "boot": boot()}}

    def _calibrate(self, order: Words) -> Words:
        kind = RequestKind(order["size"], order["grpc"], order.get("client", "python"))
        return {"ceiling": asdict(calibrate((self._cores[0], self._other), kind))}

    def _reach(self, order: Words) -> Words:
        try:
            socket.create_connection((order["host"], order["port"]), timeout=10.0).close()
        except OSError as error:
            message = f"cannot reach the server at {order['host']}, port {order['port']}: {error}"
            raise InputError("unreachable-server", message, key="clients.hosts") from None
        return {}

    def _keep_payloads(self, order: Words) -> Words:
        self._payloads = read_payloads(order["data"])
        return {}

    def _send(self, order: Words) -> Words:
        tasks = [read_task(message) for message in order["tasks"]]
        limit = socket_limit(len(tasks))
        tasks = [
            replace(task, **self._payloads, parent=os.getpid(), cpu=self._cores[i % len(self._cores)], limit=limit)
            for i, task in enumerate(tasks)
        ]

        def start() -> int:
            """When to start, once all workers are ready."""
            self._orders.say({"ready": True})
            start_order = self._orders.next()
            if start_order is None:
                raise SystemExit("the start was cancelled")
            return int(start_order["at"])

        def tell(lines: list[Line]) -> None:
            self._orders.say({"live": lines})

        results = processes.run(tasks, order["longest"], lambda: not self._orders.stop.is_set(), start, tell)
        return {"results": base64.b64encode(results.packed()).decode()}


def main() -> None:
    """Serve on the streams that the remote shell connects."""
    with suppress(BrokenPipeError):
        ClientAgent(Orders.of_streams()).serve()


if __name__ == "__main__":
    main()
