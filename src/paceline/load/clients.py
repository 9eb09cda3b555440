"""The hosts that send: each its share of one schedule, all from one agreed instant, with one trace as the result."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from paceline.core.errors import CaseError, InputError
from paceline.load import processes, quality
from paceline.load.generator import dealt
from paceline.load.live import Line, Watcher
from paceline.load.processes import CpuPlacement
from paceline.load.quality import GeneratorCeiling, RequestKind, boot, read_ceiling
from paceline.load.request import Endpoint
from paceline.load.task import WorkerTask, payload_message, task_message
from paceline.load.trace import Trace, WorkerResults
from paceline.remote.hosts import LOCAL, Agents, RemoteAgent, RemoteShell

AGENT = "paceline.load.client_agent"
ROUNDS = 10  # of reading a host's clock
ANSWER_SECONDS = 30.0
READY_SECONDS = processes.START_SECONDS + ANSWER_SECONDS
CALIBRATION_SECONDS = 120.0
LATE_SECONDS = 10.0  # a host ends its workers by itself; one that is this late is lost
_AHEAD = 4  # one-way trips from the message to the start, in addition to what workers need


class ClientLost(CaseError):
    """A host that sent a part of the load is lost."""


@dataclass(frozen=True)
class Offset:
    """What a host's monotonic clock shows more than this one's, in seconds; only the common start depends on it."""

    seconds: float = 0.0
    uncertainty: float = 0.0

    @classmethod
    def of_trips(cls, trips: Sequence[tuple[int, int, int]]) -> Offset:
        """From when it was sent, its answer, and when that was received (ns): the shortest trip is the most exact."""
        sent, clock, received = min(trips, key=lambda trip: trip[2] - trip[0])
        return cls((clock - (sent + received) / 2) / 1e9, (received - sent) / 2e9)


@dataclass
class ClientHost:
    """A host that sends."""

    name: str
    agent: RemoteAgent
    cores: int
    boot: str  # the same for hosts that are one machine
    ceiling: GeneratorCeiling | None = None
    offset: Offset = field(default_factory=Offset)
    workers: int = 0  # of the last load
    payloads: str = ""  # the digest of those that it has


class ClientHosts:
    """Hosts that a user named, as one load generator."""

    def __init__(self, agents: Agents, hosts: Sequence[ClientHost]) -> None:
        self._agents = agents
        self.hosts = hosts
        self.lost: dict[str, str] = {}  # why, by name

    @classmethod
    @contextmanager
    def reached(cls, names: Sequence[str], shell: RemoteShell, placement: CpuPlacement) -> Iterator[ClientHosts]:
        """The hosts, all of them fit to send; nothing that was started there outlives this."""
        agents = Agents(shell, AGENT)
        machine = {"boot": boot(), "load_cores": list(placement.load), "server_cores": list(placement.server)}
        try:
            entered = [agents.enter(name) for name in names]
            answers = agents.greet(entered, machine)
            yield cls(agents, [ClientHost(a.name, a, answers[a]["cores"], answers[a]["boot"]) for a in entered])
        finally:
            agents.close()

    def calibrate(self, kind: RequestKind) -> None:
        """Measure each host's ceiling of such requests; hosts that are one machine are measured one after the other."""
        left, order = list(self.hosts), {"do": "calibrate"} | asdict(kind)
        while left:
            group = {host.boot or host.name: host for host in left}.values()
            answers = self._agents.ask([host.agent for host in group], order, CALIBRATION_SECONDS)
            for host in group:
                host.ceiling = read_ceiling(answers[host.agent]["ceiling"])
            left = [host for host in left if host.ceiling is None]

    def require_reach(self, endpoint: Endpoint) -> None:
        """Refuse a server that one of the hosts does not reach."""
        order = {"do": "reach", "host": endpoint.host, "port": endpoint.port}
        self._agents.ask([host.agent for host in self.hosts], order, ANSWER_SECONDS)

    @property
    def is_on_this_machine(self) -> bool:
        """Whether one of them takes cores that the server could have."""
        return any(host.boot and host.boot == boot() for host in self.hosts)

    @property
    def cores(self) -> list[int]:
        """How many workers each host can have."""
        return [host.cores for host in self.hosts]

    @property
    def weakest(self) -> GeneratorCeiling:
        """The lowest ceiling of a worker."""
        return min((host.ceiling for host in self.hosts if host.ceiling), key=lambda ceiling: ceiling.rate)

    @property
    def most(self) -> float:
        """Requests per second that all of them together can send, as measured."""
        return sum(host.ceiling.rate * host.cores for host in self.hosts if host.ceiling)

    def run(
        self,
        tasks: Sequence[WorkerTask],
        workers: Sequence[int],
        longest: float,
        go_on: Callable[[], bool] = lambda: True,
        on_lines: Callable[[list[Line]], None] = lambda _lines: None,
    ) -> WorkerResults:
        """Do all tasks at the same time, so many on each host; a host that is lost ends the load on all of them."""
        shares: dict[RemoteAgent, _Share] = {}
        for number, (host, numbers) in enumerate(zip(self.hosts, dealt(len(tasks), workers), strict=True)):
            host.workers = len(numbers)
            if numbers:
                shares[host.agent] = _Share(number, host, [tasks[i] for i in numbers])
        # Payloads are sent once: they are large, and the same in every load.
        data = payload_message(tasks[0].payloads, tasks[0].metadata)
        digest = hashlib.sha256(json.dumps(data).encode()).hexdigest()
        without = {agent: share.host for agent, share in shares.items() if share.host.payloads != digest}
        self._agents.ask(list(without), {"do": "payloads", "data": data}, READY_SECONDS)
        for host in without.values():
            host.payloads = digest
        for agent, share in shares.items():
            trips = []
            for _ in range(ROUNDS):
                sent = time.monotonic_ns()
                answer = self._agents.ask([agent], {"do": "clock"}, ANSWER_SECONDS)[agent]
                trips.append((sent, int(answer["clock"]), time.monotonic_ns()))
            share.host.offset = Offset.of_trips(trips)
        orders = {
            agent: {
                "do": "send",
                "tasks": [task_message(replace(task, payloads=[], metadata=[])) for task in share.tasks],
                "longest": longest,
            }
            for agent, share in shares.items()
        }
        self._agents.ask_each(orders, READY_SECONDS)
        ahead = processes.HEAD_START + _AHEAD * max(share.host.offset.uncertainty for share in shares.values())
        start = time.monotonic_ns() + int(ahead * 1e9)
        for agent, share in shares.items():
            agent.send({"do": "start", "at": start + round(share.host.offset.seconds * 1e9)})
        self._watch(shares, start / 1e9, longest, go_on, Watcher(on_lines))
        merged = _merged(shares.values())
        return replace(merged, trace=replace(merged.trace, begun=start / 1e9))

    def facts(self, trace: Trace) -> dict[str, dict[str, Any]]:
        """What each host did for a load, and how exactly its clock is known."""
        return {host.name: _facts(host, trace.of_host(number)) for number, host in enumerate(self.hosts)}

    def _watch(
        self,
        shares: Mapping[RemoteAgent, _Share],
        start: float,
        longest: float,
        go_on: Callable[[], bool],
        watcher: Watcher,
    ) -> None:
        """Until each host has sent its results, or is lost."""
        self._agents.recall(list(shares))
        waiting, end, is_ending = set(shares), start + longest + LATE_SECONDS, False
        while waiting:
            received = self._agents.listen(time.monotonic() + processes.LOOK_EVERY)
            now = time.monotonic()
            agent, message = received or (None, None)
            if message is not None and "live" in message:
                watcher.add(message["live"], now)
            elif agent is not None and agent in waiting:
                waiting.remove(agent)
                if message is not None and "results" in message:
                    shares[agent].results = WorkerResults.unpacked(base64.b64decode(message["results"]))
                else:
                    why = agent.how_it_ended() if message is None else str(message.get("refused", message))
                    shares[agent].died = now - start
                    self.lost[agent.name] = why
            watcher.settle(sum(len(shares[agent].tasks) for agent in waiting), now)
            if not is_ending and (self.lost or not go_on()):
                is_ending, end = True, min(end, now + processes.END_SECONDS + LATE_SECONDS)
                for agent in waiting:
                    agent.send({"do": "stop"})
            if now > end:
                for agent in waiting:
                    agent.ended = True
                    shares[agent].died = now - start
                    self.lost[agent.name] = "it does not answer any more"
                break

    def require_all(self, trace: Trace) -> None:
        """Refuse a load of which a lost host had a part."""
        if not self.lost:
            return
        losses = "; ".join(f"client host {name} was lost: {why}" for name, why in self.lost.items())
        error = ClientLost(
            f"{losses}; the load was ended on all: {int(trace.ok.sum())} of {len(trace)} requests were answered to "
            "others, and those latencies are kept"
        )
        error.detail = "\n".join(host.agent.last_words() for host in self.hosts if host.name in self.lost)
        raise error


