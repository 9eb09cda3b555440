"""Checks for silent errors in idle gaps: a follower with nothing to do gets one, at most once in an interval."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from paceline.service.admission import document_of
from paceline.service.engines.base import FollowerState
from paceline.service.jobs import Job, MachineNeeds
from paceline.service.scheduler.state import ClusterState, Follower

SUITE = "silent-errors"
TAG = "idle-check"
LOWEST_PRIORITY = -100


class IdleChecks:
    """Knows when each follower was checked; none is before it was there for a whole interval."""

    def __init__(self, every: timedelta | None) -> None:
        self._every = every  # None: never
        self._checked: dict[str, datetime] = {}

    def due(self, cluster: ClusterState, here: Mapping[str, FollowerState], now: datetime) -> list[Job]:
        """The checks to start now: for no follower that a job waits for, so that one waits for one check at most."""
        if self._every is None:
            return []
        inside = [state for name, state in here.items() if name in cluster.followers]
        late = [state for state in inside if now - self._checked.setdefault(state.id, now) >= self._every]
        idle = [state for state in late if not state.draining and _is_idle(cluster, cluster.followers[state.id])]
        self._checked |= {state.id: now for state in idle}
        return [_check(state, now) for state in idle]


def _is_idle(cluster: ClusterState, follower: Follower) -> bool:
    """Whether it runs nothing, and nothing waits for it; what a quota holds, or has too few machines here, does not."""
    waiting = cluster.queues[follower.shape]
    return not follower.running and not any(needs.allows(follower) and cluster.can_run(needs) for needs in waiting)


def _check(follower: FollowerState, now: datetime) -> Job:
    alike = Counter(zip(follower.gpus, follower.gpu_memory_gib, strict=True))  # the whole node comes with all others
    return Job(
        id=f"idle-{secrets.token_hex(6)}",
        name=SUITE,
        suite=document_of(SUITE),
        needs=MachineNeeds(follower=follower.id, whole_node=True, gpus=max(alike.values(), default=0)),
        priority=LOWEST_PRIORITY,
        tags=(TAG,),
        submitted_by=TAG,
        submitted_at=now,
        state_at=now,
    )
