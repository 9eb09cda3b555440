"""Cases over several hosts: agents that say exactly what a test says, on a clock that jumps to what is waited for."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.environment import Environment
from paceline.core.record import Cause, CauseKind, Outcome
from paceline.remote.hosts import Agents, HostTrouble, Inbox, RemoteAgent, RemoteShell
from paceline.runner import hosts as hosts_module
from paceline.runner.execute import AFTERMATH_SECONDS, CaseEnd, Failure, rank_environment
from paceline.runner.fork_client import WarmServer
from paceline.runner.hosts import LATE_SECONDS, Host, HostRanks, RemoteNode, read_hosts
from paceline.version import VERSION
from support.probing import probing_case
from support.refused import refused
from support.scripted_ranks import result

Words = dict[str, Any]
TIMEOUT = 60.0


class ScriptedAgent(RemoteAgent):
    """An agent without a process: it answers at once, as its host would."""

    def __init__(self, name: str, inbox: Inbox, cluster: Cluster) -> None:
        self.name = name
        self.ended = False
        self._inbox = inbox
        self._cluster = cluster

    def send(self, message: Words) -> None:
        self._cluster.orders.append((self.name, message))
        for answer in self._cluster.answers(self.name, message):
            self._inbox.put((self, answer))

    def how_it_ended(self) -> str:
        return "its process ended with code 255"

    def last_words(self) -> str:
        return f"  {self.name}: Connection refused"

    def ask_to_leave(self) -> None:
        pass

    def close(self, deadline: float) -> None:
        self._cluster.closed.append(self.name)


class Cluster(Agents):
    """Hosts, and how they behave."""

    def __init__(self, **devices: int) -> None:
        super().__init__(RemoteShell(python="/python"), "module")
        self.devices = devices
        self.orders: list[tuple[str, Words]] = []
        self.closed: list[str] = []
        self.entered: list[str] = []
        self.now = 1000.0
        self.runs: dict[str, Callable[[], list[Words | None]]] = {}  # what comes of a run, by host
        self.stops: dict[str, list[Words | None]] = {}  # what comes of the order to stop
        self.dead: set[str] = set()

    def enter(self, host: str) -> RemoteAgent:
        self.entered.append(host)
        self.dead.discard(host)
        agent = ScriptedAgent(host, self._inbox, self)
        self._all.append(agent)
        return agent

    def listen(self, deadline: float) -> tuple[RemoteAgent, Words | None] | None:
        try:
            agent, message = self._inbox.get_nowait()
        except queue.Empty:
            self.now = max(self.now, deadline)
            return None
        agent.ended |= message is None
        return agent, message

    def answers(self, host: str, order: Words) -> Sequence[Words | None]:
        if host in self.dead:
            return [None]
        place = self.entered.index(host)
        count = self.devices.get(host, 0)
        match order["do"]:
            case "hello":
                return [{"hello": {"version": VERSION, "devices": {"cuda": count, "cpu": 9} if count else {}}}]
            case "describe":
                return [{"environment": {"host": host}}]
            case "listen":
                return [{"port": 7000 + place}]
            case "reach" | "face":
                return [{"address": f"10.0.0.{place}"}]
            case "port":
                return [{"port": 9000 + place}]
            case "run":
                return self.runs.get(host, list)()
            case "stop":
                return self.stops.get(host, [])
        raise AssertionError(order)

    def sent(self, what: str) -> list[tuple[str, Words]]:
        return [(host, order) for host, order in self.orders if order["do"] == what]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(hosts_module, "Agents", lambda _shell, _module: made)
    monkeypatch.setattr(hosts_module, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr("paceline.runner.execute.time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def reached(names: str = "a:2,b,c:3", master: str | None = None) -> HostRanks:
    return HostRanks(read_hosts(names), RemoteShell(python="/python"), master)


def ended(*ranks: int, failure: Failure | None = None, startup: float | None = None) -> list[Words | None]:
    end = CaseEnd(results={rank: result(float(rank)) for rank in ranks}, failure=failure, startup_seconds=startup)
    return [{"ended": end.words()}]


def a_failure(rank: int, message: str = "it broke", at: float = 1000.0) -> Failure:
    return Failure(rank, Outcome.FAILED, Cause(kind=CauseKind.ERROR, message=message, rank=rank), at)


def executed(ranks: HostRanks, size: int, heard: list[Words] | None = None) -> CaseEnd:
    progress = heard if heard is not None else []
    return ranks.execute(WarmServer(), probing_case(ranks=size, timeout=TIMEOUT), progress.append)


def test_ranks_are_numbered_host_by_host(cluster: Cluster) -> None:
    ranks = reached("a:2,me@b,c:3")
    assert (ranks.size, ranks.nodes) == (6, 3)
    cluster.runs = {"a": lambda: ended(0, 1), "me@b": lambda: ended(2), "c": lambda: ended(3, 4, 5)}
    end = executed(ranks, 6)
    assert end.failure is None
    assert sorted(end.results) == [0, 1, 2, 3, 4, 5]
    assert end.results[0].facts == {"nodes": 3, "hosts": ["a", "b", "c"]}
    assert end.results[1].facts == {}
    orders = dict(cluster.sent("run"))
    case = probing_case(ranks=6, timeout=TIMEOUT).model_dump(mode="json")
    # Where they meet is the first host, with a port of its own.
    for host, group, first, slots in [("a", 0, 0, 2), ("me@b", 1, 2, 1), ("c", 2, 3, 3)]:
        node = {"GROUP_RANK": str(group), "PACELINE_NODE": host.removeprefix("me@")}
        expected = {
            first + local: rank_environment(first + local, local, 6, slots, "a", "9000") | node
            for local in range(slots)
        }
        assert orders[host] == {"do": "run", "case": case, "ranks": expected}


@pytest.mark.parametrize(
    ("shell", "way"),
    [
        (RemoteShell(python=sys.executable), {"shell": None, "python": None}),
        (
            RemoteShell(f"env TOKEN=abc {Path.home()}/enter {{host}}", "/python"),
            {"shell": "env TOKEN=... ~/enter {host}", "python": "/python"},
        ),
    ],
)
def test_a_host_alone_is_described_with_how_it_is_reached(
    cluster: Cluster, shell: RemoteShell, way: dict[str, str | None]
) -> None:
    environment = Environment.read(RemoteNode(Host("me@a"), shell).environment())
    assert environment.reached is not None
    assert environment.reached.model_dump() == {"host": "me@a"} | way


def test_a_case_of_one_rank_is_the_first_hosts_alone(cluster: Cluster) -> None:
    ranks = reached("a:2,b")
    cluster.runs = {"a": lambda: ended(0, startup=2.5)}
    end = executed(ranks, 1)
    assert [host for host, _ in cluster.sent("port")] == ["a"]
    assert [(host, order["ranks"]) for host, order in cluster.sent("run")] == [("a", {0: {}})]
    assert (end.failure, end.results[0].facts, end.startup_seconds) == (None, {}, 2.5)


def test_two_ranks_of_one_host_are_not_spread(cluster: Cluster) -> None:
    ranks = reached("a:2")
    assert cluster.sent("listen") == [], "nobody else has to reach it"
    cluster.runs = {"a": lambda: ended(0, 1)}
    end = executed(ranks, 2)
    assert (end.failure, end.results[0].facts) == (None, {})
    ((_, order),) = cluster.sent("run")
    assert order["ranks"][1]["MASTER_ADDR"] == "127.0.0.1"
    assert order["ranks"][1]["GROUP_RANK"] == "0"


@pytest.mark.parametrize(
    ("names", "master", "expected"),
    [("a,b", None, "a"), ("me@a,b", None, "a"), ("a,b", "10.9.9.9", "10.9.9.9"), ("localhost,b", "x", "x")],
)
def test_all_meet_where_the_first_host_is(cluster: Cluster, names: str, master: str | None, expected: str) -> None:
    reached(names, master)
    first, second = cluster.entered
    assert cluster.sent("listen") == [(first, {"do": "listen"})]
    assert cluster.sent("reach") == [(second, {"do": "reach", "address": expected, "port": 7000})]
    assert cluster.sent("face") == [(first, {"do": "face", "address": "10.0.0.1"})]


def test_the_first_of_the_others_shows_the_way_back(cluster: Cluster) -> None:
    reached("a,b,c")
    assert [host for host, _ in cluster.sent("reach")] == ["b", "c"]
    assert cluster.sent("face") == [("a", {"do": "face", "address": "10.0.0.1"})]


def test_this_machine_is_met_by_the_address_that_it_shows_to_the_next(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    monkeypatch.setattr(hosts_module, "own_address", {"b": "10.1.1.1", "c": "10.2.2.2"}.__getitem__)
    reached("localhost,me@b,c")
    assert {order["address"] for _, order in cluster.sent("reach")} == {"10.1.1.1"}
    assert reached("localhost").size == 1, "alone, it is met by nobody"


def test_an_address_that_nobody_knows_must_be_given(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    def unknown(_towards: str) -> str:
        raise OSError("no route")

    monkeypatch.setattr(hosts_module, "own_address", unknown)
    with refused("unknown-own-address", key="--master-address", says=r"which address me@b reaches .*\(no route\)"):
        reached("localhost,me@b")
    reached("a,localhost")


@pytest.mark.parametrize(("count", "slots"), [(0, 1), (1, 1), (4, 4)])
def test_a_host_without_a_number_has_a_rank_for_each_device(cluster: Cluster, count: int, slots: int) -> None:
    cluster.devices = {"a": count, "b": 2}
    ranks = reached("a,b:3")
    assert ranks.size == slots + 3
    assert ranks.devices == ({"cuda": count, "cpu": 9} if count else {})
    assert ranks.environment() == {"host": "a"}


def test_what_steers_collectives_is_forwarded_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    for name in ("NCCL_DEBUG", "GLOO_X", "TORCH_Y", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MY_SECRET", "1")
    reached("a")
    ((_, order),) = cluster.sent("hello")
    assert {"NCCL_DEBUG", "GLOO_X", "TORCH_Y", "OMP_NUM_THREADS"} <= order["environment"].keys()
    assert all(name.startswith(("NCCL_", "GLOO_", "TORCH_", "OMP_")) for name in order["environment"])


def test_hosts_that_cannot_be_used_are_left(cluster: Cluster) -> None:
    def enter(host: str) -> RemoteAgent:
        agent = Cluster.enter(cluster, host)
        cluster.dead.add(host)
        return agent

    cluster.enter = enter  # type: ignore[method-assign]
    with pytest.raises(HostTrouble):
        reached("a,b")
    assert cluster.closed == ["a", "b"]


def test_whoever_was_reached_is_left_in_the_end(cluster: Cluster) -> None:
    with closing(HostRanks([Host("a"), Host("b")], RemoteShell(python="/python"))) as ranks:
        assert ranks.nodes == 2
        assert cluster.closed == []
    assert cluster.closed == ["a", "b"]


@pytest.mark.parametrize(("ranks", "is_refused"), [(1, False), (3, False), (2, True), (4, True)])
def test_cases_for_another_number_of_ranks_are_refused(cluster: Cluster, ranks: int, is_refused: bool) -> None:
    joined = reached("a,b:2")
    cases = [probing_case(ranks=1), probing_case(ranks=ranks)]
    if not is_refused:
        joined.announce(cases)
        return
    with refused("wrong-number-of-ranks", key="--hosts", value=3):
        joined.announce(cases)


def test_progress_is_passed_on_and_kept_for_a_case_that_fails(cluster: Cluster) -> None:
    progress = {"phase": "measuring", "metric": "step_time", "unit": "s", "samples": [0.5, 0.25]}
    ranks = reached("a,b")
    cluster.runs = {
        "a": lambda: [{"progress": progress}, {"progress": progress}, *ended(0, startup=1.0)],
        "b": lambda: ended(failure=a_failure(1), startup=9.0),
    }
    heard: list[Words] = []
    end = executed(ranks, 2, heard)
    assert heard == [progress, progress]
    assert end.samples == {("step_time", "s"): [0.5, 0.25, 0.5, 0.25]}
    assert end.startup_seconds == 1.0, "as the first rank has it"
    assert end.failure is not None
    assert (end.failure.rank, end.failure.cause.message) == (1, "it broke (on b)")


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_startup_is_that_of_the_first_host_whoever_ends_first(cluster: Cluster, order: list[str]) -> None:
    ranks = reached("a,b")
    ends = {"a": ended(0, startup=1.0), "b": ended(1, startup=9.0)}
    cluster.runs = {"a": lambda: ends["a"] if order[0] == "a" else [], "b": lambda: ends["b"]}
    if order[0] == "b":
        agents = {agent.name: agent for agent in cluster._all}

        def then() -> list[Words | None]:
            cluster._inbox.put((agents["b"], ends["b"][0]))
            return ends["a"]

        cluster.runs = {"a": then}
    assert executed(ranks, 2).startup_seconds == 1.0


def test_the_first_cause_wins_and_the_others_are_told_to_stop_after_a_moment(cluster: Cluster) -> None:
    ranks = reached("a,b,c")
    cluster.runs = {
        "a": lambda: ended(failure=a_failure(0, "Connection reset by peer", at=cluster.now - 3.0)),
        "b": lambda: ended(failure=a_failure(1, "the cause", at=cluster.now - 2.0)),
    }
    cluster.stops = {"c": ended()}
    begun = cluster.now
    end = executed(ranks, 3)
    assert end.failure is not None
    assert (end.failure.rank, end.failure.cause.message) == (1, "the cause (on b)")
    assert [host for host, _ in cluster.sent("stop")] == ["c"]
    assert cluster.now == begun + AFTERMATH_SECONDS


def test_a_host_that_does_not_stop_is_lost_and_the_failure_before_stands(cluster: Cluster) -> None:
    ranks = reached("a,b")
    cluster.runs = {"b": lambda: ended(failure=a_failure(1))}
    begun = cluster.now
    end = executed(ranks, 2)
    assert end.failure is not None
    assert end.failure.cause.message == "it broke (on b)"
    assert cluster.now == begun + AFTERMATH_SECONDS + LATE_SECONDS
    assert [agent.ended for agent in cluster._all] == [True, False]


def test_hosts_that_are_silent_are_lost_in_the_end(cluster: Cluster) -> None:
    ranks = reached("a:2,b")
    cluster.runs = {"a": lambda: ended(0, 1)}
    begun = cluster.now
    end = executed(ranks, 3)
    assert end.failure is not None
    assert end.failure == Failure(2, Outcome.FAILED, end.failure.cause, cluster.now)
    assert end.failure.cause == Cause(kind=CauseKind.INTERRUPTED, message="b does not answer any more", rank=2)
    assert cluster.now == begun + TIMEOUT + LATE_SECONDS
    assert cluster.sent("stop") == []


def test_a_stop_just_before_the_end_does_not_prolong_it(cluster: Cluster) -> None:
    ranks = reached("a,b,c")

    def late() -> list[Words | None]:
        cluster.now += TIMEOUT + LATE_SECONDS - AFTERMATH_SECONDS - 1.0
        return ended(failure=a_failure(2))

    cluster.runs = {"c": late}
    watch = HostRanks._watch

    def from_then(self: HostRanks, *words: Any) -> CaseEnd:
        agent = cluster._all[2]
        listen = cluster.listen

        def once(deadline: float) -> tuple[RemoteAgent, Words | None] | None:
            cluster.listen = listen  # type: ignore[method-assign]
            return agent, late()[0]

        cluster.listen = once  # type: ignore[method-assign]
        return watch(self, *words)

    cluster.runs = {}
    begun = cluster.now
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HostRanks, "_watch", from_then)
        end = executed(ranks, 3)
    assert cluster.now == begun + TIMEOUT + LATE_SECONDS
    assert end.failure is not None
    assert end.failure.cause.message == "it broke (on c)"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "b was lost: its process ended with code 255"),
        ({"refused": "has no such device"}, "b has no such device"),
    ],
)
def test_a_host_that_is_lost_or_refuses_is_a_failure_that_may_be_tried_again(
    cluster: Cluster, answer: Words | None, message: str
) -> None:
    ranks = reached("a,b")
    cluster.runs = {"a": lambda: ended(0), "b": lambda: [answer]}
    end = executed(ranks, 2)
    assert end.failure is not None
    detail = "  b: Connection refused"
    assert end.failure.cause == Cause(kind=CauseKind.INTERRUPTED, message=message, detail=detail, rank=1)


def test_a_case_of_one_rank_names_no_rank(cluster: Cluster) -> None:
    ranks = reached("a,b")
    cluster.runs = {"a": lambda: [None]}
    end = executed(ranks, 1)
    assert end.failure is not None
    assert (end.failure.rank, end.failure.cause.rank) == (0, None)


def test_ranks_that_were_ended_without_a_word_are_missed(cluster: Cluster) -> None:
    ranks = reached("a,b")
    cluster.runs = {"a": lambda: ended(0), "b": lambda: ended()}
    end = executed(ranks, 2)
    assert end.failure is not None
    assert (end.failure.rank, end.failure.cause.rank) == (0, 0)
    assert end.failure.cause.message == "some ranks were ended before they had a result"


def test_messages_of_hosts_that_take_no_part_are_not_heard(cluster: Cluster) -> None:
    ranks = reached("a,b")
    other = cluster._all[1]

    def beside() -> list[Words | None]:
        cluster._inbox.put((other, {"ended": CaseEnd(results={7: result()}).words()}))
        return ended(0)

    cluster.runs = {"a": beside}
    assert sorted(executed(ranks, 1).results) == [0]


@pytest.mark.parametrize(("names", "size"), [("a", 1), ("a,b", 2)])
def test_a_host_that_was_lost_is_entered_again(cluster: Cluster, names: str, size: int) -> None:
    ranks = reached(names)
    last = names.split(",")[-1]
    cluster.dead = {last}
    cluster.runs = {"a": lambda: ended(0), "b": lambda: ended(1)}
    cluster.orders.clear()
    end = executed(ranks, size)
    assert (end.failure, sorted(end.results)) == (None, list(range(size)))
    assert cluster.entered == [*names.split(","), last]
    assert cluster.closed == [last]
    assert [host for host, _ in cluster.sent("hello")] == [last]
    assert len(cluster.sent("listen")) == size - 1, "they meet once more"
    assert cluster.sent("run")[-1][1]["ranks"].get(1, {"MASTER_PORT": "9000"})["MASTER_PORT"] == "9000"


def test_a_host_that_refuses_a_port_but_is_there_is_asked_again(cluster: Cluster) -> None:
    ranks = reached("a,b")
    refusals: list[list[Words | None]] = [[{"refused": "is busy"}]]
    answers = cluster.answers

    def busy(host: str, order: Words) -> Sequence[Words | None]:
        return refusals.pop() if order["do"] == "port" and host == "b" and refusals else answers(host, order)

    cluster.answers = busy  # type: ignore[method-assign]
    cluster.runs = {"a": lambda: ended(0), "b": lambda: ended(1)}
    cluster.orders.clear()
    assert executed(ranks, 2).failure is None
    assert (cluster.closed, cluster.sent("hello"), cluster.sent("listen")) == ([], [], [])


def test_a_host_that_stays_lost_fails_the_case(cluster: Cluster) -> None:
    ranks = reached("a:2,b,c")

    def enter(host: str) -> RemoteAgent:
        agent = Cluster.enter(cluster, host)
        cluster.dead.add(host)
        return agent

    cluster.dead = {"b"}
    cluster.enter = enter  # type: ignore[method-assign]
    end = executed(ranks, 4)
    assert end.failure is not None
    assert (end.failure.rank, end.failure.cause.rank, end.failure.cause.kind) == (2, 2, CauseKind.INTERRUPTED)
    assert end.failure.cause.message.startswith("b cannot be used")
    assert cluster.sent("run") == []


def test_an_empty_file_names_no_host(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# nobody\n\n", encoding="utf-8")
    with refused("no-hosts", key="--hosts", value=str(path)):
        read_hosts(str(path))
