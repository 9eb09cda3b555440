"""Tier two, at each follower: which of the tasks that it could run it takes next, and what it is drained for.

A wide task (several devices, a whole node, several nodes) for which there is no room when its turn comes has followers
drained for it, all that it needs in one step or none, so that two of them never wait for each other. Smaller tasks may
use a drained follower if they are over before it is expected to be empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, nsmallest
from itertools import count, islice

from paceline.service.scheduler.cluster import Cluster
from paceline.service.scheduler.order import Candidate, Queue, Rank
from paceline.service.scheduler.state import Follower, Placement, Reservation
from paceline.service.scheduler.tier_one import is_sooner_elsewhere, may_start_on, placed, with_room

# Draining wastes room: at most this part of the followers that are alike, and one task at a time unless it is due.
DRAINED = 0.25
LOOKED_AT = 100  # followers among which those to drain are chosen: of so many, some have room soon


def take(cluster: Cluster, follower: Follower, now: float) -> Iterator[Placement | Reservation]:
    """What a follower does with its room, one decision after the other; each is applied before the next is made.

    Room only shrinks meanwhile, so that a task for which there is none is not looked at twice.
    """
    turn = _Turn(cluster.queues_of(follower.shape).values(), now)
    may_drain = True
    for candidate in turn:
        decision: Placement | Reservation | None = _start(cluster, candidate, follower, now)
        if decision is None and may_drain and _could_drain(candidate, follower):
            decision = _drain(candidate, follower, now)
            may_drain = False  # one a turn is enough; and nobody may take what an earlier one still lacks
        if decision is not None:
            yield decision
            turn.add(candidate.queue)


class _Turn:
    """Candidates in their order; of a queue whose first has gone, the next one comes in."""

    def __init__(self, queues: Iterable[Queue], now: float) -> None:
        self._now = now
        self._seen: set[str] = set()
        self._numbers = count()  # so that candidates are never compared themselves
        self._heap: list[tuple[Rank, int, Candidate]] = []
        for queue in queues:
            self.add(queue)

    def add(self, queue: Queue) -> None:
        for candidate in queue.candidates(self._now):
            if candidate.task.id not in self._seen:
                heappush(self._heap, (candidate.rank, next(self._numbers), candidate))

    def __iter__(self) -> Iterator[Candidate]:
        while self._heap:
            candidate = heappop(self._heap)[2]
            if candidate.task.id not in self._seen:
                self._seen.add(candidate.task.id)
                yield candidate


def _start(cluster: Cluster, candidate: Candidate, follower: Follower, now: float) -> Placement | None:
    task, queue = candidate.task, candidate.queue
    match = queue.match(follower.shape)
    reservation = queue.reserved.get(task.id)
    if reservation or task.needs.nodes > 1:
        own = reservation.followers if reservation and reservation.followers[0].shape is follower.shape else ()
        found = with_room(match, own)
        return placed(task, match, found) if found else None
    if not match.fits(follower.signature) or not may_start_on(follower, task, now):
        return None
    if is_sooner_elsewhere(cluster, queue, task, follower.shape, now):
        return None
    return placed(task, match, [follower])


def _could_drain(candidate: Candidate, follower: Follower) -> bool:
    """Whether it is wide and followers like this one could ever have room for it."""
    needs = candidate.task.needs
    is_reserved = candidate.task.id in candidate.queue.reserved
    return needs.is_wide and not is_reserved and len(follower.shape.members) >= needs.nodes


def _drain(candidate: Candidate, asking: Follower, now: float) -> Reservation | None:
    """The followers, alike to the asking one, that are expected to have room first; all that are needed or none."""
    match, members = candidate.queue.match(asking.shape), asking.shape.members
    nodes = match.needs.nodes
    drained = len(asking.shape.drained)
    most = DRAINED * len(members) if candidate.is_due else 0
    if drained and drained + nodes > most:
        return None
    free = list(islice((one for one in members if one.reservation is None), max(nodes, LOOKED_AT)))
    found = nsmallest(nodes, ((match.room_at(one, now), place) for place, one in enumerate(free)))
    return Reservation(candidate.task, tuple(free[place] for _, place in found), found[-1][0])
