"""Runs a workload through the scheduler itself, event by event."""

from __future__ import annotations

import math
from heapq import heappop, heappush

import numpy as np

from paceline.analysis.simulation import Schedule
from paceline.service.scheduler import turns
from paceline.service.scheduler.cluster import Cluster
from paceline.service.scheduler.order import STRETCH
from paceline.service.scheduler.state import Task
from paceline.service.simulate.workload import Fleet, Workload


def two_tier(workload: Workload, fleet: Fleet) -> Schedule:
    """The scheduler as the leader runs it, with the durations that were predicted."""
    return _scheduled(workload, fleet, stretch=STRETCH, exact=False)


def shortest_first(workload: Workload, fleet: Fleet) -> Schedule:
    """One shared queue, the shortest predicted first, without ageing."""
    return _scheduled(workload, fleet, stretch=math.inf, exact=False)


def clairvoyant(workload: Workload, fleet: Fleet) -> Schedule:
    """One shared queue, the shortest first, by the durations that tasks really take."""
    return _scheduled(workload, fleet, stretch=math.inf, exact=True)


def _scheduled(workload: Workload, fleet: Fleet, *, stretch: float, exact: bool) -> Schedule:
    cluster = Cluster(stretch=stretch)
    for follower in fleet.members():
        turns.joined(cluster, follower, 0.0)
    known = workload.seconds if exact else workload.predicted
    error = 0.0 if exact else workload.error
    started = np.empty(len(workload))
    ended = np.empty(len(workload))
    running: list[tuple[float, int]] = []
    coming = 0
    while coming < len(workload) or running:
        # At the same moment what ends goes first: its devices are free for what comes.
        if not running or (coming < len(workload) and workload.submitted[coming] < running[0][0]):
            now = float(workload.submitted[coming])
            task = Task(
                str(coming), workload.needs_of(coming), float(known[coming]), now, workload.priority_of(coming), error
            )
            starts = turns.submitted(cluster, task, now)
            coming += 1
        else:
            now, place = heappop(running)
            ended[place] = now
            starts = turns.ended(cluster, str(place), now)
        for start in starts:
            place = int(start.task.id)
            started[place] = now
            heappush(running, (now + float(workload.seconds[place]), place))
    work = float((workload.seconds * workload.device_counts(fleet.devices)).sum())
    return Schedule(workload.submitted, started, ended, work, fleet.capacity)
