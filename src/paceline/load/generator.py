"""The load generator: one load, drawn beforehand, divided among lean processes, with one trace as its result."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import InputError
from paceline.load import processes
from paceline.load.arrivals import Schedule, shares
from paceline.load.kserve_grpc import require_grpc
from paceline.load.live import Figures, Line, together
from paceline.load.native_client import chosen
from paceline.load.parameters import LoadParameters, link_of
from paceline.load.request import (
    ALONE,
    NO_WORDS,
    ClientChoice,
    Endpoint,
    FreshWords,
    Prepared,
    Turn,
    grpc_metadata,
    http_bytes,
    longest_wait,
    sizes,
)
from paceline.load.task import LoadShare, WorkerTask
from paceline.load.trace import CLIENT_POST, CLIENT_PRE, Times, Trace

if TYPE_CHECKING:
    from paceline.load.clients import ClientHosts

RATE_PER_WORKER = 4000.0  # a fraction of what one can do, so that none is busy when a request is due
USERS_PER_WORKER = 32
COSTLY_BYTES = 2**16  # of a request, to send which takes a worker about as long as a small request altogether
GRPC_COST = 10.0  # of a call, compared with a request over HTTP, about
GRACE_SECONDS = 10.0
_ENDLESS = 65536  # how many are drawn where it is not known how many will be sent
_OTHER_FILES = 64  # descriptors that a worker needs in addition to its connections
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USABLE_PORTS = 0.9
MOST_COPIED = 4 * 2**30  # bytes of requests that workers have altogether, where their number is not given


class LoadPlan(LoadShare):
    """One load, drawn from one seed."""

    @classmethod
    def of(
        cls, load: LoadParameters | Schedule, requests: Sequence[Prepared], seed: int, *, in_turn: bool = False
    ) -> LoadPlan:
        """Draw arrivals, kinds and delays; each from a stream of its own, so that none changes the others."""
        streams = np.random.SeedSequence(seed).spawn(3)
        for_arrivals, for_kinds, for_network = (np.random.default_rng(stream) for stream in streams)
        first = np.array([kind for kind, one in enumerate(requests) if not one.turn.follows], np.int32)

        def draw_kinds(number: int) -> NDArray[np.int32]:
            """Of what arrives: requests that follow none."""
            if in_turn:
                return first[np.arange(number) % len(first)]
            return first[for_kinds.integers(0, len(first), number)]

        if isinstance(load, Schedule) or load.loop == "open":
            schedule = load if isinstance(load, Schedule) else load.schedule(for_arrivals)
            if not len(schedule):
                message = "the load sends not a single request: raise its rate or its duration"
                raise InputError("no-requests", message, key="load.rate")
            require_known(schedule, len(requests))
            kinds = draw_kinds(len(schedule)) if schedule.kind is None else schedule.kind
            plan = cls("open", schedule.intended, kinds)
        else:
            plan = cls(
                load.loop,
                kinds=draw_kinds(load.requests or _ENDLESS),
                users=load.concurrency,
                requests=load.requests,
                duration=load.seconds,
                think_time=load.think_time or 0.0,
            )
        if not isinstance(load, Schedule) and load.network:
            link = link_of(load.network)
            sizes = np.array([len(request.body) for request in requests], np.float64)[plan.kinds]
            up, down = link.way_up(sizes, for_network), link.way_down(len(sizes), for_network)
            plan = replace(plan, up=up, down=down, down_bandwidth=link.down or math.inf)
        before, after = _client_work(requests, plan.kinds)
        if before.any() or after.any():
            plan = replace(
                plan,
                up=before if plan.up is None else plan.up + before,
                down=after if plan.down is None else plan.down + after,
            )
        return plan

    def cut(self, most: int, each: int = 1) -> LoadPlan:
        """The same without what is beyond so many requests, of which an arrival leads to `each` at most."""
        if self.loop != "open":
            requests = None if self.requests is None else min(self.requests, most)
            return replace(self, requests=requests, users=min(self.users, most), most=most)
        number = -(-most // each)  # arrivals; the last may be cut short
        up, down = (None if way is None else way[:number] for way in (self.up, self.down))
        return replace(self, intended=self.intended[:number], kinds=self.kinds[:number], up=up, down=down, most=most)

    def workers(self, cores: int, cost: float = 1.0) -> int:
        """How many processes: as many as such requests of this rate or these users need, one per core at most."""
        most, need = cores, Schedule(self.intended).peak_rate / RATE_PER_WORKER
        if self.loop != "open":
            most, need = min(cores, self.users), self.users / USERS_PER_WORKER
        return max(1, min(most, math.ceil(need * cost)))

    def longest(self, timeout: float, turns: Sequence[Turn] = ()) -> float:
        """After how many seconds from the start everything must have ended."""
        network = sum(float(way.max()) for way in (self.up, self.down) if way is not None)
        network += longest_wait(turns, timeout)
        if self.loop == "open":
            return float(self.intended[-1]) + network + timeout + GRACE_SECONDS
        if self.requests is None:
            return self.duration + network + timeout + GRACE_SECONDS
        each = math.ceil(self.requests / self.users)
        return each * (timeout + network + self.think_time) + GRACE_SECONDS

    def divided(self, task: WorkerTask, number: int) -> list[WorkerTask]:
        """The task of each of so many workers: every request, and every user, belongs to one of them."""
        if self.loop != "open":
            number = min(number, self.users, self.requests or self.users)
        users = shares(self.users, number)
        requests = None if self.requests is None else shares(self.requests, number)
        most = None if self.most is None else shares(self.most, number)
        tasks = []
        for worker, rows in enumerate(shares(len(self.kinds), number)):
            share = replace(
                self,
                kinds=self.kinds[rows],
                intended=self.intended[rows] if self.loop == "open" else self.intended,
                users=len(users[worker]),
                requests=None if requests is None else len(requests[worker]),
                most=None if most is None else len(most[worker]),
                up=None if self.up is None else self.up[rows],
                down=None if self.down is None else self.down[rows],
            )
            tasks.append(replace(task, **vars(share), number=worker))
        return tasks


def cost_of(requests: Sequence[Prepared], *, is_grpc: bool = False) -> float:
    """How many small requests over HTTP keep a worker as busy as one of these, about."""
    size = sum(len(one.body) for one in requests) / len(requests)
    return (GRPC_COST if is_grpc else 1.0) + size / COSTLY_BYTES


def workers_of_hosts(cores: Sequence[int], needed: int, each: int | None = None) -> list[int]:
    """How many workers each host has: as many as are needed, evenly, at least one, no more than it has cores."""
    workers = each or max(1, math.ceil(needed / len(cores)))
    return [min(workers, available) for available in cores]


def dealt(number: int, workers: Sequence[int]) -> list[list[int]]:
    """Which of so many tasks each host does: one to each in rotation, and no more than it has workers."""
    order = [host for turn in range(max(workers)) for host, count in enumerate(workers) if count > turn]
    return [[task for task, owner in enumerate(order[:number]) if owner == host] for host in range(len(workers))]


def require_known(schedule: Schedule, kinds: int) -> None:
    """Refuse arrivals of requests that are not prepared."""
    if schedule.kind is not None and schedule.kind.max(initial=0) >= kinds:
        largest = int(schedule.kind.max())
        message = f"an arrival is of kind {largest}, but there are {kinds} kinds, from 0 (requests.distinct)"
        raise InputError("unknown-kind", message, key="requests.distinct", value=kinds, suggestion=str(largest + 1))


def drive(
    endpoint: Endpoint,
    requests: Sequence[Prepared],
    load: LoadParameters | Schedule,
    *,
    seed: int = 1234,
    workers: int | None = None,
    cpus: Sequence[int] | None = None,
    hosts: ClientHosts | None = None,
    timeout: float = 30.0,
    connections: int | None = None,
    streaming: bool = False,
    in_turn: bool = False,
    keep: int = 0,
    on_answer: Callable[[int, bytes], None] | None = None,
    go_on: Callable[[], bool] = lambda: True,
    on_live: Callable[[Figures], None] | None = None,
    fresh: Sequence[str] = (),
    outputs: tuple[tuple[int, ...], ...] | None = None,
    most: int | None = None,
    tokenizer: Path | None = None,
    json_keys: tuple[str, ...] | None = None,
    client: ClientChoice | None = None,
) -> Trace:
    """Send requests as `load` says and return the trace of all of them.

    In an open loop `intended` are the times of the schedule; in a closed loop they are when a user was ready to send.

    - workers: how many processes, on each of the hosts; unset is as many as the rate needs, one per core at most
    - cpus: cores to pin them to, in rotation; hosts have their own
    - hosts: send instead of this machine; together they send the same schedule as one machine would
    - timeout: how many seconds an answer is waited for
    - connections: how many there may be at a time; unset is what the system grants
    - streaming: answers are streams of events; the trace has the time of each piece
    - in_turn: requests one after the other, instead of drawn at random
    - on_answer(kind, body): called after the run with the first `keep` good answers of each kind and worker
    - go_on: called many times a second; false ends the load, and what has no answer by then is broken or unsent
    - on_live: called every second with how it goes, on all hosts together
    - fresh: words of which requests with a slot get some that no request before had
    - outputs: shapes of one sample in an answer; answers of a tensor protocol without them are not good
    - most: no more requests than this are sent, whatever the load says
    - tokenizer: counts the tokens of answers that come without a count of the server's
    - client: instead of the load's own, which is auto unless set
    - json_keys: what the texts of answers have to be JSON objects with

    The requests of a worker that died are broken, or unsent if they were due later; the trace says why it died.
    """
    if not requests:
        raise InputError("no-requests", "there are no requests to send", key="requests")
    if endpoint.is_grpc:
        require_grpc()
    wanted = client or (load.client if isinstance(load, LoadParameters) else None)
    name, _ = chosen(wanted, endpoint, requests, streaming=streaming, here=hosts is None)
    plan = LoadPlan.of(load, requests, seed, in_turn=in_turn)
    turns = [one.turn for one in requests]
    if most is not None:
        plan = plan.cut(most, max(sizes(turns)))
    cost = cost_of(requests, is_grpc=endpoint.is_grpc)
    shared = workers_of_hosts(hosts.cores, plan.workers(sum(hosts.cores), cost), workers) if hosts is not None else []
    holding = max(1, MOST_COPIED // max(1, sum(len(one.body) for one in requests)))  # each worker has all requests
    cores = min(holding, len(cpus or os.sched_getaffinity(0)))
    number = sum(shared) or workers or plan.workers(cores, cost)
    words = FreshWords.drawn(fresh) if any(one.fresh.words for one in requests) else NO_WORDS
    common = replace(
        _task_of(endpoint, requests, with_words=bool(words.words)),
        json_keys=json_keys,
        client=name,
        outputs=outputs,
        tokenizer=str(tokenizer or ""),
        limit=max(1, connections // number) if connections else socket_limit(number),
        timeout=timeout,
        streaming=streaming,
        keep=keep,
        live=on_live is not None,
    )
    tasks = plan.divided(common, number)
    if words.words:
        tasks = [replace(task, fresh=words.of_worker(i, len(tasks))) for i, task in enumerate(tasks)]
    if cpus and hosts is None:
        tasks = [replace(task, cpu=cpus[i % len(cpus)]) for i, task in enumerate(tasks)]

    def on_lines(lines: list[Line]) -> None:
        if on_live is not None:
            on_live(together(lines))

    longest = plan.longest(timeout, turns)
    if hosts is not None:
        results = hosts.run(tasks, shared, longest, go_on, on_lines=on_lines)
    else:
        results = processes.run(tasks, longest, go_on, on_lines=on_lines)
    if on_answer is not None:
        for kind, body in results.answers:
            on_answer(kind, body)
    trace = results.trace
    if not any(request.before or request.after for request in requests):
        return trace
    before, after = _client_work(requests, trace.kind)
    return replace(trace, stages={CLIENT_PRE: before, **trace.stages, CLIENT_POST: after})


def _task_of(endpoint: Endpoint, requests: Sequence[Prepared], *, with_words: bool) -> WorkerTask:
    """What all workers are to send, and where; not how much of it. `with_words` that are chosen as it is sent."""
    payloads = [one.body if endpoint.is_grpc else http_bytes(endpoint, one) for one in requests]
    heads = [len(payload) - len(one.body) for one, payload in zip(requests, payloads, strict=True)]
    with_heads = list(zip(requests, heads, strict=True))
    with_turns = any(one.turn != ALONE for one in requests)
    return WorkerTask(
        parent=os.getpid(),
        endpoint=endpoint,
        payloads=payloads,
        slots=[replace(one.fresh, at=head + one.fresh.at) for one, head in with_heads] if with_words else [],
        turns=[_of_payload(one.turn, head) for one, head in with_heads] if with_turns else [],
        metadata=[grpc_metadata(endpoint, one) for one in requests],
        samples=np.array([one.samples for one in requests], np.int32),
    )


def _of_payload(turn: Turn, head: int) -> Turn:
    """The turn, with bytes counted from the begin of what is sent, which has so many before the body."""
    return replace(turn, quotes=tuple((head + at, kind) for at, kind in turn.quotes))


def _client_work(requests: Sequence[Prepared], kinds: NDArray[np.int32]) -> tuple[Times, Times]:
    """Seconds that users' machines work on each request before it is sent, and on its answer."""
    return np.array([one.before for one in requests])[kinds], np.array([one.after for one in requests])[kinds]


def socket_limit(workers: int) -> int:
    """How many connections each worker may have: what the system grants in files and in ports."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2**20 if files == resource.RLIM_INFINITY else files
    try:
        low, high = map(int, _PORTS.read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999  # Linux's own default
    return max(1, min(files - _OTHER_FILES, int(_USABLE_PORTS * (high - low)) // workers))
