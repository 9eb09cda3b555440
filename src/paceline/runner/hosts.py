"""Runs cases on other hosts for one command: an agent on each forks its ranks, and everything comes back here.

`HostRanks` has the ranks of each case on several hosts together; `RemoteNode` is one host that measures whole cases.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.case import Case
from paceline.core.environment import Reached
from paceline.core.errors import InputError, PacelineError, located
from paceline.core.files import read_text
from paceline.core.network import own_address
from paceline.core.record import Cause, CauseKind, Outcome
from paceline.machine.software import scrub
from paceline.remote.hosts import LOCAL, SSH, START_SECONDS, Agents, HostTrouble, RemoteAgent, RemoteShell
from paceline.runner.execute import AFTERMATH_SECONDS, LINGER_SECONDS, CaseEnd, Failure, rank_environment
from paceline.runner.fork_client import WarmServer
from paceline.runner.run import OnProgress

AGENT = "paceline.runner.agent"
ANSWER_SECONDS = 30.0
LATE_SECONDS = LINGER_SECONDS + 10.0  # a host ends its ranks by itself; one that is this late is lost

# What steers collectives and threads on every host as it does here.
_FORWARDED = ("NCCL_", "GLOO_", "TORCH_", "OMP_")
_FLAG = "--hosts"
_HOST = re.compile(r"(?P<name>[^\s:,\[\]]+|\[[0-9a-fA-F:.%]+\])(?::(?P<slots>\d+))?")
_HOST_LINE = re.compile(r"(?P<name>[^\s\[\]]+|\[[0-9a-fA-F:.%]*:[0-9a-fA-F:.%]*\])(?:\s+slots\s*=\s*(?P<slots>\d+))?")

Words = dict[str, Any]


@dataclass(frozen=True)
class Host:
    """A host by the name that the remote shell knows."""

    name: str
    slots: int | None = None  # ranks; None is one for each GPU, or one

    @property
    def address(self) -> str:
        """The name without the user."""
        return self.name.rpartition("@")[2].strip("[]")


def read_hosts(text: str) -> list[Host]:
    """`a,b:2`, or a file with a host in each line, like `a slots=2`."""
    with located(f"--hosts {text}"):
        path = Path(text)
        if path.is_file():
            lines = (line.partition("#")[0].strip() for line in read_text(path, key=_FLAG).splitlines())
            parts, pattern, form = [line for line in lines if line], _HOST_LINE, "a slots=2"
        elif "/" in text or path.suffix in (".ini", ".txt"):
            raise InputError("missing-file", "there is no such file", key=_FLAG, value=text)
        else:
            parts, pattern, form = text.split(","), _HOST, "a,b:2"
        hosts = []
        for part in map(str.strip, parts):
            match = pattern.fullmatch(part)
            if match is None or part.startswith("-"):
                message = f"'{part}' is not a host; write {form}"
                if "ansible_" in part or part.startswith("["):
                    message += ". An inventory of Ansible is not read: keep the names, and put ports into ssh's config"
                raise InputError("not-a-host", message, key=_FLAG, value=part)
            slots = int(match["slots"]) if match["slots"] else None
            if slots == 0:
                raise InputError(
                    "host-without-ranks", f"'{part}' has no rank; leave the host out", key=_FLAG, value=part
                )
            hosts.append(Host(match["name"], slots))
        names = [host.name for host in hosts]
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            message = f"duplicate host '{duplicate}': name it once; for several ranks on it, write {duplicate}:2"
            raise InputError("duplicate-host", message, key=_FLAG, value=duplicate, suggestion=f"{duplicate}:2")
        if not hosts:
            raise InputError("no-hosts", "there is no host in it", key=_FLAG, value=text)
        return hosts


def forwarded() -> dict[str, str]:
    """The variables that count on every host as they do here."""
    return {name: value for name, value in os.environ.items() if name.startswith(_FORWARDED)}


@dataclass
class _Node:
    """A host with its ranks."""

    host: Host
    agent: RemoteAgent
    slots: int = 1
    first_rank: int = 0


class HostRanks:
    """Runs cases on all hosts together, or on the first alone; all are fit to be used, until it is closed."""

    def __init__(self, hosts: Sequence[Host], shell: RemoteShell, master: str | None = None) -> None:
        self._agents = Agents(shell, AGENT)
        self._nodes: list[_Node] = []
        self.devices: dict[str, int] = {}  # of the first host, by kind
        # Where the ranks meet: the first host, by the name that the others know it by.
        self._master = master or (hosts[0].address if len(hosts) > 1 else "127.0.0.1")
        if not master and len(hosts) > 1 and hosts[0].name == LOCAL:
            other = hosts[1]
            try:
                self._master = own_address(other.address)
            except OSError as error:
                message = f"which address {other.name} reaches this host by is unknown ({error}); give --master-address"
                raise InputError("unknown-own-address", message, key="--master-address") from None
        try:
            for host in hosts:
                self._nodes.append(_Node(host, self._agents.enter(host.name)))
            self._greet(self._nodes)
            rank = 0
            for node in self._nodes:
                node.first_rank = rank
                rank += node.slots
            self._meet()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return sum(node.slots for node in self._nodes)

    @property
    def nodes(self) -> int:
        """How many hosts there are."""
        return len(self._nodes)

    def environment(self) -> Words:
        """What the first host is."""
        first = self._nodes[0]
        environment: Words = self._ask([first], {"do": "describe"}, START_SECONDS)[first.agent]["environment"]
        return environment

    def announce(self, cases: Sequence[Case]) -> None:
        """Refuse cases that were made for another number of ranks, as a resumed run may have them."""
        for case in cases:
            if case.ranks not in (1, self.size):
                message = (
                    f"{case.benchmark} {case.title} is for {case.ranks} ranks, but --hosts gives {self.size}: "
                    "name other hosts, or their slots like a:2"
                )
                raise InputError("wrong-number-of-ranks", message, key=_FLAG, value=self.size)

    def execute(self, _server: WarmServer, case: Case, on_progress: Callable[[Words], None]) -> CaseEnd:
        """All ranks of the case, wherever they are."""
        nodes = self._nodes if case.ranks > 1 else self._nodes[:1]
        try:
            port = self._port(nodes)
        except HostTrouble as trouble:
            node = next(node for node in nodes if node.agent is trouble.agent)
            return CaseEnd(failure=_failure(node, case, str(trouble)))
        for node in nodes:
            ranks: dict[int, dict[str, str]] = {0: {}}
            if case.ranks > 1:
                group = {"GROUP_RANK": str(self._nodes.index(node)), "PACELINE_NODE": node.host.address}
                shape = (self.size, node.slots, self._master, str(port))
                numbers = [(node.first_rank + local, local) for local in range(node.slots)]
                ranks = {rank: rank_environment(rank, local, *shape) | group for rank, local in numbers}
            node.agent.send({"do": "run", "case": case.model_dump(mode="json"), "ranks": ranks})
        end = self._watch(case, nodes, on_progress)
        if 0 in end.results and len(nodes) > 1:
            end.results[0].facts |= {"nodes": len(nodes), "hosts": [node.host.address for node in nodes]}
        return end

    def close(self) -> None:
        """End everything on every host."""
        self._agents.close()

    def _greet(self, nodes: Sequence[_Node]) -> None:
        """Hear from each agent that it is there and the same as this one."""
        answers = self._agents.greet([node.agent for node in nodes], {"environment": forwarded()})
        for node in nodes:
            hello = answers[node.agent]
            node.slots = node.host.slots or max(1, next(iter(hello["devices"].values()), 0))
            if node is self._nodes[0]:
                self.devices = hello["devices"]

    def _meet(self) -> None:
        """See that every host reaches the first, and let each find the interface for it."""
        first, *others = self._nodes
        if not others:
            return
        port = self._ask([first], {"do": "listen"}, ANSWER_SECONDS)[first.agent]["port"]
        reached = self._ask(others, {"do": "reach", "address": self._master, "port": port}, ANSWER_SECONDS)
        self._ask([first], {"do": "face", "address": reached[others[0].agent]["address"]}, ANSWER_SECONDS)

    def _port(self, nodes: Sequence[_Node]) -> int:
        """A port for the case's own rendezvous; all are asked, to see that all are there."""
        with suppress(HostTrouble):
            return int(self._ask(nodes, {"do": "port"}, ANSWER_SECONDS)[nodes[0].agent]["port"])
        # Enter hosts again that were lost.
        lost = [node for node in nodes if node.agent.ended]
        for node in lost:
            self._agents.forget(node.agent)
            node.agent = self._agents.enter(node.host.name)
        if lost:
            self._greet(lost)
        if lost and len(nodes) > 1:
            self._meet()
        return int(self._ask(nodes, {"do": "port"}, ANSWER_SECONDS)[nodes[0].agent]["port"])

    def _watch(self, case: Case, nodes: Sequence[_Node], on_progress: Callable[[Words], None]) -> CaseEnd:
        """Until each host has reported its end; one that fails ends the case on all."""
        self._agents.recall([node.agent for node in nodes])
        end, failures = CaseEnd(), list[Failure]()
        running = {node.agent: node for node in nodes}
        deadline, stop_at = time.monotonic() + case.timeout + LATE_SECONDS, float("inf")
        while running:
            heard = self._agents.listen(min(deadline, stop_at))
            if heard is None and time.monotonic() >= deadline:
                for agent, node in running.items():
                    agent.ended = True
                    failures.append(_failure(node, case, f"{node.host.name} does not answer any more"))
                break
            if heard is None:  # the others have had a moment to report
                for agent in running:
                    agent.send({"do": "stop"})
                deadline, stop_at = min(deadline, time.monotonic() + LATE_SECONDS), float("inf")
                continue
            agent, message = heard
            if agent not in running:
                continue
            if message is not None and "progress" in message:
                end.keep(message["progress"])
                on_progress(message["progress"])
                continue
            node = running.pop(agent)
            if message is not None and "ended" in message:
                part = CaseEnd.of_words(message["ended"])
                end.results |= part.results
                end.warnings += part.warnings
                end.watched += [one.model_copy(update={"host": node.host.address}) for one in part.watched]
                end.startup_seconds = part.startup_seconds if node is nodes[0] else end.startup_seconds
                failure = part.failure
                if failure is not None:
                    message_there = f"{failure.cause.message} (on {node.host.address})"
                    cause = failure.cause.model_copy(update={"message": message_there})
                    failure = replace(failure, cause=cause)
            else:
                why = f"was lost: {agent.how_it_ended()}" if message is None else message["refused"]
                failure = _failure(node, case, f"{node.host.name} {why}", detail=agent.last_words())
            if failure is not None:
                failures.append(failure)
                stop_at = min(stop_at, time.monotonic() + AFTERMATH_SECONDS)
        if failures:
            end.failure = min(failures, key=lambda failure: failure.order)
        elif len(end.results) < case.ranks:
            end.failure = _failure(nodes[0], case, "some ranks were ended before they had a result")
        return end

    def _ask(self, nodes: Sequence[_Node], order: Words, seconds: float) -> dict[RemoteAgent, Words]:
        return self._agents.ask([node.agent for node in nodes], order, seconds)


