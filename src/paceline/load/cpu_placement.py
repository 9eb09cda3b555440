"""Cores for the load generator and cores for the server, so that neither slows the other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CORES_FOR_EACH = 8  # one of so many sends
MOST_SENDING = 8


@dataclass(frozen=True)
class Place:
    """Who runs where; a machine with one core has both on it."""

    server: tuple[int, ...]
    load: tuple[int, ...]

    @classmethod
    def of_machine(cls, workers: int | None = None) -> Place:
        """The last cores for sending, all others for serving; the same for every load, which keeps them comparable."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) == 1:
            return cls(tuple(cores), tuple(cores))
        taken = workers or min(MOST_SENDING, max(1, len(cores) // CORES_FOR_EACH))
        taken = min(taken, len(cores) - 1)
        return cls(tuple(cores[:-taken]), tuple(cores[-taken:]))

    @classmethod
    def without_load(cls) -> Place:
        """All cores for serving: the load comes from other machines."""
        return cls(tuple(sorted(os.sched_getaffinity(0))), ())

    def is_shared(self, processes: Iterable[int]) -> bool:
        """Whether one of the server's processes may run where the load comes from."""
        for pid in processes:
            try:
                allowed = os.sched_getaffinity(pid)
            except OSError:  # it has ended
                continue
            if allowed & set(self.load):
                return True
        return False


@contextmanager
def on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    """What is started within runs on these cores, and so does what it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
