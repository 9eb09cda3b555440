"""The state of a whole cluster: jobs and their needs, followers and their devices, what waits and what runs until when.

The shortest predicted goes first, and ahead of all the ones that have waited long enough. A job is due when it has
waited `STRETCH` times its predicted duration. Nothing that is due later starts before it, and whatever comes from then
on is due later. So its waiting is bounded: for a job of one device on m of them, by

    STRETCH * predicted + (rest of what runs when it becomes due + what waits then and is due earlier) / m

Nothing here decides who starts; `events` does.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count

from paceline.core.errors import InputError

STRETCH = 10.0  # at load 0.9 it costs the mean less than 1 %, and up to halves the longest waiting
_MOST_EMPTY = 1000  # queues that are kept although nothing waits in them
_SLACK = 64  # entries of jobs long gone that a heap may keep, in addition to as many as it has live ones

Signature = tuple[int, ...]  # free devices of each group, then how many CPU-heavy jobs run
Rank = tuple[float, ...]  # the smallest goes first
_Entry = tuple[Rank, str]


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
    follower: str = ""  # this one alone; empty is any

    def allows(self, follower: Follower) -> bool:
        """Whether it may be this one, whatever it has."""
        return self.follower in ("", follower.id)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job asks of the scheduler."""

    id: str
    needs: Needs
    seconds: float  # predicted
    submitted_at: float
    priority: int = 0  # higher goes first, until others are due
    error: float = 0.0  # deviation of the logarithm of true over predicted seconds
    owner: str = ""

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

    @property
    def is_wide(self) -> bool:
        """Whether room for it may never come by itself, as each bit of it would go to smaller jobs."""
        needs = self.needs
        return needs.count > 1 or needs.nodes > 1 or (needs.whole_node and len(self.shape.devices) > 1)

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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job whose turn it may be."""

    rank: Rank
    demand: Demand
    queue: DemandQueue

    @property
    def is_due(self) -> bool:
        return self.rank[0] == 0


class DemandQueue:
    """The jobs of equal needs that wait."""

    def __init__(self, needs: Needs, matches: Iterable[Match], stretch: float) -> None:
        self.needs = needs
        self.stretch = stretch
        self.matches = {match.shape: match for match in matches}
        self.reserved: dict[str, Reservation] = {}  # jobs that followers are drained for
        self._demands: dict[str, tuple[int, Demand]] = {}  # all others, with a number that breaks ties
        self._shortest: list[_Entry] = []
        self._due: list[_Entry] = []
        self._candidates: list[Candidate] | None = None  # as found last, while nothing has changed
        self._valid_until = math.inf

    def __len__(self) -> int:
        return len(self._demands) + len(self.reserved)

    def __iter__(self) -> Iterator[Demand]:
        yield from (demand for _, demand in self._demands.values())
        yield from (reservation.demand for reservation in self.reserved.values())

    def due_at(self, demand: Demand) -> float:
        """From when on nothing may overtake it."""
        return demand.submitted_at + self.stretch * demand.seconds

    def push(self, demand: Demand, number: int) -> None:
        """Let a job wait."""
        self._candidates = None
        self._demands[demand.id] = (number, demand)
        heappush(self._shortest, ((-demand.priority, demand.seconds, number), demand.id))
        heappush(self._due, ((self.due_at(demand), number), demand.id))

    def remove(self, job_id: str) -> Reservation | None:
        """Take a job out; with the followers that are drained for it, if there are any."""
        self._candidates = None
        if job_id in self.reserved:
            return self.reserved.pop(job_id)
        del self._demands[job_id]
        for heap in (self._shortest, self._due):
            if len(heap) > 2 * len(self._demands) + _SLACK:
                heap[:] = filter(self._is_live, heap)
                heapify(heap)
        return None

    def reserve(self, reservation: Reservation) -> None:
        """Followers are drained for a job from now on; it still waits."""
        self.remove(reservation.demand.id)
        self.reserved[reservation.demand.id] = reservation

    def candidates(self, now: float) -> list[Candidate]:
        """Whose turn it may be: the one that is due longest, the shortest, and those that followers are drained for."""
        if self._candidates is None or now >= self._valid_until:
            self._candidates, self._valid_until = [], math.inf
            if self._demands:
                (due_at, number), first = self._first(self._due)
                if self._is_due(due_at, now):
                    self._candidates.append(Candidate((0, due_at, number), self._demands[first][1], self))
                rank, shortest = self._first(self._shortest)
                self._candidates.append(Candidate((1, *rank), self._demands[shortest][1], self))
            for reservation in self.reserved.values():
                demand, due_at = reservation.demand, self.due_at(reservation.demand)
                rank = (0, due_at) if self._is_due(due_at, now) else (1, -demand.priority, demand.seconds)
                self._candidates.append(Candidate(rank, demand, self))
        return self._candidates

    def _is_due(self, due_at: float, now: float) -> bool:
        if due_at > now:
            self._valid_until = min(self._valid_until, due_at)
        return due_at <= now

    def _first(self, heap: list[_Entry]) -> _Entry:
        while not self._is_live(heap[0]):
            heappop(heap)
        return heap[0]

    def _is_live(self, entry: _Entry) -> bool:
        numbered = self._demands.get(entry[1])
        return numbered is not None and numbered[0] == entry[0][-1]


class ClusterState:
    """Followers by shape, waiting jobs by needs, and what runs where."""

    def __init__(self, *, stretch: float = STRETCH) -> None:
        self.stretch = stretch
        self.followers: dict[str, Follower] = {}
        self.demands: dict[str, Demand] = {}  # of every job that waits or runs
        self.running: dict[str, tuple[Follower, ...]] = {}
        self._queues: dict[Needs, DemandQueue] = {}
        self.queues: dict[Shape, dict[Needs, DemandQueue]] = {}  # not empty, by who could run their jobs
        self._shapes: dict[tuple[SchedulerDevice, ...], Shape] = {}
        self._numbers = count()
        self.most_running: dict[str, int] = {}  # by owner; who is not named has no limit
        self._running_of: Counter[str] = Counter()
        self.held: dict[str, dict[str, Demand]] = {}  # by owner: in no queue while as many of theirs run as may

    @property
    def waiting(self) -> Iterator[Demand]:
        """Every job that waits."""
        yield from (demand for queue in self._queues.values() for demand in queue)
        yield from (demand for held in self.held.values() for demand in held.values())

    def may_start(self, owner: str) -> bool:
        """Whether one more job of an owner may run."""
        return owner not in self.most_running or self._running_of[owner] < self.most_running[owner]

    @property
    def reserved(self) -> list[Follower]:
        """Every follower that is drained for a job."""
        return [follower for shape in self._shapes.values() for follower in shape.drained]

    def queue_of(self, needs: Needs) -> DemandQueue:
        """Where jobs of these needs wait."""
        queue = self._queues.get(needs)
        if queue is None:
            if len(self._queues) > _MOST_EMPTY:
                self._queues = {kind: queue for kind, queue in self._queues.items() if len(queue)}
            matches = (shape.match(needs) for shape in self._shapes.values())
            queue = DemandQueue(needs, (match for match in matches if match), self.stretch)
            self._queues[needs] = queue
        return queue

    def stuck(self) -> list[Demand]:
        """Jobs that wait for followers such as are not here."""
        return [demand for needs, queue in self._queues.items() if not self.can_run(needs) for demand in queue]

    def can_run(self, needs: Needs) -> bool:
        """Whether the followers that are here could ever run such a job, all else ended."""
        matches = self.queue_of(needs).matches.values()
        if needs.follower:
            return any(self.followers.get(needs.follower) in match.shape.members for match in matches)
        return any(len(match.shape.members) >= needs.nodes for match in matches)

    def join(self, follower: Follower) -> None:
        """A follower has come, or come back; it runs nothing."""
        if follower.id in self.followers:
            message = f"follower '{follower.id}' is here already; give another one a name of its own"
            raise InputError("duplicate-follower", message, value=follower.id)
        shape = self._shapes.get(follower.devices)
        if shape is None:
            shape = self._shapes[follower.devices] = follower.shape
            self.queues[shape] = {}
            for queue in self._queues.values():
                match = shape.match(queue.needs)
                if match:
                    queue.matches[shape] = match
                    self._note(queue)
        follower.shape = shape
        shape.members[follower] = None
        self.followers[follower.id] = follower
        self._open(follower)

    def leave(self, follower: Follower) -> None:
        """A follower has gone; what it ran must have been ended before."""
        self._close(follower)
        del self.followers[follower.id], follower.shape.members[follower]

    def wait(self, demand: Demand) -> None:
        """A job waits for room."""
        if demand.id in self.demands:
            message = f"job '{demand.id}' is here already; give another one an id of its own"
            raise InputError("duplicate-job", message, value=demand.id)
        self.demands[demand.id] = demand
        if not self.may_start(demand.owner):
            self.held.setdefault(demand.owner, {})[demand.id] = demand
            return
        queue = self.queue_of(demand.needs)
        queue.push(demand, next(self._numbers))
        self._note(queue)

    def release(self, owner: str) -> list[Demand]:
        """Jobs of an owner that were held wait in their queues, if one more may run."""
        if not self.may_start(owner):
            return []
        released = list(self.held.pop(owner, {}).values())
        for demand in released:
            del self.demands[demand.id]
            self.wait(demand)
        return released

    def hold(self, owner: str) -> list[Follower]:
        """Jobs of an owner leave their queues, if no more may run; followers drained for them are returned."""
        if self.may_start(owner):
            return []
        freed: list[Follower] = []
        for demand in [one for queue in self._queues.values() for one in queue if one.owner == owner]:
            freed += self.withdraw(demand)
            self.wait(demand)
        return freed

    def withdraw(self, demand: Demand) -> tuple[Follower, ...]:
        """A job waits no longer; the followers that were drained for it are returned."""
        if self.held.get(demand.owner, {}).pop(demand.id, None) is not None:
            del self.demands[demand.id]
            return ()
        queue = self.queue_of(demand.needs)
        del self.demands[demand.id]
        reservation = queue.remove(demand.id)
        drained = reservation.followers if reservation else ()
        for follower in drained:
            follower.reservation = None
            del follower.shape.drained[follower]
            self._open(follower)
        self._note(queue)
        return drained

    def reserve(self, reservation: Reservation) -> None:
        """Followers are drained for a job from now on."""
        self.queue_of(reservation.demand.needs).reserve(reservation)
        for follower in reservation.followers:
            self._close(follower)
            follower.reservation = reservation
            follower.shape.drained[follower] = None

    def start(self, placement: JobPlacement, now: float) -> tuple[Follower, ...]:
        """A job starts; followers that are no longer drained for it are returned."""
        demand = placement.demand
        drained = self.withdraw(demand) if demand.id in self.demands else ()
        for follower, devices in zip(placement.followers, placement.devices, strict=True):
            self._close(follower)
            follower.occupy(Running(demand, devices, now + demand.seconds))
            self._open(follower)
        self.demands[demand.id] = demand
        self.running[demand.id] = placement.followers
        self._running_of[demand.owner] += 1
        return (*drained, *self.hold(demand.owner))

    def end(self, job_id: str) -> tuple[Follower, ...]:
        """A job has ended, one way or the other; the followers that it ran on are returned."""
        self._running_of[self.demands.pop(job_id).owner] -= 1
        followers = self.running.pop(job_id)
        for follower in followers:
            self._free(follower, job_id)
        return followers

    def shrink(self, job_id: str, follower: Follower) -> None:
        """One of the followers of a running job is about to go; the others stay taken until the job ends."""
        self._free(follower, job_id)
        self.running[job_id] = tuple(one for one in self.running[job_id] if one is not follower)

    def retime(self, job_id: str, ends_at: float) -> None:
        """A running job is now expected to end at another time."""
        for follower in self.running[job_id]:
            follower.retime(job_id, ends_at)

    def _free(self, follower: Follower, job_id: str) -> None:
        self._close(follower)
        follower.release(job_id)
        self._open(follower)

    def _open(self, follower: Follower) -> None:
        """List a follower by its room; one that is reserved or full is in no list."""
        if follower.reservation is None and any(follower.free):
            follower.shape.open.setdefault(follower.signature, OrderedDict())[follower] = None

    def _close(self, follower: Follower) -> None:
        signature = follower.signature
        bucket = follower.shape.open.get(signature)
        if bucket is not None:
            bucket.pop(follower, None)
            if not bucket:
                del follower.shape.open[signature]

    def _note(self, queue: DemandQueue) -> None:
        """Let shapes know whether something waits for them."""
        for shape in queue.matches:
            if len(queue):
                self.queues[shape][queue.needs] = queue
            else:
                self.queues[shape].pop(queue.needs, None)
