"""The ceiling on the host memory of a case: kept by the kernel where it has a control group, otherwise watched here."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from paceline.core.quantity import show_size
from paceline.core.supervisor import descendants
from paceline.machine import container
from paceline.runner.control_group import ControlGroup
from paceline.runner.rank import HOST_PART

LOOK_SECONDS = 0.2
COUNT_SECONDS = 5.0  # between two counts of what the processes take
NEAR = 0.8  # of the ceiling: from here on they are counted at every look
_PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """Whether a case takes more than its ceiling."""

    def __init__(self, group: ControlGroup, limit: int | None, share: float = 1.0, *, is_local: bool = True) -> None:
        """Begin before the case starts; `share` is the part of its ranks on this machine that this runner starts.

        Only whoever is on this machine may set a limit above what is free.
        """
        self._group = group
        free = container.free_memory()
        ceilings: list[float] = [] if limit is None else [limit]
        if free is not None and (limit is None or not is_local):
            ceilings.append(HOST_PART * free)
        self.ceiling = int(share * min(ceilings)) if ceilings else None
        if self.ceiling is not None:
            group.bound_memory(self.ceiling)
        self._times_at_ceiling = group.times_at_ceiling()
        self._available = container.available_memory()
        self._looked_at = self._counted_at = time.monotonic()
        self._is_exceeded = False

    def is_exceeded(self, now: float, server: int | None) -> bool:
        """Whether all that the warm server forked takes too much; always False where the kernel sees to it."""
        if self.ceiling is None or server is None or self._group.bounds_memory or self._is_exceeded:
            return False
        if now < self._looked_at + LOOK_SECONDS:
            return False
        self._looked_at = now
        # To count takes milliseconds; what the machine has left shows in microseconds whether it is time to.
        available = container.available_memory()
        is_near = self._available is None or available is None or self._available - available > NEAR * self.ceiling
        if not is_near and now < self._counted_at + COUNT_SECONDS:
            return False
        self._counted_at = now
        self._is_exceeded = taken(server) > self.ceiling
        return self._is_exceeded

    def reason(self) -> str:
        """Why a case was ended for its memory."""
        if self.ceiling is None or not (self._is_exceeded or self._group.times_at_ceiling() > self._times_at_ceiling):
            return "the host's memory ran out; use a smaller batch"
        remedy = "use a smaller batch or size, or raise --memory-limit"
        return f"its processes wanted more host memory than its ceiling of {show_size(self.ceiling)}; {remedy}"


def taken(server: int) -> int:
    """Bytes of their own that all descendants of a process have in memory."""
    total = 0
    for pid in descendants(server):
        with suppress(OSError, ValueError, IndexError):
            _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
            total += (int(resident) - int(shared)) * _PAGE
    return total
