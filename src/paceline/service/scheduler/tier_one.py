"""Tier one, at the leader: which follower a task goes to.

A task goes to the follower on which it is expected to end first. If none has room it is bound to none: it waits in the
queue of every follower that could run it, and tier two gives it to the first of them that gets room. A decision that is
made so late needs no correction when predictions prove wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice

from paceline.service.scheduler.cluster import Cluster
from paceline.service.scheduler.order import Queue
from paceline.service.scheduler.state import Follower, Match, Placement, Shape, Signature, Task


def place(cluster: Cluster, task: Task, now: float) -> Placement | None:
    """Where a task that has just come starts at once, or None if it has to wait."""
    queue = cluster.queue_of(task.needs)
    for match in _fastest_first(queue):
        found = with_room(match) or _between(match, task, now)
        if found:
            waits = is_sooner_elsewhere(cluster, queue, task, match.shape, now)
            return None if waits else placed(task, match, found)
    return None


def placed(task: Task, match: Match, followers: Sequence[Follower]) -> Placement:
    """The task on these followers, with the devices that it gets on each."""
    return Placement(task, tuple(followers), tuple(match.devices_of(follower) for follower in followers))


def with_room(match: Match, own: Sequence[Follower] = ()) -> list[Follower] | None:
    """As many followers as the task needs, all of which have room: first those drained for it, then the fittest."""
    nodes = match.needs.nodes
    if not own and sum(map(len, match.shape.open.values())) < nodes:
        return None
    found = [follower for follower in own if match.fits(follower.signature)][:nodes]
    if len(found) < nodes:
        buckets = [item for item in match.shape.open.items() if match.fits(item[0])]
        if len(buckets) > 1:
            buckets.sort(key=lambda item: _crowding(match, item[0]))
        found += islice(chain.from_iterable(bucket for _, bucket in buckets), nodes - len(found))
    return found if len(found) == nodes else None


def is_sooner_elsewhere(cluster: Cluster, queue: Queue, task: Task, shape: Shape, now: float) -> bool:
    """Whether it is better to wait for a faster follower that is busy; only for one that nobody else waits for."""
    if task.needs.nodes > 1 or queue.due_at(task) <= now:
        return False
    own = task.id in queue
    for match in queue.matches.values():
        faster = match.shape
        if faster.pace >= shape.pace or sum(map(len, cluster.queues_of(faster).values())) > own:
            continue
        # Room that was expected before now has not come: nothing is known about when it will.
        rooms = (match.room_at(one, now) for one in faster.members if one.reservation is None)
        soonest = min((room for room in rooms if room > now), default=None)
        if soonest is not None and soonest + task.seconds * faster.pace < now + task.seconds * shape.pace:
            return True
    return False


def may_start_on(follower: Follower, task: Task, now: float) -> bool:
    """Whether a follower that is drained for another task is free for this one: it must be over before."""
    kept = follower.reservation
    return kept is None or kept.task is task or now + task.late_seconds * follower.pace <= kept.until


def _fastest_first(queue: Queue) -> Iterable[Match]:
    matches = queue.matches.values()
    return sorted(matches, key=lambda match: match.shape.pace) if len(matches) > 1 else matches


def _between(match: Match, task: Task, now: float) -> list[Follower] | None:
    """A follower that is drained for another task, if this one is over by then."""
    if task.needs.nodes > 1:
        return None
    for follower in match.shape.drained:
        if match.fits(follower.signature) and may_start_on(follower, task, now):
            return [follower]
    return None


def _crowding(match: Match, signature: Signature) -> tuple[int, int]:
    """Low is better: CPU-heavy tasks go where few others run, others away from those and where it is full already."""
    free = sum(signature[:-1])
    return (-free, 0) if match.needs.cpu_heavy else (signature[-1], free)
