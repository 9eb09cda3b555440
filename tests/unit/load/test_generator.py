"""One load is drawn from one seed, and workers share it out whole."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from paceline.load import generator, processes
from paceline.load.arrivals import Schedule
from paceline.load.clients import ClientHosts
from paceline.load.generator import LoadPlan, cost_of, dealt, drive, require_known, socket_limit, workers_of_hosts
from paceline.load.parameters import LoadParameters
from paceline.load.request import Endpoint, Prepared
from paceline.load.task import WorkerTask
from paceline.load.trace import WorkerResults
from support.refused import refused
from support.traces import trace

KINDS = [Prepared(b"a"), Prepared(b"b" * 100), Prepared(b"c")]
POISSON = LoadParameters(arrival="poisson", rate=100, duration=5)
TASK = WorkerTask(
    parent=1,
    endpoint=Endpoint("kserve-json", "h", 1, "/", "x"),
    payloads=[],
    metadata=[],
    samples=np.ones(1, np.int32),
)


def test_a_seed_settles_times_and_kinds_and_workers_change_neither() -> None:
    plan, again = LoadPlan.of(POISSON, KINDS, 3), LoadPlan.of(POISSON, KINDS, 3)
    assert np.array_equal(plan.intended, again.intended)
    assert np.array_equal(plan.kinds, again.kinds)
    tasks = plan.divided(TASK, 3)
    together = np.concatenate([task.intended for task in tasks])
    kinds = np.concatenate([task.kinds for task in tasks])[np.argsort(together)]
    assert np.array_equal(np.sort(together), plan.intended)
    assert np.array_equal(kinds, plan.kinds)
    assert len(np.unique(together)) == len(together)


def test_a_network_changes_neither_times_nor_kinds() -> None:
    plain = LoadPlan.of(POISSON, KINDS, 3)
    over = LoadPlan.of(LoadParameters(arrival="poisson", rate=100, duration=5, network="4g"), KINDS, 3)
    assert np.array_equal(plain.intended, over.intended)
    assert np.array_equal(plain.kinds, over.kinds)
    assert over.up is not None and over.up.min() > 0 and plain.up is None


def test_what_users_machines_do_holds_their_own_requests_back() -> None:
    kinds = [Prepared(b"a"), Prepared(b"b", before=0.5, after=0.25)]
    plan = LoadPlan.of(POISSON, kinds, 3)
    assert plan.up is not None and plan.down is not None
    assert np.array_equal(plan.up, np.where(plan.kinds == 1, 0.5, 0.0))
    assert np.array_equal(plan.down, np.where(plan.kinds == 1, 0.25, 0.0))
    load = LoadParameters(arrival="poisson", rate=100, duration=5, network="4g")
    bare, over = LoadPlan.of(load, KINDS, 3), LoadPlan.of(load, [replace(one, before=0.5) for one in KINDS], 3)
    assert bare.up is not None and over.up is not None and np.allclose(over.up, bare.up + 0.5)


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with refused("unknown-kind", key="requests.distinct", value=len(KINDS), suggestion="8"):
        LoadPlan.of(Schedule(np.zeros(2), np.array([0, 7], np.int32)), KINDS, 3)


def test_a_load_without_requests_is_refused() -> None:
    with refused("no-requests", key="load.rate"):
        LoadPlan.of(LoadParameters(arrival="poisson", rate=0.001, duration=0.001), KINDS, 3)


def test_there_are_as_many_workers_as_the_rate_needs() -> None:
    slow = LoadPlan.of(POISSON, KINDS, 3)
    fast = LoadPlan.of(LoadParameters(arrival="constant", rate=19_000, duration=1), KINDS, 3)
    assert (slow.workers(64), fast.workers(64), fast.workers(2)) == (1, 5, 2)


def test_large_requests_and_calls_of_grpc_need_more_workers() -> None:
    four = LoadPlan.of(LoadParameters(arrival="closed", users=4, duration=1), KINDS, 3)
    small, large = [Prepared(b"x" * 100)], [Prepared(b"x" * 5_000_000)]
    assert cost_of(small) == pytest.approx(1.0, abs=1e-2)
    assert four.workers(64, cost_of(small)) == 1
    assert (four.workers(64, cost_of(large)), four.workers(2, cost_of(large))) == (4, 2)
    assert cost_of(small, is_grpc=True) > 4 * cost_of(small)


def test_users_and_counts_of_a_closed_loop_are_shared_out() -> None:
    plan = LoadPlan.of(LoadParameters(arrival="closed", users=5, requests=12), KINDS, 3)
    tasks = plan.divided(TASK, 3)
    assert [task.users for task in tasks] == [2, 2, 1]
    assert sum(task.requests or 0 for task in tasks) == 12
    assert len(plan.divided(TASK, 9)) == 5


def test_all_kinds_are_drawn_from_the_first_to_the_last() -> None:
    assert set(LoadPlan.of(POISSON, KINDS, 3).kinds.tolist()) == {0, 1, 2}


def test_a_schedule_is_sent_as_it_is() -> None:
    times, kinds = np.array([0.0, 0.5]), np.array([2, 0], np.int32)
    plan = LoadPlan.of(Schedule(times, kinds), KINDS, 3)
    assert (plan.loop, plan.intended.tolist(), plan.kinds.tolist()) == ("open", [0.0, 0.5], [2, 0])
    assert len(LoadPlan.of(Schedule(times), KINDS, 3).kinds) == 2
    assert (plan.up, plan.down, plan.down_bandwidth) == (None, None, math.inf)


@pytest.mark.parametrize(("kinds", "number", "is_known"), [([0, 2], 3, True), ([0, 3], 3, False), ([0, 0], 1, True)])
def test_kinds_are_counted_from_zero(kinds: list[int], number: int, is_known: bool) -> None:
    schedule = Schedule(np.zeros(2), np.array(kinds, np.int32))
    if is_known:
        require_known(schedule, number)
    else:
        with refused("unknown-kind", suggestion=str(max(kinds) + 1)):
            require_known(schedule, number)
    require_known(Schedule(np.zeros(2)), 1)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (LoadParameters(arrival="closed", users=4, requests=6), ("closed", 6, 4, 6, 0.0)),
        (LoadParameters(arrival="closed", users=4, duration=2, think_time="500ms"), ("closed", 65536, 4, None, 0.5)),
        (LoadParameters(arrival="offline", requests=7), ("burst", 7, 64, 7, 0.0)),
    ],
)
def test_a_plan_of_users_has_their_number_and_what_they_send(
    load: LoadParameters, expected: tuple[str, int, int, int | None, float]
) -> None:
    plan = LoadPlan.of(load, KINDS, 3)
    assert (plan.loop, len(plan.kinds), plan.users, plan.requests, plan.think_time) == expected
    assert plan.duration == load.seconds
    assert len(plan.intended) == 0


@pytest.mark.parametrize("bandwidth", [None, 1000])
def test_a_network_of_the_client_holds_requests_back_and_slows_answers_down(bandwidth: int | None) -> None:
    network = {"delay": "500ms", "up": 100, "down": bandwidth}
    plan = LoadPlan.of(LoadParameters(arrival="poisson", rate=100, duration=1, network=network), KINDS, 3)
    assert plan.up is not None and plan.down is not None
    assert plan.up.tolist() == np.where(plan.kinds == 1, 1.5, 0.51).tolist()
    assert plan.down.tolist() == [0.5] * len(plan.kinds)
    assert plan.down_bandwidth == (bandwidth or math.inf)


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.0), (0.0, 0.25), (0.5, 0.25)])
def test_work_of_users_machines_counts_in_both_directions(before: float, after: float) -> None:
    plan = LoadPlan.of(POISSON, [Prepared(b"a", before=before, after=after)], 3)
    assert plan.up is not None and plan.down is not None
    assert (set(plan.up.tolist()), set(plan.down.tolist())) == ({before}, {after})
    slow = LoadParameters(arrival="poisson", rate=100, duration=1, network={"delay": 1})
    over = LoadPlan.of(slow, [Prepared(b"a", before=before, after=after)], 3)
    assert over.up is not None and over.down is not None
    assert (set(over.up.tolist()), set(over.down.tolist())) == ({1.0 + before}, {1.0 + after})


def users(number: int, **more: Any) -> LoadPlan:
    return LoadPlan("closed", users=number, **more)


def test_there_are_as_many_workers_as_users_need() -> None:
    assert [users(number).workers(8) for number in (1, 32, 33, 1000)] == [1, 1, 2, 8]
    assert users(4).workers(8, 100.0) == 4
    assert users(4).workers(2, 100.0) == 2
    assert users(64).workers(8, 0.5) == 1
    assert users(64).workers(8) == users(64).workers(8, 1.0)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (LoadPlan("open", np.array([0.0, 1.0, 4.0, 8.0])), 8.0 + 30.0 + 10.0),
        (LoadPlan("open", np.array([0.0, 8.0]), up=np.array([2.0, 1.0]), down=np.array([0.25, 0.5])), 8 + 2.5 + 40),
        (users(2, duration=5.0), 5.0 + 30.0 + 10.0),
        (users(2, duration=5.0, up=np.array([2.0]), down=np.array([0.5])), 5.0 + 2.5 + 30.0 + 10.0),
        (users(4, requests=9), 3 * 30.0 + 10.0),
        (users(4, requests=9, think_time=1.0, up=np.array([2.0]), down=np.array([0.5])), 3 * 33.5 + 10.0),
    ],
)
def test_a_load_ends_when_its_last_request_must_have_been_answered(plan: LoadPlan, expected: float) -> None:
    assert plan.longest(30.0) == expected


def test_the_task_of_each_worker_is_its_share_of_everything() -> None:
    kinds = np.array([0, 1, 2, 0, 1], np.int32)
    plan = LoadPlan("open", np.arange(5) / 2, kinds, up=np.arange(5.0), down=np.arange(0.0, 10.0, 2.0))
    first, second = plan.divided(TASK, 2)
    assert first.intended.tolist() == [0.0, 1.0, 2.0]
    assert first.kinds.tolist() == [0, 2, 1]
    assert second.up is not None and second.down is not None
    assert (second.up.tolist(), second.down.tolist()) == ([1.0, 3.0], [2.0, 6.0])
    assert (first.requests, first.endpoint, first.parent) == (None, TASK.endpoint, TASK.parent)
    assert (first.number, second.number) == (0, 1)
    assert len(plan.divided(TASK, 7)) == 7


@pytest.mark.parametrize(
    ("plan", "number", "expected"),
    [
        (users(5, requests=12), 3, [(2, 4), (2, 4), (1, 4)]),
        (users(5, requests=2), 3, [(3, 1), (2, 1)]),
        (users(3, duration=1.0), 9, [(1, None), (1, None), (1, None)]),
        (users(3, duration=1.0), 1, [(3, None)]),
    ],
)
def test_no_worker_is_without_a_user_or_a_request(
    plan: LoadPlan, number: int, expected: list[tuple[int, int | None]]
) -> None:
    tasks = plan.divided(TASK, number)
    assert [(task.users, task.requests) for task in tasks] == expected
    assert all(task.up is None and task.down is None for task in tasks)
    assert all(len(task.intended) == 0 for task in tasks)


def test_the_cost_of_requests_is_that_of_their_mean_size() -> None:
    sizes = [Prepared(b"x" * 2**16), Prepared(b"x" * 3 * 2**16)]
    assert cost_of(sizes) == 3.0
    assert cost_of(sizes, is_grpc=True) == 12.0


def test_hosts_have_as_many_workers_as_are_needed_and_as_they_have_cores() -> None:
    assert workers_of_hosts([4, 4], 5) == [3, 3]
    assert workers_of_hosts([1, 8], 9) == [1, 5]
    assert workers_of_hosts([4, 4], 0) == [1, 1]
    assert workers_of_hosts([1, 8], 9, 2) == [1, 2]


def test_tasks_are_dealt_in_rotation() -> None:
    assert dealt(6, [1, 3, 2]) == [[0], [1, 3, 5], [2, 4]]
    assert dealt(2, [1, 3, 2]) == [[0], [1], []]


# Driving a load.

ENDPOINT = Endpoint("kserve-json", "server", 8000, "/infer", "x", headers={"x-key": "secret"})


class Sender:
    """Takes the place of the processes, or of hosts with cores, and says that all was well."""

    def __init__(self, cores: Sequence[int] = ()) -> None:
        self.cores = cores
        self.answers: list[tuple[int, bytes]] = []

    def run(self, tasks: Sequence[WorkerTask], *more: Any, on_lines: Any) -> WorkerResults:
        self.tasks, self.more = tasks, more
        on_lines([[2.0, 8, 4, [1000]]])
        done = trace([0.5, 0.5, 0.5], kind=np.array([0, 1, 0], np.int32), stages={"queue": np.zeros(3)})
        return WorkerResults(done, self.answers)


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Sender:
    made = Sender()
    monkeypatch.setattr(processes, "run", made.run)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0: set(range(6)), 1: {0}}[pid])
    return made


FAST = LoadParameters(arrival="constant", rate=40_000, duration="50ms")  # needs ten workers


def test_what_is_not_given_has_a_usual_value(sender: Sender) -> None:
    drive(ENDPOINT, KINDS, POISSON)
    (task,) = sender.tasks
    plan = LoadPlan.of(POISSON, KINDS, 1234)
    assert np.array_equal(task.intended, plan.intended)
    assert (task.timeout, task.streaming, task.keep, task.cpu) == (30.0, False, 0, None)
    assert task.endpoint == ENDPOINT
    assert task.samples.tolist() == [1, 1, 1]
    assert (task.parent, task.limit) == (os.getpid(), socket_limit(1))
    assert task.payloads[1].startswith(b"POST /infer HTTP/1.1\r\nhost: server:8000\r\n")
    assert task.payloads[1].endswith(b"\r\n\r\n" + KINDS[1].body)
    longest, go_on = sender.more
    assert longest == plan.longest(30.0)
    assert go_on() is True


@pytest.mark.parametrize("cores", [(), (1,)])
def test_workers_say_how_it_goes_where_somebody_listens(sender: Sender, cores: Sequence[int]) -> None:
    used = Sender(cores) if cores else sender
    hosts = cast(ClientHosts, used) if cores else None
    drive(ENDPOINT, KINDS, POISSON, hosts=hosts)
    assert [task.live for task in used.tasks] == [False]
    heard: list[Any] = []
    drive(ENDPOINT, KINDS, POISSON, hosts=hosts, on_live=heard.append)
    assert [task.live for task in used.tasks] == [True]
    assert heard == [{"rate": 2.0, "failures": 2.0, "p50": 0.001, "p99": 0.001}]


@pytest.mark.parametrize("load", [POISSON, LoadParameters(arrival="closed", users=2, duration=1.0)])
def test_requests_may_go_one_after_the_other(load: LoadParameters) -> None:
    kinds = LoadPlan.of(load, KINDS, 1, in_turn=True).kinds
    assert kinds[:5].tolist() == [0, 1, 2, 0, 1]
    assert LoadPlan.of(load, KINDS, 1).kinds[:20].tolist() != kinds[:20].tolist()


def test_what_is_given_is_what_workers_get(sender: Sender) -> None:
    kinds = [Prepared(b"a", samples=4), Prepared(b"b")]
    drive(ENDPOINT, kinds, POISSON, seed=9, timeout=2.0, streaming=True, keep=3, workers=2, go_on=lambda: False)
    assert len(sender.tasks) == 2
    assert np.array_equal(sender.tasks[0].intended, LoadPlan.of(POISSON, kinds, 9).intended[::2])
    assert {(task.timeout, task.streaming, task.keep) for task in sender.tasks} == {(2.0, True, 3)}
    assert sender.tasks[0].samples.tolist() == [4, 1]
    longest, go_on = sender.more
    assert longest == LoadPlan.of(POISSON, kinds, 9).longest(2.0)
    assert go_on() is False


def test_calls_of_grpc_carry_bare_messages_and_their_headers(sender: Sender) -> None:
    pytest.importorskip("grpc", reason="needs it: pip install '.[serving]'")
    drive(replace(ENDPOINT, wire="kserve-grpc"), [Prepared(b"message", {"A": "b"})], POISSON, workers=1)
    (task,) = sender.tasks
    assert task.payloads == [b"message"]
    assert task.metadata == [(("x-key", "secret"), ("a", "b"))]


def test_a_load_of_nothing_is_refused(sender: Sender) -> None:
    with refused("no-requests", key="requests"):
        drive(ENDPOINT, [], POISSON)


@pytest.mark.parametrize(
    ("body", "most_copied", "given", "expected"),
    [
        (b"x" * 100, 10**9, {}, 6),  # a worker for each core
        (b"x" * 100, 10**9, {"cpus": [1, 2, 3]}, 3),
        (b"x" * 100, 10**9, {"workers": 2}, 2),
        (b"x" * 100, 200, {}, 2),  # as many as there is memory for
        (b"x" * 100, 99, {}, 1),
        (b"x", 3, {}, 3),
        (b"", 3, {}, 3),
        (b"x" * 100, 200, {"workers": 5}, 5),
    ],
)
def test_the_number_of_workers_is_given_or_what_cores_and_memory_allow(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, body: bytes, most_copied: int, given: Any, expected: int
) -> None:
    monkeypatch.setattr(generator, "MOST_COPIED", most_copied)
    drive(ENDPOINT, [Prepared(body)], FAST, **given)
    assert len(sender.tasks) == expected


@pytest.mark.parametrize(("connections", "expected"), [(10, 3), (2, 1), (1, 1), (9, 3), (None, 77)])
def test_connections_are_shared_among_workers(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, connections: int | None, expected: int
) -> None:
    monkeypatch.setattr(generator, "socket_limit", lambda workers: {3: 77}[workers])
    drive(ENDPOINT, KINDS, FAST, workers=3, connections=connections)
    assert [task.limit for task in sender.tasks] == [expected] * 3


def test_workers_are_pinned_to_cores_in_rotation(sender: Sender) -> None:
    drive(ENDPOINT, KINDS, FAST, workers=5, cpus=[7, 9])
    assert [task.cpu for task in sender.tasks] == [7, 9, 7, 9, 7]


def test_hosts_send_instead_of_this_machine_from_their_own_cores(sender: Sender) -> None:
    hosts = Sender([1, 4])
    drive(ENDPOINT, KINDS, FAST, hosts=cast(ClientHosts, hosts), cpus=[7])
    assert not hasattr(sender, "tasks")
    assert [task.cpu for task in hosts.tasks] == [None] * 4
    shared, longest, go_on = hosts.more
    assert shared == [1, 3]
    assert [task.samples.tolist() for task in hosts.tasks] == [[1, 1, 1]] * 4
    assert longest == LoadPlan.of(FAST, KINDS, 1234).longest(30.0)
    assert go_on() is True
    drive(ENDPOINT, KINDS, FAST, hosts=cast(ClientHosts, hosts), workers=2)
    assert hosts.more[0] == [1, 2]


def test_answers_are_handed_on(sender: Sender) -> None:
    sender.answers = [(1, b"a"), (0, b"b")]
    answers: list[tuple[int, bytes]] = []
    drive(ENDPOINT, KINDS, POISSON, on_answer=lambda kind, body: answers.append((kind, body)))
    assert answers == sender.answers
    drive(ENDPOINT, KINDS, POISSON)


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.0), (0.0, 0.25), (0.5, 0.25)])
def test_work_of_users_machines_is_a_stage_before_and_one_after_the_servers(
    sender: Sender, before: float, after: float
) -> None:
    worked = drive(ENDPOINT, [Prepared(b"a"), Prepared(b"b", before=before, after=after)], POISSON)
    assert list(worked.stages) == ["client pre", "queue", "client post"]
    assert worked.stages["client pre"].tolist() == [0.0, before, 0.0]
    assert worked.stages["client post"].tolist() == [0.0, after, 0.0]
    assert list(drive(ENDPOINT, KINDS, POISSON).stages) == ["queue"]


@pytest.mark.parametrize(
    ("files", "ports", "workers", "expected"),
    [
        (1064, "10000 20000", 1, 1000),
        (100_000, "10000 20000", 1, 9000),
        (100_000, "10000 20000", 4, 2250),
        (10, "10000 20000", 1, 1),
        (resource.RLIM_INFINITY, "10000 20000000", 1, 2**20 - 64),
        (100_000, "no numbers", 1, int(0.9 * (60999 - 32768))),
        (100_000, None, 3, int(0.9 * (60999 - 32768)) // 3),
    ],
)
def test_connections_are_bounded_by_files_and_by_ports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: int, ports: str | None, workers: int, expected: int
) -> None:
    if ports is not None:
        (tmp_path / "ports").write_text(f"{ports}\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1, files))
    monkeypatch.setattr(generator, "_PORTS", tmp_path / "ports")
    assert socket_limit(workers) == expected


def test_where_ports_cannot_be_read_they_are_those_of_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1, 100_000))
    monkeypatch.setattr(generator, "_PORTS", tmp_path / "missing")
    monkeypatch.setattr(generator, "_USABLE_PORTS", 1.0)
    assert socket_limit(1) == 60999 - 32768
