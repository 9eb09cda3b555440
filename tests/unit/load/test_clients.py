"""Hosts that send shares of one load: what each is told and when, and what becomes of it when one is lost."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from paceline.load import clients, processes
from paceline.load.clients import (
    ClientHost,
    ClientHosts,
    ClientLost,
    Offset,
    is_for_others,
    is_of_this_machine_alone,
    read_names,
)
from paceline.load.quality import GeneratorCeiling, Probe, RequestKind
from paceline.load.request import Endpoint
from paceline.load.task import WorkerTask, read_payloads, read_task
from paceline.load.trace import BROKEN, OK, UNSENT, Trace, WorkerResults
from paceline.remote.hosts import Agents, RemoteAgent
from support.refused import refused
from support.traces import trace

FAR = 1_000_000_000  # s: so much that all digits of a time in nanoseconds count
SECOND = 1_000_000_000  # ns
Message = dict[str, Any]


@dataclass(eq=False)
class Agent:
    """A host at the other end of a line."""

    name: str
    trip: float = 0.0  # s there and back
    offset: float = 0.0  # of its clock, s
    ended: bool = False
    messages: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.messages.append(message)

    def how_it_ended(self) -> str:
        return "its process ended with code 3"

    def last_words(self) -> str:
        return f"  {self.name}: good bye"


class Line:
    """All hosts: answers to orders, and what they report at which time."""

    def __init__(self) -> None:
        self.now_ns = FAR * SECOND
        self.orders: list[tuple[list[str], Message]] = []
        self.reports: list[tuple[float, Agent | None, Message | None]] = []  # seconds after FAR
        self.recalled: list[str] = []
        self.ceilings: dict[str, float] = {}

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def monotonic_ns(self) -> int:
        return self.now_ns

    def ask(self, agents: Sequence[Agent], order: Message, seconds: float) -> dict[Agent, Message]:
        return self.ask_each(dict.fromkeys(agents, order), seconds)

    def ask_each(self, orders: Mapping[Agent, Message], _seconds: float) -> dict[Agent, Message]:
        assert len(self.orders) < 200
        for order in orders.values():
            self.orders.append(([agent.name for agent in orders], order))
            if order["do"] != "send":
                break
        return {agent: self._answer(agent, order) for agent, order in orders.items()}

    def _answer(self, agent: Agent, order: Message) -> Message:
        if order["do"] == "clock":
            self.now_ns += int(agent.trip * 1e9)
            return {"clock": self.now_ns + int((agent.offset - agent.trip / 2) * 1e9)}
        if order["do"] == "calibrate":
            return {"ceiling": asdict(ceiling(self.ceilings[agent.name]))}
        return {}

    def recall(self, agents: Sequence[Agent]) -> None:
        self.recalled += [agent.name for agent in agents]

    def listen(self, deadline: float) -> tuple[Agent, Message | None] | None:
        assert deadline == pytest.approx(self.monotonic() + processes.LOOK_EVERY, abs=1e-6)
        at, agent, message = self.reports.pop(0)
        self.now_ns = FAR * SECOND + int(at * 1e9)
        return None if agent is None else (agent, message)

    def of(self, do: str) -> list[tuple[list[str], Message]]:
        return [(names, order) for names, order in self.orders if order["do"] == do]


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    made = Line()
    monkeypatch.setattr(clients, "time", made)
    return made


def ceiling(rate: float) -> GeneratorCeiling:
    return GeneratorCeiling(rate, 2 * rate, (Probe(500.0, 1.0, 1e-4, 1e-3),))


def host_of(agent: Agent, cores: int = 2, boot: str = "", **more: Any) -> ClientHost:
    return ClientHost(agent.name, cast(RemoteAgent, agent), cores, boot, **more)


def hosts_of(line: Line, *hosts: ClientHost) -> ClientHosts:
    return ClientHosts(cast(Agents, line), hosts)


def task(*intended: float, kinds: Sequence[int] = (0, 0, 0, 0), number: int = 0) -> WorkerTask:
    return WorkerTask(
        intended=np.array(intended),
        kinds=np.array(kinds[: len(intended)], np.int32),
        number=number,
        parent=1,
        endpoint=Endpoint("kserve-json", "h", 1, "/", "x"),
        payloads=[b"payload"],
        metadata=[(("a", "b"),)],
        samples=np.array([3, 5], np.int32),
    )


def results(intended: list[float], worker: list[int], *, losses: Sequence[str] = ()) -> Message:
    columns = {"intended": np.array(intended), "worker": np.array(worker, np.int32)}
    made = WorkerResults(trace([0.5] * len(intended), **columns, losses=tuple(losses)), [(0, b"body")])
    return {"results": base64.b64encode(made.packed()).decode()}


# Clocks.


def test_the_shortest_trip_says_most_exactly_what_a_clock_shows() -> None:
    short, long = (10 * SECOND, 21 * SECOND, 14 * SECOND), (0, 100 * SECOND, 5 * SECOND)
    assert Offset.of_trips([long, short]) == Offset(9.0, 2.0)
    assert Offset.of_trips([short, long]) == Offset(9.0, 2.0)
    assert Offset.of_trips([long]) == Offset(97.5, 2.5)


# A load from its begin to its end.


def test_hosts_send_their_shares_from_one_instant(line: Line) -> None:
    near, far = Agent("near", trip=0.5, offset=1000.0), Agent("far", trip=2.0, offset=-3000.0)
    hosts = hosts_of(line, host_of(near), host_of(far))
    tasks = [task(0.0), task(1.0, kinds=(1,), number=1), task(2.0, number=2)]
    line.reports = [
        (30.0, near, results([0.0, 2.0], [0, 2], losses=["worker 1 was lost"])),
        (31.0, far, results([1.0], [1])),
    ]
    merged = hosts.run(tasks, [2, 1], 10.0)
    payloads = line.of("payloads")
    assert [names for names, _ in payloads] == [["near", "far"]]
    assert read_payloads(payloads[0][1]["data"]) == {
        "payloads": [b"payload"],
        "metadata": [(("a", "b"),)],
    }
    assert [names for names, _ in line.of("clock")] == [["near"]] * 10 + [["far"]] * 10
    sent = [order for _, order in line.of("send")]
    assert [order["longest"] for order in sent] == [10.0] * 2
    shares = [[read_task(message) for message in order["tasks"]] for order in sent]
    assert [[one.intended.tolist() for one in share] for share in shares] == [[[0.0], [2.0]], [[1.0]]]
    assert [(one.payloads, one.metadata) for share in shares for one in share] == [([], [])] * 3
    assert [one.samples.tolist() for share in shares for one in share] == [[3, 5]] * 3
    # 25 s for reading the clocks; then a head start, and four times the larger uncertainty, which is half a trip.
    start = (FAR + 25 + 4) * SECOND + int(processes.HEAD_START * SECOND)
    assert near.messages == [{"do": "start", "at": start + 1000 * SECOND}]
    assert far.messages == [{"do": "start", "at": start - 3000 * SECOND}]
    assert line.recalled == ["near", "far"]
    assert [(host.workers, host.offset) for host in hosts.hosts] == [
        (2, Offset(1000.0, 0.25)),
        (1, Offset(-3000.0, 1.0)),
    ]
    assert merged.trace.intended.tolist() == [0.0, 1.0, 2.0]
    assert merged.trace.worker.tolist() == [0, 1, 2]
    assert merged.trace.host is not None
    assert merged.trace.host.tolist() == [0, 1, 0]
    assert merged.answers == [(0, b"body"), (0, b"body")]
    assert merged.trace.losses == ("near: worker 1 was lost",)
    assert hosts.lost == {}
    hosts.require_all(merged.trace)


def test_payloads_are_sent_again_only_when_they_are_others(line: Line) -> None:
    agent = Agent("a")
    hosts = hosts_of(line, host_of(agent))
    for payloads in ([b"payload"], [b"payload"], [b"another"]):
        line.reports = [(1.0, agent, results([0.0], [0]))]
        hosts.run([replace(task(0.0), payloads=payloads)], [1], 10.0)
    assert [names for names, _ in line.of("payloads")] == [["a"], ["a"]]


def test_a_host_without_a_task_has_no_part_in_a_load(line: Line) -> None:
    first, second = Agent("a"), Agent("b")
    hosts = hosts_of(line, host_of(first), host_of(second, workers=9))
    line.reports = [(1.0, first, results([0.0], [0]))]
    hosts.run([task(0.0)], [1, 1], 10.0)
    assert [host.workers for host in hosts.hosts] == [1, 0]
    assert second.messages == []


def test_every_host_needs_a_number_of_workers(line: Line) -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        hosts_of(line, host_of(Agent("a")), host_of(Agent("b"))).run([task(0.0)], [1], 10.0)


# A start at FAR + 0.05 s, as trips take no time.
LONG = 1000.0


def lossy(line: Line, *reports: tuple[float, Agent | None, Message | None], **more: Any) -> tuple[ClientHosts, Trace]:
    """Two hosts of which one has a task for 0, 1 and 100 s after the start, and the other one for 0.5 s after it."""
    hosts = hosts_of(line, host_of(A), host_of(B))
    line.reports = list(reports)
    more.setdefault("longest", LONG)
    merged = hosts.run([task(0.0, 1.0, 100.0), task(0.5, number=1)], [1, 1], **more)
    assert line.reports == []
    return hosts, merged.trace


A, B = Agent("a"), Agent("b")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    for agent in (A, B):
        agent.messages, agent.ended = [], False


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (None, "its process ended with code 3"),
        ({"refused": "no memory"}, "no memory"),
        ({"odd": 1}, "{'odd': 1}"),
    ],
)
def test_a_lost_host_ends_the_load_on_all_and_leaves_its_requests_broken(
    line: Line, message: Message | None, why: str
) -> None:
    hosts, merged = lossy(line, (1.0, None, None), (2.05, A, message), (2.5, None, None), (3.0, B, results([0.5], [1])))
    assert hosts.lost == {"a": why}
    assert [one["do"] for one in A.messages] == ["start"]
    assert [one["do"] for one in B.messages] == ["start", "stop"]
    assert merged.intended.tolist() == [0.0, 0.5, 1.0, 100.0]
    assert merged.status.tolist() == [BROKEN, OK, BROKEN, UNSENT]
    assert merged.worker.tolist() == [0, 1, 0, 0]
    assert merged.host is not None
    assert merged.host.tolist() == [0, 1, 0, 0]
    assert merged.samples.tolist() == [3, 1, 3, 3]
    with pytest.raises(ClientLost, match=f"client host a was lost: {why}; .* 1 of 4 requests were answered") as caught:
        hosts.require_all(merged)
    assert caught.value.detail == "  a: good bye"


def test_when_a_host_dies_counts_from_the_common_start(line: Line) -> None:
    _, merged = lossy(line, (0.55, A, None), (3.0, B, results([0.5], [1])))
    assert merged.status.tolist() == [BROKEN, OK, UNSENT, UNSENT]


def test_reports_of_hosts_that_are_not_waited_for_are_not_listened_to(line: Line) -> None:
    hosts, merged = lossy(
        line,
        (1.0, B, results([0.5], [1])),
        (1.5, B, None),
        (2.0, Agent("somebody"), None),
        (3.0, A, results([0.0, 1.0, 100.0], [0, 0, 0])),
    )
    assert hosts.lost == {}
    assert [one["do"] for one in (*A.messages, *B.messages)] == ["start", "start"]
    assert merged.ok.all()


def test_a_load_that_shall_not_go_on_is_ended_once_and_waited_for(line: Line) -> None:
    answers = iter([True, False])
    hosts, merged = lossy(
        line,
        (1.0, B, results([0.5], [1])),
        (2.0, None, None),
        (2.5, None, None),
        (22.0, None, None),  # as long as a host has to end its workers, and then to hand over
        (22.0, A, results([0.0, 1.0, 100.0], [0, 0, 0])),
        go_on=lambda: next(answers),
    )
    assert hosts.lost == {}
    assert [one["do"] for one in A.messages] == ["start", "stop"]
    assert [one["do"] for one in B.messages] == ["start"]
    assert len(merged) == 4


def test_a_host_that_does_not_end_when_it_is_told_to_is_lost(line: Line) -> None:
    reports = [(2.0, None, None), (22.0, None, None), (22.5, None, None)]
    hosts, merged = lossy(line, (1.0, B, results([0.5], [1])), *reports, go_on=iter([True, False]).__next__)
    assert hosts.lost == {"a": "it does not answer any more"}
    assert A.ended
    assert not B.ended
    assert merged.status.tolist() == [BROKEN, OK, BROKEN, UNSENT]


@pytest.mark.parametrize(("last", "is_lost"), [(110.05, False), (110.3, True)])
def test_a_host_may_be_late_by_some_seconds_and_is_lost_then(line: Line, last: float, is_lost: bool) -> None:
    line.now_ns = FAR * SECOND
    reports: list[tuple[float, Agent | None, Message | None]] = [(1.0, B, results([0.5], [1])), (109.0, None, None)]
    reports.append((last, None, None))
    reports += [] if is_lost else [(last, A, results([0.0, 1.0, 100.0], [0, 0, 0]))]
    hosts, merged = lossy(line, *reports, longest=100.0)
    assert (hosts.lost == {"a": "it does not answer any more"}) is is_lost
    assert A.ended is is_lost
    assert merged.status.tolist() == ([BROKEN, OK, BROKEN, BROKEN] if is_lost else [OK] * 4)


def test_the_requests_of_a_silent_host_that_were_due_later_are_unsent(line: Line) -> None:
    _, merged = lossy(line, (1.0, B, results([0.5], [1])), (60.3, None, None), longest=50.0)
    assert merged.status.tolist() == [BROKEN, OK, BROKEN, UNSENT]


def test_what_the_workers_of_all_hosts_say_of_a_second_is_reported_together(line: Line) -> None:
    heard: list[Any] = []
    of_a, of_b, later = [1.0, 60, 0, [1000]], [1.0, 40, 10, [2000]], [1.0, 5, 0, []]
    lossy(
        line,
        (1.0, A, {"live": [of_a]}),
        (1.2, B, {"live": [of_b]}),
        (2.0, A, {"live": [later]}),  # and nothing from the other host, which is late
        (2.1, None, None),
        (2.6, B, results([0.5], [1])),
        (3.0, A, {"live": [of_a]}),  # the only one that still sends
        (3.1, A, results([0.0, 1.0, 100.0], [0, 0, 0])),
        on_lines=heard.append,
    )
    assert heard == [[of_a, of_b], [later], [of_a]]


# What hosts can do.


def test_hosts_that_are_one_machine_are_measured_one_after_the_other(line: Line) -> None:
    agents = [Agent(name) for name in "abcd"]
    hosts = hosts_of(line, *(host_of(agent, boot=boot) for agent, boot in zip(agents, ("x", "x", "", ""), strict=True)))
    line.ceilings = {"a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0}
    hosts.calibrate(RequestKind(8192, True))
    assert [names for names, _ in line.orders] == [["b", "c", "d"], ["a"]]
    assert line.orders[0][1] == {"do": "calibrate", "size": 8192, "grpc": True, "client": "python"}
    assert [host.ceiling for host in hosts.hosts] == [ceiling(10.0), ceiling(20.0), ceiling(30.0), ceiling(40.0)]


def test_the_weakest_worker_bounds_all_and_their_rates_add_up(line: Line) -> None:
    cores = {"a": (2, ceiling(100.0)), "b": (4, ceiling(50.0)), "c": (8, None)}
    hosts = hosts_of(line, *(host_of(Agent(name), many, ceiling=one) for name, (many, one) in cores.items()))
    assert hosts.weakest == ceiling(50.0)
    assert hosts.most == 400.0
    assert hosts.cores == [2, 4, 8]


@pytest.mark.parametrize(
    ("here", "boots", "is_here"),
    [("x", ["x", "y"], True), ("x", ["y", "z"], False), ("", ["", ""], False), ("x", ["", "x"], True)],
)
def test_a_host_may_be_this_machine(
    line: Line, monkeypatch: pytest.MonkeyPatch, here: str, boots: list[str], is_here: bool
) -> None:
    monkeypatch.setattr(clients, "boot", lambda: here)
    hosts = hosts_of(line, *(host_of(Agent(str(number)), boot=one) for number, one in enumerate(boots)))
    assert hosts.is_on_this_machine is is_here


def test_all_hosts_are_asked_whether_they_reach_the_server(line: Line) -> None:
    hosts_of(line, host_of(A), host_of(B)).require_reach(Endpoint("kserve-json", "server", 80, "/", "x"))
    assert line.orders == [(["a", "b"], {"do": "reach", "host": "server", "port": 80})]


def test_facts_tell_what_each_host_did(line: Line) -> None:
    hosts = hosts_of(
        line,
        host_of(A, workers=2, offset=Offset(3.0, 0.5), ceiling=ceiling(100.0)),
        host_of(B, workers=1),
        host_of(Agent("c")),
    )
    intended = np.array([0.0, 0.125, 0.25, 0.375, 0.5, 1.0])
    late = np.array([0.0, 0.01, 0.02, 0.03, np.nan, 0.04])
    made = trace([1.0] * 6, intended=intended, dispatched=intended + late, host=np.array([0, 0, 0, 0, 0, 1], np.int32))
    facts = hosts.facts(made)
    assert facts["a"] == pytest.approx(
        {
            "workers": 2,
            "requests": 5,
            "delivered": 0.8,
            "lateness_p50": 0.015,
            "lateness_p99": 0.0297,
            "rate": 6.0,
            "clock_offset": 3.0,
            "clock_uncertainty": 0.5,
            "ceiling": 100.0,
        }
    )
    assert set(facts["b"]) == {
        *("workers", "requests", "delivered", "lateness_p50", "lateness_p99", "clock_offset", "clock_uncertainty")
    }
    assert facts["c"] == {"workers": 0, "requests": 0, "clock_offset": 0.0, "clock_uncertainty": 0.0}


def test_the_rate_of_a_host_is_that_between_its_first_request_and_its_last(line: Line) -> None:
    intended = np.array([2.0, 2.125, 2.25, 3.0, 4.0])
    made = trace([1.0] * 5, intended=intended, dispatched=intended, host=np.zeros(5, np.int32))
    assert hosts_of(line, host_of(A)).facts(made)["a"]["rate"] == 2.0


# Names and addresses.


@pytest.mark.parametrize("name", ["", "-oProxy", "a b", "a\tb", " "])
def test_what_a_remote_shell_would_not_take_for_a_host_is_refused(name: str) -> None:
    with refused("not-a-host", key="clients.hosts", value=name):
        read_names(["good", name])


@pytest.mark.parametrize(("names", "duplicate"), [(["b", "a", "c", "a"], "a"), (["b", "a", "b", "a"], "a")])
def test_a_host_is_named_once(names: list[str], duplicate: str) -> None:
    with refused("duplicate-host", key="clients.hosts", value=duplicate):
        read_names(names)


def test_names_are_taken_in_their_order() -> None:
    assert read_names(["b", "me@a", "localhost"]) == ("b", "me@a", "localhost")


@pytest.mark.parametrize(
    ("address", "is_local", "is_public"),
    [
        ("localhost", True, False),
        ("LocalHost", True, False),
        ("127.0.0.2", True, False),
        ("::1", True, False),
        ("[::1]", True, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("10.1.2.3", False, True),
        ("fe80::1%eth0", False, True),
        ("server.example", False, True),
    ],
)
def test_addresses_that_other_hosts_can_reach_are_told_apart(address: str, is_local: bool, is_public: bool) -> None:
    assert is_of_this_machine_alone(address) is is_local
    assert is_for_others(address) is is_public
