"""What follows from an event: the tasks that start now. The leader and the simulator call these, and nothing else.

Each takes the time as an argument, changes the cluster, and returns the starts that somebody has to carry out.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.errors import InputError
from paceline.service.scheduler.cluster import Cluster
from paceline.service.scheduler.state import Follower, Placement, Reservation, Task
from paceline.service.scheduler.tier_one import place
from paceline.service.scheduler.tier_two import take


def submitted(cluster: Cluster, task: Task, now: float) -> list[Placement]:
    """A task has come; also one that comes again after its follower was lost."""
    placement = place(cluster, task, now)
    if placement is None:
        cluster.wait(task)
        return []
    cluster.start(placement, now)
    return [placement]


def ended(cluster: Cluster, task_id: str, now: float) -> list[Placement]:
    """A running task has ended, well or not."""
    return settle(cluster, cluster.end(task_id), now)


def cancelled(cluster: Cluster, task: Task, now: float) -> list[Placement]:
    """Nobody wants a task any more, whether it waits or runs."""
    if task.id in cluster.running:
        return ended(cluster, task.id, now)
    if task.id not in cluster.queue_of(task.needs):
        raise InputError(f"task '{task.id}' neither waits nor runs here")
    return settle(cluster, cluster.withdraw(task), now)


def joined(cluster: Cluster, follower: Follower, now: float) -> list[Placement]:
    """A follower has come, or come back."""
    cluster.join(follower)
    return settle(cluster, [follower], now)


def lost(cluster: Cluster, follower_id: str, now: float) -> tuple[list[Task], list[Placement]]:
    """A follower has gone: what ran on it, for the caller to submit again or give up, and what starts now."""
    follower = cluster.followers[follower_id]
    tasks = [running.task for running in follower.running.values()]
    freed = [one for task in tasks for one in cluster.end(task.id)]
    if follower.reservation:
        freed += follower.reservation.followers
        cluster.unreserve(follower.reservation)
    cluster.leave(follower)
    return tasks, settle(cluster, freed, now)


def settle(cluster: Cluster, followers: Iterable[Follower], now: float) -> list[Placement]:
    """Everything that starts because these followers may have room."""
    asked = list(dict.fromkeys(followers))
    started: list[Placement] = []
    for follower in asked:  # grows while it is walked
        if cluster.followers.get(follower.id) is not follower:
            continue  # it has gone
        for decision in take(cluster, follower, now):
            if isinstance(decision, Reservation):
                cluster.reserve(decision)
            else:
                asked += cluster.start(decision, now)
                started.append(decision)
    return started
