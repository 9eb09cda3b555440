"""What a leader removes by itself: logs and jobs that were over long ago. Results are removed only when asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from paceline.service.job_store import FINAL
from paceline.store import retention
from paceline.store.store import Store

_PAUSE = timedelta(hours=1)  # between two looks, when nothing is left to remove
_STATES = [state.value for state in FINAL]


@dataclass(frozen=True)
class Policy:
    """How long what is over stays; None is for ever."""

    jobs: timedelta | None = timedelta(days=90)
    logs: timedelta | None = timedelta(days=30)


class Pruning:
    """Removes a little at each look, so that nobody waits for it."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self._next: datetime | None = None
        self._has_pruned = False

    def look(self, now: datetime) -> None:
        """Remove some of what is due, and give the room back once nothing more is."""
        if self._next is not None and now < self._next:
            return
        pruned = 0
        if self._policy.logs is not None:
            pruned += retention.prune_logs(self._store, _STATES, now - self._policy.logs)
        if self._policy.jobs is not None:
            pruned += retention.prune_jobs(self._store, _STATES, now - self._policy.jobs)
        if pruned:
            self._has_pruned = True
            return
        if self._has_pruned:
            retention.shrink(self._store, whole=False)
        self._has_pruned, self._next = False, now + _PAUSE
