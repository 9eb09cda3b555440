"""The order of tasks that wait: the shortest predicted first, and ahead of all the ones that have waited long enough.

A task is due when it has waited `STRETCH` times its predicted duration. Nothing that is due later starts before it, and
whatever comes from then on is due later. So its waiting is bounded: for a task of one device on m of them, by

    STRETCH * predicted + (rest of what runs when it becomes due + what waits then and is due earlier) / m
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from paceline.service.scheduler.state import Match, Needs, Reservation, Shape, Task

STRETCH = 10.0  # at load 0.9 it costs the mean less than 1 %, and up to halves the longest waiting
_SLACK = 64  # entries of tasks long gone that a heap may keep, beside as many as it has live ones

Rank = tuple[float, ...]  # the smallest goes first
_Entry = tuple[Rank, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task whose turn it may be."""

    rank: Rank
    task: Task
    queue: Queue

    @property
    def is_due(self) -> bool:
        return self.rank[0] == 0


class Queue:
    """The tasks of equal needs that wait."""

    def __init__(self, needs: Needs, matches: Iterable[Match], stretch: float) -> None:
        self.needs = needs
        self.stretch = stretch
        self.matches = {id(match.shape): match for match in matches}
        self.reserved: dict[str, Reservation] = {}  # tasks that followers are drained for
        self._tasks: dict[str, tuple[int, Task]] = {}  # all others, with a number that breaks ties
        self._shortest: list[_Entry] = []
        self._due: list[_Entry] = []
        self._candidates: list[Candidate] | None = None  # as found last, while nothing has changed
        self._valid_until = math.inf

    def __len__(self) -> int:
        return len(self._tasks) + len(self.reserved)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._tasks or task_id in self.reserved

    def __iter__(self) -> Iterator[Task]:
        yield from (task for _, task in self._tasks.values())
        yield from (reservation.task for reservation in self.reserved.values())

    def match(self, shape: Shape) -> Match:
        return self.matches[id(shape)]

    def due_at(self, task: Task) -> float:
        """From when on nothing may overtake it."""
        return task.submitted_at + self.stretch * task.seconds

    def push(self, task: Task, number: int) -> None:
        """Let a task wait."""
        self._candidates = None
        self._tasks[task.id] = (number, task)
        heappush(self._shortest, ((-task.priority, task.seconds, number), task.id))
        heappush(self._due, ((self.due_at(task), number), task.id))

    def remove(self, task_id: str) -> Task:
        """Take a task out that is not reserved for."""
        self._candidates = None
        _, task = self._tasks.pop(task_id)
        if len(self._shortest) > 2 * len(self._tasks) + _SLACK:
            self._shortest = self._live(self._shortest)
        if len(self._due) > 2 * len(self._tasks) + _SLACK:
            self._due = self._live(self._due)
        return task

    def reserve(self, reservation: Reservation) -> None:
        """Followers are drained for a task from now on; it still waits."""
        self.remove(reservation.task.id)
        self.reserved[reservation.task.id] = reservation

    def unreserve(self, task_id: str) -> Reservation | None:
        """Take a task out that followers are drained for, if it is one."""
        self._candidates = None
        return self.reserved.pop(task_id, None)

    def candidates(self, now: float) -> list[Candidate]:
        """Whose turn it may be: the one that is due longest, the shortest, and those that followers are drained for."""
        if self._candidates is None or now >= self._valid_until:
            self._candidates, self._valid_until = [], math.inf
            if self._tasks:
                (due_at, number), first = self._first(self._due)
                if self._is_due(due_at, now):
                    self._candidates.append(Candidate((0, due_at, number), self._tasks[first][1], self))
                rank, shortest = self._first(self._shortest)
                self._candidates.append(Candidate((1, *rank), self._tasks[shortest][1], self))
            for reservation in self.reserved.values():
                task, due_at = reservation.task, self.due_at(reservation.task)
                rank = (0, due_at) if self._is_due(due_at, now) else (1, -task.priority, task.seconds)
                self._candidates.append(Candidate(rank, task, self))
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
        found = self._tasks.get(entry[1])
        return found is not None and found[0] == entry[0][-1]

    def _live(self, heap: list[_Entry]) -> list[_Entry]:
        kept = [entry for entry in heap if self._is_live(entry)]
        heapify(kept)
        return kept
