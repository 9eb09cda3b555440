"""Followers on this machine: nothing to install, for one machine or to try things out."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from paceline.service.engines import EngineKind
from paceline.service.engines.base import Assignment, AttemptKey, AttemptReport, FollowerState
from paceline.service.follower.worker import Worker


class LocalEngine:
    """The leader's own machine as its one follower; each attempt is a process that outlives the leader."""

    invitation = ""

    def __init__(self, folder: Path, labels: Sequence[str] = ()) -> None:
        self._worker = Worker(folder, socket.gethostname() or "here", labels, address="127.0.0.1")

    def followers(self) -> Sequence[FollowerState]:
        return [self._worker.describe()]

    def begin(self, follower: str, assignment: Assignment) -> None:
        self._worker.begin(assignment)

    def poll(self, follower: str, acknowledged: dict[AttemptKey, int]) -> Sequence[AttemptReport]:
        return self._worker.poll(acknowledged)

    def cancel(self, follower: str, job_id: str, attempt: int) -> None:
        self._worker.cancel(job_id, attempt)

    def close(self) -> None:
        """Nothing to close: what measures goes on, and reports to the next leader."""


ENGINE = EngineKind("local", lambda options: LocalEngine(options.folder / "follower", options.labels))
