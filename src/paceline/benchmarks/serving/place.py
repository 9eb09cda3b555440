"""Cores for the load generator and cores for the server, so that neither slows the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Who runs where; a machine with one core has both on it."""

    server: tuple[int, ...]
    load: tuple[int, ...]

    @classmethod
    def of_machine(cls, workers: int | None = None) -> Place:
        """The last core, or as many as there are workers, for sending; all others for serving."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) == 1:
            return cls(tuple(cores), tuple(cores))
        taken = min(workers or 1, len(cores) - 1)
        return cls(tuple(cores[:-taken]), tuple(cores[-taken:]))

    @property
    def is_shared(self) -> bool:
        """Whether the two cannot be kept apart."""
        return bool(set(self.server) & set(self.load))


@contextmanager
def on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    """What is started within runs on these cores, and so does what it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