def _failure(node: _Node, case: Case, message: str, detail: str = "") -> Failure:
    """A host that is gone; nothing says that the case cannot be measured."""
    rank = node.first_rank if case.ranks > 1 else None
    cause = Cause(kind=CauseKind.INTERRUPTED, message=message, detail=detail, rank=rank)
    return Failure(node.first_rank, Outcome.FAILED, cause, time.monotonic())


LOOK_SECONDS = 0.5  # how soon it is noticed that the work is to stop


class NodeLost(PacelineError):
    """A host that was there is not any more; what it had not measured yet is still to be done."""


class RemoteNode:
    """One host with an agent on it, until it is closed; refused (HostTrouble) where it cannot be used."""

    size = nodes = 1  # its cases have their ranks on the host, as on a machine alone

    def __init__(self, host: Host, shell: RemoteShell, is_over: Callable[[], bool] = lambda: False) -> None:
        self._is_over = is_over
        self._host, self._shell = host, shell
        self._agents = Agents(shell, AGENT)
        try:
            self._agent = self._agents.enter(host.name)
            hello = self._agents.greet([self._agent], {"environment": forwarded()})[self._agent]
        except BaseException:
            self.close()
            raise
        self.devices: dict[str, int] = hello["devices"]
        self.parts: dict[str, list[int | str]] = hello.get("parts", {})

    def environment(self) -> dict[str, Any]:
        """What the host is, and how it is reached, which its own name need not say."""
        answer = self._agents.ask([self._agent], {"do": "describe"}, START_SECONDS)[self._agent]
        environment: dict[str, Any] = answer["environment"]
        shell = scrub(self._shell.template) if self._shell.template != SSH else None
        python = scrub(self._shell.python) if self._shell.python != sys.executable else None
        return environment | {"reached": Reached(host=self._host.name, shell=shell, python=python).model_dump()}

    def announce(self, cases: Sequence[Case]) -> None:
        """Every case that fits the host is taken."""

    def execute(self, server: WarmServer, case: Case, on_progress: OnProgress) -> CaseEnd:
        """One case there."""
        return self.execute_at_once(server, [(case, on_progress)])[0]

    def execute_at_once(self, _server: WarmServer, cases: Sequence[tuple[Case, OnProgress]]) -> list[CaseEnd]:
        """Cases there at the same time; KeyboardInterrupt when the work is to stop."""
        heard_by = {case.index: on_progress for case, on_progress in cases}
        self._agents.recall([self._agent])
        self._agent.send({"do": "measure", "cases": [case.model_dump(mode="json") for case, _ in cases]})
        deadline = time.monotonic() + max(case.timeout for case, _ in cases) + LATE_SECONDS
        kept = {case.index: CaseEnd() for case, _ in cases}
        while True:
            heard = self._agents.listen(min(deadline, time.monotonic() + LOOK_SECONDS))
            if self._is_over():
                raise KeyboardInterrupt
            if heard is None:
                if time.monotonic() >= deadline:
                    raise NodeLost("it does not answer any more, well after the timeout of its case")
                continue
            _, message = heard
            if message is None:
                raise NodeLost(f"it was lost: {self._agent.how_it_ended()}{self._agent.quote()}")
            if "refused" in message:
                raise NodeLost(f"it {message['refused']}")
            if "progress" in message:
                kept[message["index"]].keep(message["progress"])
                heard_by[message["index"]](message["progress"])
            elif "ended" in message:
                ends = [CaseEnd.of_words(words) for words in message["ended"]]
                for end, (case, _) in zip(ends, cases, strict=True):
                    end.samples = kept[case.index].samples
                return ends

    def close(self) -> None:
        """End everything there."""
        self._agents.close()
