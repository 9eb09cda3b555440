"""The model behind the endpoints: requests are checked, queued, computed in batches, and answered.

Requests wait in groups: only those of one group (the same shapes) can share a batch. A batch is the oldest requests of
a group, in order; it is taken when an instance is free and

- its size is a preferred one (the largest such), or
- it cannot grow: it is full, or the next request of the group does not fit in, or
- its oldest request has waited for `max_delay`.

Of several such batches the one with the oldest request goes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import numpy as np

from paceline.load.kserve import Message, ProtocolError, Request, TensorSpec, datatype_of
from paceline.load.timerfd import Alarm
from paceline.load.trace import Stages
from paceline.servers._embedded.engines import Arrays, Buffered, InferenceEngine, InferenceSession, warm_up
from paceline.servers.processing import Processing


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
    """The waiting requests and the free instances; time is an argument.

    Every batch keeps its instance until `release()`.
    """

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


_MOST_SIGNATURES = 1024  # shapes of requests whose check is remembered
_MOST_READING = 8  # threads that decode images and texts

now: Callable[[], int] = time.monotonic_ns
Answer = Callable[[Message | Exception, Stages | None], None]
Encode = Callable[[str, Arrays, Request], Message]


class Overloaded(Exception):
    """The queue is full."""


@dataclass(eq=False, slots=True)
class Ticket(WaitingRequest):
    """One request in work; `answer` is called once, with an answer or an error, unless it is cancelled."""

    request: Request
    inputs: Arrays  # of the model
    answer: Answer
    encode: Encode
    received: int
    decoded: int
    is_cancelled: bool = False
    is_answered: bool = False


@dataclass
class Statistics:
    """Counted since the server is ready."""

    since: int = field(default_factory=now)
    requests: Counter[str] = field(default_factory=Counter)  # ok, refused, shed, failed, cancelled
    batches: Counter[int] = field(default_factory=Counter)  # samples in a batch, to how many such batches
    padding: int = 0  # samples computed only to fill a batch
    busy: list[int] = field(default_factory=list)  # nanoseconds of each instance

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "seconds": (now() - self.since) / 1e9,
            "requests": {key: self.requests[key] for key in ("ok", "refused", "shed", "failed", "cancelled")},
            "batches": {str(size): count for size, count in sorted(self.batches.items()) if count},
            "padding": self.padding,
            "instances": [{"busy_seconds": busy / 1e9} for busy in self.busy],
        }


class Service:
    """One model, its queue and its instances. All methods belong to the event loop's thread."""

    def __init__(
        self,
        name: str,
        engine: InferenceEngine,
        policy: Policy,
        placement: Sequence[tuple[tuple[int, ...] | None, int]],  # CPUs and threads of each instance
        sizes: Sequence[int],
        processing: Processing | None = None,
    ) -> None:
        self.name = name
        self.engine = engine
        self.processing = processing
        self.inputs: tuple[TensorSpec, ...] = engine.artifact.inputs
        self.takes = self.inputs if processing is None else (processing.takes,)  # what requests carry
        self.outputs = engine.outputs() if processing is None else processing.gives
        self.statistics = Statistics(busy=[0] * len(placement))
        self._loop = asyncio.get_running_loop()
        self._placement = placement
        self.sizes = tuple(sorted(sizes))
        self._batcher: Batcher[Ticket] = Batcher(policy, len(placement))
        self._alarm = Alarm(self._pump)
        self._signatures: dict[Hashable, int] = {}
        self._instances: list[Instance] = []
        self._session: InferenceSession | None = None  # of an engine that needs no thread
        self._is_pumping = False
        self._running = 0
        self._reading = 0  # requests whose images or texts are being decoded
        self._readers = ThreadPoolExecutor(min(_MOST_READING, len(os.sched_getaffinity(0))), "reader")

    async def start(self) -> None:
        """Load and warm up every instance; it is ready when this returns."""
        if self.engine.inline:
            self._session = self.engine.session(1)
        for index, (cpus, threads) in enumerate([] if self.engine.inline else self._placement):
            instance = Instance(index, self, cpus, threads)
            self._instances.append(instance)
            await instance.loaded  # one after the other: compilers and loaders are not all safe to run side by side
        self.statistics.since = now()

    async def drain(self) -> None:
        """Wait until everything that was accepted is answered."""
        while len(self._batcher) or self._running or self._reading:
            await asyncio.sleep(0.005)

    def close(self) -> None:
        for instance in self._instances:
            instance.batches.put(None)
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._alarm.close()

    def submit(self, request: Request, received: int, answer: Answer, encode: Encode) -> Ticket:
        """Queue a request. ProtocolError if it does not fit the model, Overloaded if too many wait."""
        size = self._check(request)
        decoded = now()
        waits = len(self._batcher) + self._reading
        if waits >= self._batcher.policy.max_queue:
            self.statistics.requests["shed"] += 1
            raise Overloaded(f"{waits} requests are waiting already; try again later")
        group = _group(request.inputs)
        ticket = Ticket(size, group, decoded, request, request.inputs, answer, encode, received, decoded)
        if self.processing is None:
            self._queue(ticket)
        else:
            self._reading += 1
            self._readers.submit(self._read, self.processing, ticket)
        return ticket

    def _read(self, processing: Processing, ticket: Ticket) -> None:
        """Images and texts become tensors; called by readers."""
        result: Arrays | Exception
        try:
            result = processing.before(ticket.inputs[processing.takes.name].tolist())
        except Exception as error:
            result = error
        self.call_in_loop(self._was_read, ticket, result)

    def _was_read(self, ticket: Ticket, result: Arrays | Exception) -> None:
        self._reading -= 1
        if ticket.is_cancelled:
            return
        if isinstance(result, Exception):
            ticket.is_answered = True
            self.statistics.requests["refused" if isinstance(result, ProtocolError) else "failed"] += 1
            ticket.answer(result, None)
            return
        ticket.inputs, ticket.group, ticket.arrival = result, _group(result), now()
        self._queue(ticket)

    def _queue(self, ticket: Ticket) -> None:
        self._batcher.add(ticket)
        self._pump()

    def call_in_loop(self, call: Callable[..., object], *arguments: object) -> None:
        """From another thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: so does the process
            self._loop.call_soon_threadsafe(call, *arguments)

    def cancel(self, ticket: Ticket) -> None:
        """The client has left."""
        ticket.is_cancelled = True
        self.statistics.requests["cancelled"] += 1
        self._batcher.cancel(ticket)

    def describe(self) -> dict[str, Any]:
        """Counters as JSON."""
        waiting = len(self._batcher) + self._reading
        return self.statistics.describe() | {"queue": waiting, "running": self._running}

    def fill(self, batch: RequestBatch[Ticket], session: InferenceSession) -> Arrays:
        """The inputs of a batch, one behind the other, in the session's buffers if it has any; called by instances."""
        rows = self._rows(batch)
        room = session.buffers(rows) if isinstance(session, Buffered) else None
        arrays: Arrays = {}
        for spec in self.inputs or [TensorSpec(name, "FP32", ()) for name in batch.requests[0].inputs]:
            parts = [ticket.inputs[spec.name] for ticket in batch.requests]
            if rows > batch.size:
                last = parts[-1][-1]
                parts.append(np.broadcast_to(last, (rows - batch.size, *last.shape)))
            arrays[spec.name] = np.concatenate(parts, out=None if room is None else room[spec.name])
        return arrays

    def finish(self, batch: RequestBatch[Ticket], result: Arrays | Exception, times: tuple[int, int, int]) -> None:
        """A batch was computed: start the next one, then answer."""
        self._running -= 1
        taken, filled, computed = times
        counted = self.statistics
        counted.busy[batch.instance] += computed - taken
        counted.batches[batch.size] += 1
        counted.padding += self._rows(batch) - batch.size
        self._batcher.release(batch.instance)
        self._pump()
        offset = 0
        for ticket in batch.requests:
            begin, offset = offset, offset + ticket.size
            if ticket.is_cancelled:
                continue
            ticket.is_answered = True
            try:
                if isinstance(result, Exception):
                    raise result
                part = {name: array[begin:offset] for name, array in result.items()}
                message = ticket.encode(self.name, part, ticket.request)
            except Exception as error:
                counted.requests["failed"] += 1
                ticket.answer(error, None)
                continue
            counted.requests["ok"] += 1
            stages = Stages(
                decode=ticket.decoded - ticket.received,
                queue=taken - ticket.arrival,
                batch=filled - taken,
                inference=computed - filled,
                post=now() - computed,
                size=batch.size,
                pre=ticket.arrival - ticket.decoded,
            )
            ticket.answer(message, stages)

    def _rows(self, batch: RequestBatch[Ticket]) -> int:
        """Samples that are computed: those of the batch, and the padding."""
        return next(size for size in self.sizes if size >= batch.size) if self.engine.pads else batch.size

    def _pump(self) -> None:
        """Start every batch that can start, and set the alarm for the next."""
        if self._is_pumping:  # an answer has led to the next request: the loop below will take it
            return
        self._is_pumping = True
        try:
            while batches := self._batcher.take(now()):
                for batch in batches:
                    self._running += 1
                    if self._session is not None:
                        self.finish(batch, *compute(self._session, self, batch))
                    else:
                        self._instances[batch.instance].batches.put(batch)
        finally:
            self._is_pumping = False
        self._alarm.set(self._batcher.wake())

    def _check(self, request: Request) -> int:
        """How many samples it holds."""
        arrays = request.inputs
        signature = tuple([(name, array.dtype, array.shape) for name, array in arrays.items()])
        size = self._signatures.get(signature)
        if size is None:
            size = samples_in(arrays, self.takes, self._batcher.policy.max_batch)
            if len(self._signatures) >= _MOST_SIGNATURES:
                self._signatures.clear()
            self._signatures[signature] = size
        for name in request.outputs or ():
            if all(name != spec.name for spec in self.outputs):
                names = ", ".join(spec.name for spec in self.outputs)
                raise ProtocolError(f"outputs: there is no '{name}'; the model has {names}")
        return size


