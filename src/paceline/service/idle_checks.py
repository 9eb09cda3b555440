"""Checks for silent errors in idle gaps: a follower with nothing to do gets one, at most once in an interval."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta

from paceline.service.admission import document_of
from paceline.service.engines.base import FollowerState
from paceline.service.jobs import Job, MachineNeeds
from paceline.service.scheduler.state import ClusterState

SUITE = "silent-errors"
TAG = "idle-check"
LOWEST_PRIORITY = -100


class IdleChecks:
    """Knows when each follower was checked; none is before it was there for a whole interval."""

    def __init__(self, every: timedelta | None) -> None:
        self._every = every  # None: never
        self._checked: dict[str, datetime] = {}

    def due(self, cluster: ClusterState, here: Mapping[str, FollowerState], now: datetime) -> list[Job]:
        """The checks to start now: for nobody while a job waits, so that one that comes waits for one check at most."""
        if self._every is None:
            return []
        inside = [(name, state) for name, state in here.items() if name in cluster.followers]
        late = [one for one in inside if now - self._checked.setdefault(one[0], now) >= self._every]
        if not late or any(True for _ in cluster.waiting):
            return []
        idle = [(name, state) for name, state in late if not cluster.followers[name].running and not state.draining]
        self._checked |= {name: now for name, _ in idle}
        return [_check(state, now) for _, state in idle]


def _check(follower: FollowerState, now: datetime) -> Job:
    return Job(
        id=f"idle-{secrets.token_hex(6)}",
        name=SUITE,
        suite=document_of(SUITE),
        needs=MachineNeeds(follower=follower.id, gpus=len(follower.gpus)),
        priority=LOWEST_PRIORITY,
        tags=(TAG,),
        submitted_by=TAG,
        submitted_at=now,
        state_at=now,
    )
