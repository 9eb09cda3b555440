"""The load generator: one load, drawn beforehand, sent by lean processes, seen as one trace."""

from __future__ import annotations

import importlib.util
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.benchmarks.serving.load import processes
from paceline.benchmarks.serving.load.arrivals import Schedule
from paceline.benchmarks.serving.load.parameters import LoadParameters
from paceline.benchmarks.serving.load.plan import Plan, cost_of, workers_of_hosts
from paceline.benchmarks.serving.load.prepared import Prepared, grpc_metadata, http_bytes
from paceline.benchmarks.serving.load.trace import CLIENT_POST, CLIENT_PRE, Trace
from paceline.benchmarks.serving.load.worker import Task
from paceline.benchmarks.serving.servers.base import Endpoint
from paceline.core.errors import InputError, MissingDependency

if TYPE_CHECKING:
    from paceline.benchmarks.serving.load.clients import ClientHosts

_OTHER_FILES = 64  # descriptors that a worker needs beside its connections
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USABLE_PORTS = 0.9
MOST_COPIED = 4 * 2**30  # bytes of requests that workers have altogether, where nobody says how many there are to be


def drive(
    endpoint: Endpoint,
    requests: Sequence[Prepared],
    load: LoadParameters | Schedule,
    *,
    seed: int = 1234,
    weights: Sequence[float] | None = None,
    workers: int | None = None,
    cpus: Sequence[int] | None = None,
    hosts: ClientHosts | None = None,
    timeout: float = 30.0,
    connections: int | None = None,
    streaming: bool = False,
    keep: int = 0,
    on_answer: Callable[[int, bytes], None] | None = None,
    go_on: Callable[[], bool] = lambda: True,
    say: Callable[[str], None] = lambda _text: None,
) -> Trace:
    """Send requests as `load` says and return what became of each of them.

    In an open loop `intended` are the times of the schedule; in a closed loop they are when a user was ready to send.

    - weights: how often each of `requests` is drawn; unset is evenly
    - workers: how many processes, on each of the hosts; unset is as many as the rate needs, one per core at most
    - cpus: cores to pin them to, in turn; hosts have their own
    - hosts: who sends instead of this machine; together they send the same schedule as one machine would
    - timeout: how many seconds an answer is waited for
    - connections: how many there may be at a time; unset is what the system grants
    - streaming: answers are streams of events; the trace tells when each piece came
    - on_answer(kind, body): called after the run with the first `keep` good answers of each kind and worker
    - go_on: asked many times a second; a no ends the load, and what has no answer by then is broken or unsent
    - say: hears of workers that died; their requests are broken, or unsent if they were due later
    """
    if not requests:
        raise InputError("there are no requests to send")
    is_grpc = endpoint.wire == "kserve-grpc"
    if is_grpc:
        require_grpc()
    cost = cost_of(requests, is_grpc=is_grpc)
    plan = Plan.of(load, requests, seed, weights)
    most = max(1, MOST_COPIED // max(1, sum(len(one.body) for one in requests)))  # each worker has all requests
    shared = workers_of_hosts(hosts.cores, plan.workers(sum(hosts.cores), cost), workers) if hosts is not None else []
    number = sum(shared) or workers or plan.workers(min(most, len(cpus or os.sched_getaffinity(0))), cost)
    common = Task(
        parent=os.getpid(),
        transport="grpc" if is_grpc else "http",
        host=endpoint.host,
        port=endpoint.port,
        path=endpoint.path,
        tls=endpoint.tls,
        payloads=[one.body if is_grpc else http_bytes(endpoint, one) for one in requests],
        metadata=[grpc_metadata(endpoint, one) for one in requests],
        limit=max(1, connections // number) if connections else socket_limit(number),
        timeout=timeout,
        streaming=streaming,
        keep=keep,
    )
    tasks = plan.divided(common, number)
    if cpus and hosts is None:
        tasks = [replace(task, cpu=cpus[i % len(cpus)]) for i, task in enumerate(tasks)]
    samples = np.array([one.samples for one in requests], np.int32)
    if hosts is not None:
        seen = hosts.run(tasks, shared, samples, plan.longest(timeout), go_on)
    else:
        seen = processes.run(tasks, samples, plan.longest(timeout), go_on)
    for loss in seen.losses:
        say(loss)
    for kind, body in seen.answers if on_answer else ():
        assert on_answer is not None
        on_answer(kind, body)
    return _with_work(seen.trace, requests)


def require_grpc() -> None:
    """Refuse where gRPC is not installed."""
    if importlib.util.find_spec("grpc") is None:
        raise MissingDependency("grpcio", "install it with: pip install 'paceline[serving]'")


def _with_work(trace: Trace, requests: Sequence[Prepared]) -> Trace:
    """With what users' own machines did for each request, if they did something, as stages."""
    if not any(one.before or one.after for one in requests):
        return trace
    before, after = (np.array(times) for times in zip(*((r.before, r.after) for r in requests), strict=True))
    return replace(trace, stages={CLIENT_PRE: before[trace.kind], **trace.stages, CLIENT_POST: after[trace.kind]})


def socket_limit(workers: int) -> int:
    """How many connections each worker may have: what the system grants in files and in ports."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2**20 if files == resource.RLIM_INFINITY else files
    try:
        low, high = map(int, _PORTS.read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999  # Linux's own default
    return max(1, min(files - _OTHER_FILES, int(_USABLE_PORTS * (high - low)) // workers))