def _group(arrays: Arrays) -> Hashable:
    """Only requests of one group can be computed together."""
    return tuple(sorted([(name, array.shape[1:]) for name, array in arrays.items()]))


class Instance:
    """One thread that computes batches."""

    def __init__(self, index: int, service: Service, cpus: tuple[int, ...] | None, threads: int) -> None:
        self.batches: SimpleQueue[RequestBatch[Ticket] | None] = SimpleQueue()
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._service = service
        self._cpus = cpus
        self._threads = threads
        # A daemon: a model that never returns must not keep the process from ending.
        Thread(target=self._run, name=f"instance-{index}", daemon=True).start()

    def _run(self) -> None:
        service = self._service
        try:
            if self._cpus:
                os.sched_setaffinity(0, self._cpus)  # of this thread, and of those that it starts
            session = service.engine.session(self._threads)
            warm_up(session, service.inputs, service.sizes)
        except Exception as error:
            service.call_in_loop(self.loaded.set_exception, error)
            return
        service.call_in_loop(self.loaded.set_result, None)
        while (batch := self.batches.get()) is not None:
            service.call_in_loop(service.finish, batch, *compute(session, service, batch))


def compute(
    session: InferenceSession, service: Service, batch: RequestBatch[Ticket]
) -> tuple[Arrays | Exception, tuple[int, int, int]]:
    """The engine's outputs for a batch, or its error; and when the batch was taken, filled and computed."""
    taken = filled = computed = now()
    try:
        inputs = service.fill(batch, session)
        filled = now()
        outputs = session(inputs)
        computed = now()
        for name, array in outputs.items():
            if not array.shape or len(array) < batch.size:
                raise RuntimeError(f"output '{name}' has the shape {array.shape} for a batch of {batch.size}")
        if service.processing is not None:
            outputs = service.processing.after(outputs)
    except Exception as error:
        return error, (taken, filled, max(filled, computed))
    return outputs, (taken, filled, computed)


