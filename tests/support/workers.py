"""Several real workers on this machine as the followers of one leader: a cluster on the loopback."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from paceline.service.engines.base import Assignment, AttemptKey, AttemptReport, FollowerGone, FollowerState
from paceline.service.follower.spool import Spool
from paceline.service.follower.worker import Worker


def end_all(worker: Worker) -> None:
    """End everything that measures there."""
    for attempt, spool in worker._spools.items():
        worker._signal(attempt, spool, signal.SIGKILL)
    for child in worker._children.values():
        child.wait()


class Workers:
    """An engine whose followers are workers with processes of their own, and can be cut off."""

    name = "workers"
    invitation = ""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._workers = {name: Worker(folder / name, name, address="127.0.0.1") for name in names}
        self.absent: set[str] = set()
        self.begun: list[tuple[str, AttemptKey]] = []

    def followers(self) -> Sequence[FollowerState]:
        return [worker.describe() for name, worker in self._workers.items() if name not in self.absent]

    def begin(self, follower: str, assignment: Assignment) -> None:
        self._reach(follower).begin(assignment)
        told = (follower, (assignment.job_id, assignment.attempt))
        if told not in self.begun:
            self.begun.append(told)

    def poll(self, follower: str, acknowledged: dict[AttemptKey, int]) -> Sequence[AttemptReport]:
        return self._reach(follower).poll(acknowledged)

    def cancel(self, follower: str, job_id: str, attempt: int) -> None:
        self._reach(follower).cancel(job_id, attempt)

    def close(self) -> None:
        pass

    def end_all(self) -> None:
        for worker in self._workers.values():
            end_all(worker)
        self._workers.clear()  # what forks for a worker ends when nobody holds it any more

    def spools(self, follower: str) -> list[Spool]:
        """The attempts that a follower has not been acknowledged for."""
        return [Spool(folder) for folder in sorted((self._folder / follower).iterdir())]

    def signal(self, follower: str, number: signal.Signals) -> None:
        """To the process that measures on a follower."""
        (spool,) = self.spools(follower)
        assert spool.process is not None
        os.kill(int(spool.process["pid"]), number)

    def _reach(self, follower: str) -> Worker:
        if follower in self.absent:
            raise FollowerGone("it is cut off")
        return self._workers[follower]
