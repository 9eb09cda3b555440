"""Which requests are computed together, when, and by which instance; time is an argument.

Requests wait in groups: only those of one group (the same shapes) can share a batch. A batch is the oldest requests of
a group, in order; it is taken when an instance is free and

- its size is a preferred one (the largest such), or
- it cannot grow: it is full, or the next request of the group does not fit in, or
- its oldest request has waited for `max_delay`.

Of several such batches the one with the oldest request goes first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True)
class Policy:
    """How batches form; times in nanoseconds."""

    max_batch: int  # samples
    max_delay: int
    max_queue: int  # requests that wait; whoever adds them keeps to it
    preferred: tuple[int, ...] = ()  # samples


@dataclass(eq=False, slots=True)
class WaitingRequest:
    """One request in the queue; compared by identity."""

    size: int  # samples
    group: Hashable
    arrival: int


R = TypeVar("R", bound=WaitingRequest)


@dataclass(frozen=True, slots=True)
class RequestBatch(Generic[R]):
    """Requests for an instance to compute together."""

    instance: int
    requests: list[R]
    size: int  # samples


class Batcher(Generic[R]):
    """The waiting requests and the free instances. Every batch keeps its instance until `release()`."""

    def __init__(self, policy: Policy, instances: int) -> None:
        self.policy = policy
        self._free = deque(range(instances))
        self._groups: OrderedDict[Hashable, OrderedDict[R, None]] = OrderedDict()
        self._waiting = 0
        self._preferred = frozenset(policy.preferred)

    def __len__(self) -> int:
        """How many requests wait."""
        return self._waiting

    def add(self, request: R) -> None:
        """Queue a request that fits into a batch; its arrival must not be before that of an earlier one."""
        self._groups.setdefault(request.group, OrderedDict())[request] = None
        self._waiting += 1

    def cancel(self, request: R) -> None:
        """Forget a request, if it still waits."""
        group = self._groups.get(request.group)
        if group is not None and request in group:
            self._remove(group, request)

    def release(self, instance: int) -> None:
        """The instance has finished its batch."""
        self._free.append(instance)

    def take(self, now: int) -> list[RequestBatch[R]]:
        """Every batch that starts now."""
        batches: list[RequestBatch[R]] = []
        while self._free and self._waiting:
            chosen = self._choose(now)
            if not chosen:
                break
            group = self._groups[chosen[0].group]
            for request in chosen:
                self._remove(group, request)
            batches.append(RequestBatch(self._free.popleft(), chosen, sum(request.size for request in chosen)))
        return batches

    def wake(self) -> int | None:
        """When `take()` will have a batch although nothing else happens; None if never."""
        if not self._free or not self._waiting:
            return None
        return min(next(iter(group)).arrival for group in self._groups.values()) + self.policy.max_delay

    def _choose(self, now: int) -> list[R]:
        best: list[R] = []
        for group in self._groups.values():
            oldest = next(iter(group))
            if best and best[0].arrival <= oldest.arrival:
                continue
            best = self._startable(group, now) or best
        return best

    def _startable(self, group: OrderedDict[R, None], now: int) -> list[R]:
        """The requests at the head of a group that should start now."""
        head: list[R] = []
        size = preferred = 0
        can_grow = True
        for request in group:
            if size + request.size > self.policy.max_batch:
                can_grow = False
                break
            head.append(request)
            size += request.size
            if size in self._preferred:
                preferred = len(head)
        if preferred:
            return head[:preferred]
        is_due = now - head[0].arrival >= self.policy.max_delay
        return head if is_due or not can_grow or size == self.policy.max_batch else []

    def _remove(self, group: OrderedDict[R, None], request: R) -> None:
        del group[request]
        self._waiting -= 1
        if not group:
            del self._groups[request.group]