def samples_in(arrays: Arrays, inputs: Sequence[TensorSpec], max_batch: int) -> int:
    """How many samples a request holds; ProtocolError if it is not what the model takes."""
    specs = {spec.name: spec for spec in inputs}
    if specs and arrays.keys() != specs.keys():
        raise ProtocolError(f"inputs: the model takes {', '.join(specs)}, but the request has {', '.join(arrays)}")
    for name, array in arrays.items():
        if not array.shape:
            raise ProtocolError(f"inputs: '{name}' is a scalar; its first axis must be the batch")
        spec = specs.get(name)
        if spec is None:
            continue
        if array.dtype != spec.dtype:
            raise ProtocolError(f"inputs: '{name}' is {datatype_of(array.dtype)}; the model takes {spec.datatype}")
        shape, expected = list(array.shape), [-1, *spec.shape]
        pairs = zip(shape, expected, strict=True)
        if len(shape) != len(expected) or any(axis not in (-1, size) for size, axis in pairs):
            raise ProtocolError(f"inputs: '{name}' has the shape {shape}; the model takes {expected}")
    sizes = {len(array) for array in arrays.values()}
    if len(sizes) != 1:
        raise ProtocolError(f"inputs: the first axes must be of one length, they are {sorted(sizes)}")
    (size,) = sizes
    if not 1 <= size <= max_batch:
        raise ProtocolError(f"inputs: the request has {size} samples; the server takes 1 to {max_batch} (max_batch)")
    return size
