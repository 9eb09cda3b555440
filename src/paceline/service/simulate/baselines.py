"""Schedulers to compare with: a task is bound when it comes, and each follower serves in the order of coming."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import numpy as np

from paceline.analysis.simulation import Schedule
from paceline.service.simulate.workload import Fleet, Workload


def round_robin(workload: Workload, fleet: Fleet) -> Schedule:
    """One follower after the other, whatever it has to do already."""
    place = 0

    def choose(nodes: int, work: float, now: float) -> list[int]:
        nonlocal place
        chosen = [(place + step) % fleet.followers for step in range(nodes)]
        place = (place + nodes) % fleet.followers
        return chosen

    return _served(workload, fleet, choose, lambda follower, work, now: None)


def least_loaded(workload: Workload, fleet: Fleet) -> Schedule:
    """The follower that is predicted to have done first what it has."""
    loads = _Loads(fleet)
    return _served(workload, fleet, loads.choose, loads.correct)


class _Loads:
    """When each follower is predicted to have done all that it has."""

    def __init__(self, fleet: Fleet) -> None:
        self.devices = fleet.devices
        self.free_at = [0.0] * fleet.followers
        self.waiting = [0.0] * fleet.followers  # predicted device-seconds that have not ended
        self.heap = [(0.0, follower) for follower in range(fleet.followers)]
        heapify(self.heap)

    def choose(self, nodes: int, work: float, now: float) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < nodes:
            free_at, follower = heappop(self.heap)
            if free_at == self.free_at[follower] and follower not in chosen:
                chosen.append(follower)
        for follower in chosen:
            self.waiting[follower] += work
            self._expect(follower, max(self.free_at[follower], now) + work / self.devices)
        return chosen

    def correct(self, follower: int, work: float, now: float) -> None:
        """A task has ended: what is left begins now, sooner or later than expected."""
        self.waiting[follower] -= work
        self._expect(follower, now + max(0.0, self.waiting[follower]) / self.devices)

    def _expect(self, follower: int, free_at: float) -> None:
        self.free_at[follower] = free_at
        heappush(self.heap, (free_at, follower))


def _served(
    workload: Workload,
    fleet: Fleet,
    choose: Callable[[int, float, float], list[int]],
    ended_on: Callable[[int, float, float], None],
) -> Schedule:
    """Tasks are bound by `choose`; one starts when it is the first of all its followers and there is room on each."""
    started, ended = np.empty(len(workload)), np.empty(len(workload))
    queues: list[deque[int]] = [deque() for _ in range(fleet.followers)]
    free = [fleet.devices] * fleet.followers
    heavy = [0] * fleet.followers
    bound: dict[int, list[int]] = {}
    running: list[tuple[float, int]] = []

    def width(task: int) -> int:
        needs = workload.needs_of(task)
        return fleet.devices if needs.whole_node else needs.count

    def can_start(task: int) -> bool:
        wanted, is_heavy = width(task), workload.needs_of(task).cpu_heavy
        return all(queues[f][0] == task and free[f] >= wanted and not (is_heavy and heavy[f]) for f in bound[task])

    def serve(followers: list[int], now: float) -> None:
        asked = list(followers)
        for follower in asked:  # grows while it is walked
            while queues[follower] and can_start(queues[follower][0]):
                task = queues[follower][0]
                for one in bound[task]:
                    queues[one].popleft()
                    free[one] -= width(task)
                    heavy[one] += workload.needs_of(task).cpu_heavy
                    if one != follower:
                        asked.append(one)
                started[task] = now
                heappush(running, (now + float(workload.seconds[task]), task))

    coming = 0
    while coming < len(workload) or running:
        if not running or (coming < len(workload) and workload.submitted[coming] < running[0][0]):
            now, task = float(workload.submitted[coming]), coming
            work = float(workload.predicted[task]) * width(task)
            bound[task] = choose(workload.needs_of(task).nodes, work, now)
            for follower in bound[task]:
                queues[follower].append(task)
            coming += 1
            serve(bound[task], now)
        else:
            now, task = heappop(running)
            ended[task] = now
            followers = bound.pop(task)
            for follower in followers:
                free[follower] += width(task)
                heavy[follower] -= workload.needs_of(task).cpu_heavy
                ended_on(follower, float(workload.predicted[task]) * width(task), now)
            serve(followers, now)
    total = float((workload.seconds * workload.device_counts(fleet.devices)).sum())
    return Schedule(workload.submitted, started, ended, total, fleet.capacity)
