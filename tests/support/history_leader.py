"""A leader with its API in a process of its own, whose followers are asked over sockets and whose clock can be set.

Arguments are the URL of its store, the port of its API, the file that has the error of its clock in seconds, the lease,
a planted defect or '-', and a name with a port for each follower.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from paceline.service.api import server
from paceline.service.api.app import create_app
from paceline.service.engines.base import Assignment, AttemptKey, AttemptReport, FollowerGone, FollowerState
from paceline.service.job_store import JobStore
from paceline.service.jobs import Job
from paceline.service.leader import Leader
from paceline.store import codec, open_store
from paceline.web.pages import pages_of

CALL_SECONDS = 1.5


class SocketEngine:
    """Followers at ports of the loopback device; one that was seen once is missing only when it does not answer."""

    invitation = ""

    def __init__(self, ports: dict[str, int]) -> None:
        self._ports = ports
        self._seen: dict[str, FollowerState] = {}

    def followers(self) -> Sequence[FollowerState]:
        for name in self._ports:
            if name not in self._seen:
                try:
                    self._seen[name] = FollowerState.model_validate(self._ask(name, "describe"))
                except FollowerGone:
                    continue
        return list(self._seen.values())

    def begin(self, follower: str, assignment: Assignment) -> None:
        self._ask(follower, "begin", assignment=assignment.model_dump())

    def poll(self, follower: str, acknowledged: dict[AttemptKey, int]) -> Sequence[AttemptReport]:
        named = [[job, attempt, number] for (job, attempt), number in acknowledged.items()]
        return [AttemptReport.model_validate(one) for one in self._ask(follower, "poll", acknowledged=named)]

    def cancel(self, follower: str, job_id: str, attempt: int) -> None:
        self._ask(follower, "cancel", job=job_id, attempt=attempt)

    def close(self) -> None:
        """Each call has a connection of its own."""

    def _ask(self, follower: str, call: str, **more: Any) -> Any:
        try:
            with socket.create_connection(("127.0.0.1", self._ports[follower]), CALL_SECONDS) as connection:
                connection.sendall(codec.dumps({"call": call, **more}).encode() + b"\n")
                line = connection.makefile("rb").readline()
        except OSError as error:
            raise FollowerGone(f"{call}: {error}") from error
        if not line.endswith(b"\n"):
            raise FollowerGone(f"{call}: no whole answer")
        return codec.loads(line)


def plant(defect: str) -> None:
    """A defect that a checker of histories has to see."""
    if defect == "dropped acknowledgement":
        submit, count = JobStore.submit, iter(range(10**6))

        def forgetful(self: JobStore, job: Job) -> bool:
            return True if next(count) % 5 == 4 else submit(self, job)

        JobStore.submit = forgetful  # type: ignore[method-assign]
    elif defect != "-":
        raise ValueError(f"'{defect}' is no defect that can be planted")


def main() -> None:
    url, port, clock, lease, defect, *followers = sys.argv[1:]
    plant(defect)

    def now() -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(Path(clock).read_text() or 0))

    ports = {name: int(number) for name, number in (one.split("=") for one in followers)}
    listening = server.bind("127.0.0.1", int(port))
    with open_store(url) as store:
        lasting = timedelta(seconds=float(lease))
        leader = Leader(store, SocketEngine(ports), now=now, lease=lasting, elapsed=time.monotonic)
        pages = pages_of(leader, store, lambda records: "")
        app = create_app(leader, store, is_local=True, report=lambda records: "", pages=pages)
        server.serve(leader, app, listening, ready=lambda: print("leading", flush=True))


if __name__ == "__main__":
    main()
