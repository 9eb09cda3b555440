"""The state of the scheduler: jobs and their needs, followers and their devices, and who runs what until when."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace

Signature = tuple[int, ...]  # free devices of each group, then how many CPU-heavy jobs run


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job must have; jobs of equal needs share one queue, so memory counts in whole GiB."""

    kind: str = ""  # of device; empty is any
    count: int = 1  # devices, all alike, on each node
    memory_gib: int = 0  # of each device, at least
    labels: frozenset[str] = frozenset()
    whole_node: bool = False  # exclusive: nothing else runs on its machines
    nodes: int = 1  # so many followers at once, or none
    cpu_heavy: bool = False  # disturbs others of its sort on the same follower

    @property
    def is_wide(self) -> bool:
        """Whether room for it may never come by itself, as each bit of it would go to smaller jobs."""
        return self.count > 1 or self.whole_node or self.nodes > 1


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job asks of the scheduler."""

    id: str
    needs: Needs
    seconds: float  # predicted
    submitted_at: float
    priority: int = 0  # higher goes first, until others are due
    error: float = 0.0  # deviation of the logarithm of true over predicted seconds

    @property
    def late_seconds(self) -> float:
        """How long it takes if it takes longer than predicted, by as much as predictions are usually off."""
        return self.seconds * math.exp(self.error)


@dataclass(frozen=True, slots=True)
class SchedulerDevice:
    """One device of a follower, on which one measurement runs at a time."""

    kind: str
    memory_gib: int = 0
    labels: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Running:
    """A job on some devices of one follower."""

    demand: Demand
    devices: tuple[int, ...]
    ends_at: float  # expected


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Followers that are drained for a wide job; others may use them meanwhile if they end before `until`."""

    demand: Demand
    followers: tuple[Follower, ...]
    until: float


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """A job starts now: on these followers, and on these devices of each."""

    demand: Demand
    followers: tuple[Follower, ...]
    devices: tuple[tuple[int, ...], ...]


@dataclass(eq=False, slots=True)
class Shape:
    """Followers that are alike, and those of them that have room, by how much of it."""

    devices: tuple[SchedulerDevice, ...]
    groups: tuple[SchedulerDevice, ...] = field(init=False)
    idle: Signature = field(init=False)
    members: dict[Follower, None] = field(default_factory=dict)
    drained: dict[Follower, None] = field(default_factory=dict)  # for wide jobs
    # Within a bucket the one that rested longest is first.
    open: dict[Signature, OrderedDict[Follower, None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = Counter(self.devices)
        self.groups = tuple(counts)
        self.idle = (*counts.values(), 0)

    def match(self, needs: Needs) -> Match | None:
        """How a follower of this shape can meet the needs, or None if never."""
        groups = tuple(
            group
            for group, device in enumerate(self.groups)
            if needs.kind in ("", device.kind)
            and needs.memory_gib <= device.memory_gib
            and needs.labels <= device.labels
            and needs.count <= self.idle[group]
        )
        return Match(self, needs, groups) if groups else None


@dataclass(frozen=True, slots=True)
class Match:
    """Needs that a shape can meet, with the groups of devices that can do it."""

    shape: Shape
    needs: Needs
    groups: tuple[int, ...]

    def fits(self, signature: Signature) -> bool:
        """Whether a follower with so much room can start it now."""
        needs = self.needs
        if needs.whole_node:
            return signature == self.shape.idle
        if needs.cpu_heavy and signature[-1]:
            return False
        return any(signature[group] >= needs.count for group in self.groups)

    def devices_of(self, follower: Follower) -> tuple[int, ...]:
        """Which devices a follower with room uses: those that rested longest."""
        if self.needs.whole_node:
            return tuple(range(len(self.shape.devices)))
        group = next(group for group in self.groups if len(follower.free[group]) >= self.needs.count)
        return tuple(follower.free[group][: self.needs.count])

    def room_at(self, follower: Follower, now: float) -> float:
        """When a follower is expected to have room, if nothing else starts on it."""
        needs = self.needs
        if needs.whole_node:
            return max([now, *(ends[-1] for group in range(len(follower.free)) if (ends := follower.ends_of(group)))])
        soonest = math.inf
        for group in self.groups:
            missing = needs.count - len(follower.free[group])
            soonest = min(soonest, follower.ends_of(group)[missing - 1] if missing > 0 else now)
        if needs.cpu_heavy and follower.heavy:
            soonest = max(soonest, min(one.ends_at for one in follower.running.values() if one.demand.needs.cpu_heavy))
        return max(now, soonest)


class Follower:
    """A machine that runs jobs: what it has, what is free, and what it is kept for."""

    def __init__(self, id: str, devices: tuple[SchedulerDevice, ...]) -> None:
        self.id = id
        self.devices = devices
        self.heavy = 0  # CPU-heavy jobs that run, at most one
        self.running: dict[str, Running] = {}
        self.reservation: Reservation | None = None
        self._ends: dict[int, list[float]] = {}
        self.shape = Shape(devices)
        self.groups = tuple(map(self.shape.groups.index, devices))
        self.free: list[list[int]] = [[] for _ in self.shape.groups]
        for device, group in enumerate(self.groups):
            self.free[group].append(device)

    @property
    def signature(self) -> Signature:
        """How much room it has."""
        return (*map(len, self.free), self.heavy)

    def ends_of(self, group: int) -> list[float]:
        """When the busy devices of a group are expected to be free, the soonest first."""
        ends = self._ends.get(group)
        if ends is None:
            running = self.running.values()
            ends = sorted(one.ends_at for one in running for device in one.devices if self.groups[device] == group)
            self._ends[group] = ends
        return ends

    def retime(self, job_id: str, ends_at: float) -> None:
        """A job is expected to end at another time."""
        self.running[job_id] = replace(self.running[job_id], ends_at=ends_at)
        self._ends.clear()

    def occupy(self, running: Running) -> None:
        """Take devices; one that is taken already is a defect of the scheduler."""
        for device in running.devices:
            self.free[self.groups[device]].remove(device)
        self.heavy += running.demand.needs.cpu_heavy
        self.running[running.demand.id] = running
        self._ends.clear()

    def release(self, job_id: str) -> None:
        """Give the devices of a job back."""
        running = self.running.pop(job_id)
        for device in running.devices:
            self.free[self.groups[device]].append(device)
        self.heavy -= running.demand.needs.cpu_heavy
        self._ends.clear()

    def __repr__(self) -> str:
        return f"Follower({self.id!r})"
