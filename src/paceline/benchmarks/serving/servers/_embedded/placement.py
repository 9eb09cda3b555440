"""Which CPUs each instance computes on, and with how many threads."""

from __future__ import annotations

import os
from collections.abc import Sequence


def shares(instances: int, cpus: Sequence[int] | None, available: Sequence[int]) -> list[tuple[int, ...] | None]:
    """CPUs for each instance: disjoint where they suffice, else all for each; None leaves it to the system."""
    if cpus is None and (instances == 1 or len(available) < instances):
        return [None] * instances
    chosen = list(available if cpus is None else cpus)
    if len(chosen) < instances:
        return [tuple(chosen)] * instances
    each, more = divmod(len(chosen), instances)
    parts: list[tuple[int, ...] | None] = []
    for index in range(instances):
        count = each + (index < more)
        parts.append(tuple(chosen[:count]))
        chosen = chosen[count:]
    return parts


def threads_for(share: Sequence[int] | None, threads: int | None, available: Sequence[int]) -> int:
    """As many threads as CPUs, unless the user says otherwise."""
    return threads or len(share or available)


def available_cpus() -> list[int]:
    """The CPUs that this process may use."""
    return sorted(os.sched_getaffinity(0))
