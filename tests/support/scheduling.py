"""Drives the scheduler through events in simulated time, and keeps every interval in which something ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import combinations

from paceline.service.scheduler import events
from paceline.service.scheduler.state import (
    STRETCH,
    ClusterState,
    Demand,
    Follower,
    JobPlacement,
    Needs,
    SchedulerDevice,
)

GPU = SchedulerDevice("gpu", memory_gib=80)


def node(name: str, gpus: int = 1) -> Follower:
    return Follower(name, (GPU,) * gpus)


def demand(
    name: str, seconds: float, at: float = 0.0, *, priority: int = 0, error: float = 0.0, **needs: object
) -> Demand:
    return Demand(name, Needs(**needs), seconds, at, priority, error)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Interval:
    """A job on some devices of one follower, from when to when."""

    demand: Demand
    follower: str
    devices: tuple[int, ...]
    started: float
    ended: float

    def overlaps(self, other: Interval) -> bool:
        return self.started < other.ended and other.started < self.ended


@dataclass
class Drive:
    """Jobs come at their time and take as long as they really take; followers go and come."""

    followers: list[Follower]
    true_seconds: Mapping[str, float] = field(default_factory=dict)
    stretch: float = STRETCH
    intervals: list[Interval] = field(default_factory=list)
    starts: dict[str, float] = field(default_factory=dict)
    ends: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster = ClusterState(stretch=self.stretch)
        self.now = 0.0
        self._running: dict[str, tuple[JobPlacement, float]] = {}
        self._events: list[tuple[float, int, str, object]] = []
        self._number = 0
        for follower in self.followers:
            self._carry_out(events.joined(self.cluster, follower, 0.0))

    def at(self, when: float, what: str, of: object) -> None:
        self._number += 1
        heappush(self._events, (when, self._number, what, of))

    def submit(self, demands: Iterable[Demand]) -> Drive:
        for one in demands:
            self.at(one.submitted_at, "submit", one)
        return self

    def run(self, until: float = float("inf")) -> Drive:
        while self._events and self._events[0][0] <= until:
            self.now, _, what, of = heappop(self._events)
            getattr(self, f"_{what}")(of)
            assert set(self.cluster.demands) == {*self.cluster.running, *(one.id for one in self.cluster.waiting)}
        return self

    def _submit(self, one: Demand) -> None:
        self._carry_out(events.submitted(self.cluster, one, self.now))

    def _end(self, start: JobPlacement) -> None:
        name = start.demand.id
        if name not in self._running or self._running[name][0] is not start:
            return  # its follower was lost
        self._ran(name)
        self.ends.setdefault(name, []).append(self.now)
        self._carry_out(events.ended(self.cluster, name, self.now))

    def _lose(self, name: str) -> None:
        if name in self.cluster.followers:
            demands, starts = events.lost(self.cluster, [name], self.now)
            for one in demands:
                self._ran(one.id)
            self._carry_out(starts)
            for one in demands:
                self._submit(one)

    def _join(self, follower: Follower) -> None:
        if follower.id not in self.cluster.followers:
            self._carry_out(events.joined(self.cluster, follower, self.now))

    def _carry_out(self, starts: Iterable[JobPlacement]) -> None:
        for start in starts:
            one = start.demand
            self.starts[one.id] = self.now
            self._running[one.id] = (start, self.now)
            self.at(self.now + self.true_seconds.get(one.id, one.seconds), "end", start)

    def _ran(self, name: str) -> None:
        start, began = self._running.pop(name)
        for follower, devices in zip(start.followers, start.devices, strict=True):
            self.intervals.append(Interval(start.demand, follower.id, devices, began, self.now))


def conflicts(intervals: Iterable[Interval]) -> list[tuple[Interval, Interval]]:
    """Pairs that disturbed each other: on one device, beside one that wanted its node alone, or both CPU-heavy."""
    by_follower: dict[str, list[Interval]] = {}
    for one in intervals:
        by_follower.setdefault(one.follower, []).append(one)
    return [
        (a, b)
        for ran in by_follower.values()
        for a, b in combinations(ran, 2)
        if a.overlaps(b)
        and (
            set(a.devices) & set(b.devices)
            or a.demand.needs.whole_node
            or b.demand.needs.whole_node
            or (a.demand.needs.cpu_heavy and b.demand.needs.cpu_heavy)
        )
    ]
