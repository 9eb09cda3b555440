"""The state of a whole cluster, and the few ways in which it changes; nothing here decides anything."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from paceline.core.errors import InputError
from paceline.service.scheduler.order import STRETCH, Queue
from paceline.service.scheduler.state import Device, Follower, Needs, Placement, Reservation, Running, Shape, Task

_MOST_EMPTY = 1000  # queues that are kept although nothing waits in them


class Cluster:
    """Followers by shape, waiting tasks by needs, and what runs where."""

    def __init__(self, *, stretch: float = STRETCH) -> None:
        self.stretch = stretch
        self.followers: dict[str, Follower] = {}
        self.running: dict[str, tuple[Follower, ...]] = {}
        self._queues: dict[Needs, Queue] = {}
        self._waiting: dict[int, dict[Needs, Queue]] = {}  # of each shape, the queues that are not empty
        self._shapes: dict[tuple[tuple[Device, ...], int, float], Shape] = {}
        self._number = 0

    @property
    def waiting(self) -> Iterator[Task]:
        """Every task that waits."""
        return (task for queue in self._queues.values() for task in queue)

    @property
    def reserved(self) -> list[Follower]:
        """Every follower that is drained for a task."""
        return [follower for shape in self._shapes.values() for follower in shape.drained]

    def queue_of(self, needs: Needs) -> Queue:
        """Where tasks of these needs wait."""
        queue = self._queues.get(needs)
        if queue is None:
            if len(self._queues) > _MOST_EMPTY:
                self._queues = {kind: queue for kind, queue in self._queues.items() if len(queue)}
            matches = (shape.match(needs) for shape in self._shapes.values())
            queue = Queue(needs, (match for match in matches if match), self.stretch)
            self._queues[needs] = queue
        return queue

    def queues_of(self, shape: Shape) -> dict[Needs, Queue]:
        """Queues with tasks that followers of this shape could run."""
        return self._waiting[id(shape)]

    def stuck(self) -> list[Task]:
        """Tasks that wait for followers such as are not here."""
        queues = [queue for needs, queue in self._queues.items() if len(queue) and not self.can_run(needs)]
        return [task for queue in queues for task in queue]

    def can_run(self, needs: Needs) -> bool:
        """Whether the followers that are here could ever run such a task, all else ended."""
        matches = self.queue_of(needs).matches.values()
        return any(len(match.shape.members) >= needs.nodes for match in matches)

    def join(self, follower: Follower) -> None:
        """A follower has come, or come back; it runs nothing."""
        if follower.id in self.followers:
            raise InputError(f"follower '{follower.id}' is here already; give another one a name of its own")
        key = (follower.devices, follower.cpu_slots, follower.pace)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = follower.shape
            self._waiting[id(shape)] = {}
            for queue in self._queues.values():
                match = shape.match(queue.needs)
                if match:
                    queue.matches[id(shape)] = match
                    self._note(queue)
        follower.shape = shape
        shape.members[follower] = None
        self.followers[follower.id] = follower
        self._open(follower)

    def leave(self, follower: Follower) -> None:
        """A follower has gone; what it ran must have been ended before."""
        self._close(follower)
        del self.followers[follower.id], follower.shape.members[follower]

    def wait(self, task: Task) -> None:
        """A task waits for room."""
        if task.id in self.running or task.id in self.queue_of(task.needs):
            raise InputError(f"task '{task.id}' is here already; give another one an id of its own")
        self._number += 1
        queue = self.queue_of(task.needs)
        queue.push(task, self._number)
        self._note(queue)

    def withdraw(self, task: Task) -> tuple[Follower, ...]:
        """A task waits no longer; the followers that were drained for it are returned."""
        queue = self.queue_of(task.needs)
        reservation = queue.unreserve(task.id)
        if reservation is None:
            queue.remove(task.id)
        else:
            self._release(reservation)
        self._note(queue)
        return reservation.followers if reservation else ()

    def reserve(self, reservation: Reservation) -> None:
        """Followers are drained for a task from now on."""
        queue = self.queue_of(reservation.task.needs)
        queue.reserve(reservation)
        for follower in reservation.followers:
            self._close(follower)
            follower.reservation = reservation
            follower.shape.drained[follower] = None

    def unreserve(self, reservation: Reservation) -> None:
        """The task waits like any other again, as when one of its followers is lost."""
        self.withdraw(reservation.task)
        self.wait(reservation.task)

    def start(self, placement: Placement, now: float) -> tuple[Follower, ...]:
        """A task starts; followers that are no longer drained for it are returned."""
        task = placement.task
        drained = self.withdraw(task) if task.id in self.queue_of(task.needs) else ()
        ends_at = now + task.seconds * max(follower.pace for follower in placement.followers)
        for follower, devices in zip(placement.followers, placement.devices, strict=True):
            self._close(follower)
            follower.occupy(Running(task, devices, ends_at))
            self._open(follower)
        self.running[task.id] = placement.followers
        return drained

    def end(self, task_id: str) -> tuple[Follower, ...]:
        """A task has ended, one way or the other; the followers that it ran on are returned."""
        followers = self.running.pop(task_id)
        for follower in followers:
            self._close(follower)
            follower.release(task_id)
            self._open(follower)
        return followers

    def shrink(self, task_id: str, follower: Follower) -> None:
        """One of the followers of a running task is about to go; the others stay taken until the task ends."""
        self._close(follower)
        follower.release(task_id)
        self._open(follower)
        self.running[task_id] = tuple(one for one in self.running[task_id] if one is not follower)

    def retime(self, task_id: str, ends_at: float) -> None:
        """A running task is now expected to end at another time."""
        for follower in self.running[task_id]:
            follower.retime(task_id, ends_at)

    def _release(self, reservation: Reservation) -> None:
        for follower in reservation.followers:
            follower.reservation = None
            del follower.shape.drained[follower]
            self._open(follower)

    def _open(self, follower: Follower) -> None:
        """List a follower by its room; one that is reserved or full is in no list."""
        if follower.reservation is None and any(follower.free):
            buckets, signature = follower.shape.open, follower.signature
            bucket = buckets.get(signature)
            if bucket is None:
                bucket = buckets[signature] = OrderedDict()
            bucket[follower] = None

    def _close(self, follower: Follower) -> None:
        signature = follower.signature
        bucket = follower.shape.open.get(signature)
        if bucket is not None:
            bucket.pop(follower, None)
            if not bucket:
                del follower.shape.open[signature]

    def _note(self, queue: Queue) -> None:
        """Let shapes know whether something waits for them."""
        for shape in queue.matches:
            if len(queue):
                self._waiting[shape][queue.needs] = queue
            else:
                self._waiting[shape].pop(queue.needs, None)
