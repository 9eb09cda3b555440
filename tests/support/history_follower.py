"""A follower in a process of its own, asked over a socket: arguments are its folder and its port."""

from __future__ import annotations

import socketserver
import sys
from pathlib import Path
from typing import Any

from paceline.service.engines.base import Assignment
from paceline.service.follower.worker import Worker
from paceline.store import codec


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    worker = Worker(folder, folder.name, address="127.0.0.1")

    def answer(asked: dict[str, Any]) -> Any:
        if asked["call"] == "describe":
            return worker.describe().model_dump()
        if asked["call"] == "begin":
            return worker.begin(Assignment.model_validate(asked["assignment"]))
        if asked["call"] == "cancel":
            return worker.cancel(asked["job"], asked["attempt"])
        acknowledged = {(job, attempt): number for job, attempt, number in asked["acknowledged"]}
        return [report.model_dump() for report in worker.poll(acknowledged)]

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if line.endswith(b"\n"):
                self.wfile.write(codec.dumps(answer(codec.loads(line))).encode() + b"\n")

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), Handler) as server:
        print("following", flush=True)
        server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