@dataclass
class _Share:
    """The part of a load that one host sends, and its results."""

    number: int  # of the host
    host: ClientHost
    tasks: list[WorkerTask]
    results: WorkerResults | None = None
    died: float = math.inf  # seconds after the start


def read_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names that a remote shell takes for hosts, each once."""
    for name in names:
        if not name or name.startswith("-") or any(character.isspace() for character in name):
            message = f"'{name}' is not a host; write names like a or me@b"
            raise InputError("not-a-host", message, key="clients.hosts", value=name)
    if duplicate := next((name for name in sorted(names) if names.count(name) > 1), None):
        message = f"duplicate host '{duplicate}'; for several processes on it, set workers"
        raise InputError("duplicate-host", message, key="clients.hosts", value=duplicate)
    return tuple(names)


def is_for_others(address: str) -> bool:
    """Whether other hosts may reach this address or name."""
    parsed = _parsed(address)
    return not (is_of_this_machine_alone(address) or (parsed is not None and parsed.is_unspecified))


def is_of_this_machine_alone(address: str) -> bool:
    """Whether other hosts cannot reach it."""
    parsed = _parsed(address)
    return address.casefold() == LOCAL if parsed is None else parsed.is_loopback


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address; None if it is a name."""
    try:
        return ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _merged(shares: Iterable[_Share]) -> WorkerResults:
    """One trace of all hosts."""
    parts: list[Trace] = []
    answers: list[tuple[int, bytes]] = []
    for share in shares:
        if share.results is None:
            part = Trace.merged([processes.lost(task, share.died) for task in share.tasks])
        else:
            part = share.results.trace
            part = replace(part, losses=tuple(f"{share.host.name}: {loss}" for loss in part.losses))
            answers += share.results.answers
        parts.append(replace(part, host=np.full(len(part), share.number, np.int32)))
    return WorkerResults(Trace.merged(parts), answers)


def _facts(host: ClientHost, trace: Trace) -> dict[str, Any]:
    late = quality.own_lateness(trace)
    late = late[np.isfinite(late)]
    facts: dict[str, Any] = {"workers": host.workers, "requests": len(trace)}
    if len(late):
        p50, p99 = np.percentile(late, [50, 99])
        span = float(trace.intended[-1] - trace.intended[0])
        facts |= {"delivered": quality.delivered(trace), "lateness_p50": float(p50), "lateness_p99": float(p99)}
        facts |= {"rate": (len(late) - 1) / span} if span > 0 else {}
    facts |= {"clock_offset": host.offset.seconds, "clock_uncertainty": host.offset.uncertainty}
    return facts | ({"ceiling": host.ceiling.rate} if host.ceiling else {})
