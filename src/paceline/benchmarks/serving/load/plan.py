"""Everything about all requests that is settled before the first one goes, and how workers share it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.benchmarks.serving.load.arrivals import Schedule, shares
from paceline.benchmarks.serving.load.network import Link, link_of
from paceline.benchmarks.serving.load.parameters import LoadParameters, Loop
from paceline.benchmarks.serving.load.prepared import Prepared
from paceline.benchmarks.serving.load.trace import Times
from paceline.benchmarks.serving.load.worker import Task
from paceline.core.errors import InputError

RATE_PER_WORKER = 4000.0  # a fraction of what one can do, so that none is busy when a request is due
USERS_PER_WORKER = 32
COSTLY_BYTES = 2**16  # of a request, to send which takes a worker about as long as a small request altogether
GRPC_COST = 10.0  # of a call, beside a request over HTTP, about
GRACE_SECONDS = 10.0
_ENDLESS = 65536  # how many are drawn where nobody knows how many will be sent


@dataclass(frozen=True)
class Plan:
    """One load, drawn from one seed."""

    loop: Loop
    schedule: Schedule  # empty in a closed loop
    kinds: NDArray[np.int32]
    users: int = 1
    requests: int | None = None
    duration: float | None = None
    think_time: float = 0.0
    down_bandwidth: float | None = None
    up: Times | None = None
    down: Times | None = None

    @classmethod
    def of(
        cls,
        load: LoadParameters | Schedule,
        requests: Sequence[Prepared],
        seed: int,
        weights: Sequence[float] | None = None,
    ) -> Plan:
        """Draw arrivals, kinds and delays; each from a stream of its own, so that none changes the others."""
        streams = np.random.SeedSequence(seed).spawn(3)
        for_arrivals, for_kinds, for_network = (np.random.default_rng(stream) for stream in streams)
        if isinstance(load, Schedule):
            return cls("open", load, _kinds(load, requests, weights, for_kinds)).with_work(requests)
        if load.loop == "open":
            schedule = load.schedule(for_arrivals)
            plan = cls("open", schedule, _kinds(schedule, requests, weights, for_kinds))
        else:
            plan = cls(
                load.loop,
                Schedule(np.empty(0)),
                _drawn(load.requests or _ENDLESS, len(requests), weights, for_kinds),
                users=load.concurrency,
                requests=load.requests,
                duration=load.seconds,
                think_time=load.think_time or 0.0,
            )
        if load.network and load.network_by != "tc":
            plan = plan.over(link_of(load.network), requests, for_network)
        return plan.with_work(requests)

    def over(self, link: Link, requests: Sequence[Prepared], random: np.random.Generator) -> Plan:
        """The same load over an emulated network."""
        sizes = np.array([len(one.body) for one in requests], np.float64)[self.kinds]
        up, down = link.way_up(sizes, random), link.way_down(len(sizes), random)
        return replace(self, up=up, down=down, down_bandwidth=link.down)

    def with_work(self, requests: Sequence[Prepared]) -> Plan:
        """With what users' own machines do before they send and after they have their answer, each on its own."""
        before, after = (
            np.array(times)[self.kinds] for times in zip(*((r.before, r.after) for r in requests), strict=True)
        )
        if not before.any() and not after.any():
            return self
        return replace(
            self,
            up=before if self.up is None else self.up + before,
            down=after if self.down is None else self.down + after,
        )

    def workers(self, cores: int, cost: float = 1.0) -> int:
        """How many processes: as many as such requests of this rate or these users need, one per core at most."""
        need = self.schedule.peak_rate / RATE_PER_WORKER if self.loop == "open" else self.users / USERS_PER_WORKER
        most = cores if self.loop == "open" else min(cores, self.users)
        return max(1, min(most, math.ceil(need * cost)))

    def longest(self, timeout: float) -> float:
        """After how many seconds from the start everything must have ended."""
        network = 0.0 if self.up is None or self.down is None else float(self.up.max() + self.down.max())
        if self.loop == "open":
            return float(self.schedule.intended[-1]) + network + timeout + GRACE_SECONDS
        if self.requests is None:
            return (self.duration or 0.0) + network + timeout + GRACE_SECONDS
        turns = math.ceil(self.requests / self.users)
        return turns * (timeout + network + self.think_time) + GRACE_SECONDS

    def divided(self, task: Task, number: int) -> list[Task]:
        """The task of each of so many workers: every request, and every user, belongs to one of them."""
        if self.loop != "open":
            number = min(number, self.users, self.requests or self.users)
        users = shares(self.users, number)
        requests = None if self.requests is None else shares(self.requests, number)
        return [
            replace(
                task,
                loop=self.loop,
                kinds=self.kinds[rows],
                intended=self.schedule.intended[rows] if self.loop == "open" else self.schedule.intended,
                users=len(users[worker]),
                requests=None if requests is None else len(requests[worker]),
                duration=self.duration,
                think_time=self.think_time,
                up=None if self.up is None else self.up[rows],
                down=None if self.down is None else self.down[rows],
                down_bandwidth=self.down_bandwidth,
            )
            for worker, rows in enumerate(shares(len(self.kinds), number))
        ]


def cost_of(requests: Sequence[Prepared], *, is_grpc: bool = False) -> float:
    """How many small requests over HTTP keep a worker as busy as one of these, about."""
    size = sum(len(one.body) for one in requests) / len(requests)
    return (GRPC_COST if is_grpc else 1.0) + size / COSTLY_BYTES


def workers_of_hosts(cores: Sequence[int], needed: int, each: int | None = None) -> list[int]:
    """How many workers each host has: as many as are needed, evenly, at least one, no more than it has cores."""
    wanted = each or max(1, math.ceil(needed / len(cores)))
    return [min(wanted, own) for own in cores]


def dealt(number: int, workers: Sequence[int]) -> list[list[int]]:
    """Which of so many tasks each host does: one to each in turn, and no more than it has workers."""
    turns = [host for turn in range(max(workers)) for host, own in enumerate(workers) if own > turn]
    return [[task for task, owner in enumerate(turns[:number]) if owner == host] for host in range(len(workers))]


def require_known(schedule: Schedule, kinds: int) -> None:
    """Refuse arrivals of requests that are not prepared."""
    if schedule.kind is not None and schedule.kind.max(initial=0) >= kinds:
        raise InputError(
            f"an arrival is of kind {schedule.kind.max()}, but there are {kinds} kinds, from 0 (requests.distinct)"
        )


def _kinds(
    schedule: Schedule, requests: Sequence[Prepared], weights: Sequence[float] | None, random: np.random.Generator
) -> NDArray[np.int32]:
    if not len(schedule):
        raise InputError("the load sends not a single request: raise its rate or its duration")
    if schedule.kind is None:
        return _drawn(len(schedule), len(requests), weights, random)
    require_known(schedule, len(requests))
    return schedule.kind


def _drawn(number: int, kinds: int, weights: Sequence[float] | None, random: np.random.Generator) -> NDArray[np.int32]:
    if weights is None:
        return random.integers(0, kinds, number).astype(np.int32)
    share = np.asarray(weights, np.float64)
    if len(share) != kinds or not np.all(np.isfinite(share)) or share.min() < 0 or share.sum() <= 0:
        raise InputError(f"weights = {list(weights)} must be {kinds} numbers, none negative and not all zero")
    return random.choice(kinds, number, p=share / share.sum()).astype(np.int32)
