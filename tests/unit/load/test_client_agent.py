"""What a host does when it is told to: it describes itself, looks for the server, and sends its share of a load."""

from __future__ import annotations

import base64
import json
import os
import pickle
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from paceline.load import client_agent, processes
from paceline.load.client_agent import ClientAgent
from paceline.load.generator import socket_limit
from paceline.load.quality import GeneratorCeiling, RequestKind
from paceline.load.request import Endpoint
from paceline.load.task import WorkerTask, payload_message, read_task, task_message
from paceline.load.trace import BROKEN, WorkerResults
from paceline.remote import agent as messages
from paceline.remote.agent import Orders
from paceline.version import VERSION
from support.traces import trace


class StayingOrders(Orders):
    """The process goes on when they have ended."""

    def leave(self) -> None:
        pass


class Leader:
    """The other end of the line."""

    def __init__(self) -> None:
        there, self._orders = os.pipe()
        answers, here = os.pipe()
        self._answers = os.fdopen(answers, "rb")
        self.agent = ClientAgent(StayingOrders(there, here))
        self.errors: list[BaseException] = []
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.agent.serve()
        except BaseException as error:
            self.errors.append(error)

    def tell(self, order: dict[str, Any]) -> None:
        os.write(self._orders, messages.encode(order))

    def hear(self) -> dict[str, Any]:
        answer = messages.decode(self._answers.readline())
        assert answer is not None
        return answer

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        self.tell(order)
        return self.hear()

    def hang_up(self) -> None:
        if self._orders >= 0:
            os.close(self._orders)
            self._orders = -1
            self._thread.join(5.0)
            assert not self._thread.is_alive()


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0: {6, 2, 4}, 1: {9}}[pid])
    made = Leader()
    yield made
    made.hang_up()


def hello(boot: str) -> dict[str, Any]:
    return {"do": "hello", "boot": boot, "load_cores": [7, 8], "server_cores": [1, 2, 3]}


@pytest.mark.parametrize(
    ("theirs", "ours", "cores", "pair"),
    [("x", "x", 2, (7, 1)), ("x", "y", 3, (2, 6)), ("", "", 3, (2, 6)), ("x", "", 3, (2, 6))],
)
def test_a_host_sends_from_its_own_cores_and_from_those_left_for_it_where_the_server_is(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, theirs: str, ours: str, cores: int, pair: tuple[int, int]
) -> None:
    monkeypatch.setattr(client_agent, "boot", lambda: ours)
    calibrated: list[tuple[object, ...]] = []

    def calibrate(*what: object) -> GeneratorCeiling:
        calibrated.append(what)
        return GeneratorCeiling(100.0, 200.0, ())

    monkeypatch.setattr(client_agent, "calibrate", calibrate)
    assert leader.ask(hello(theirs)) == {"hello": {"version": VERSION, "cores": cores, "boot": ours}}
    answer = leader.ask({"do": "calibrate", "size": 8192, "grpc": True})
    assert answer["ceiling"] == {"rate": 100.0, "requests_per_cpu_second": 200.0, "probes": []}
    assert calibrated == [(pair, RequestKind(8192, True))]


def test_a_host_reads_its_clock(leader: Leader) -> None:
    first, second = (leader.ask({"do": "clock"})["clock"] for _ in range(2))
    assert 0 < first <= second


def test_a_host_says_whether_it_reaches_the_server(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    connect = socket.create_connection

    def watched(address: tuple[str, int], timeout: float) -> socket.socket:
        waits.append(timeout)
        return connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", watched)
    with socket.create_server(("127.0.0.1", 0)) as server:
        order = {"do": "reach", "host": "127.0.0.1", "port": server.getsockname()[1]}
        assert leader.ask(order) == {}
    answer = leader.ask(order)
    assert f"cannot reach the server at 127.0.0.1, port {order['port']}" in answer["refused"]
    assert waits == [10.0, 10.0]


def tasks(number: int) -> list[WorkerTask]:
    return [
        WorkerTask(
            intended=np.array([0.5]),
            kinds=np.zeros(1, np.int32),
            number=one,
            parent=1,
            endpoint=Endpoint("kserve-json", "h", 1, "/", "x"),
            payloads=[],
            metadata=[],
            samples=np.array([3], np.int32),
        )
        for one in range(number)
    ]


MARK = Path(tempfile.gettempdir()) / f"paceline-unpickled-{os.getpid()}"


class Command:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(MARK),)


def pickle_of_a_command() -> str:
    return base64.b64encode(pickle.dumps(Command())).decode()


def send(number: int) -> dict[str, Any]:
    return {"do": "send", "tasks": [task_message(task) for task in tasks(number)], "longest": 1000.0}


def test_a_host_sends_its_share_when_it_is_told_to_start(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = WorkerResults(trace([0.25], kind=np.zeros(1, np.int32), cpu_seconds=0.5), [(0, b"body")])
    (tmp_path / "good.npz").write_bytes(done.packed())
    script = f'cp "$1/task.json" "{tmp_path}/$(basename $1)"; echo ready; read at; echo $at > "{tmp_path}/at"; '
    script += f'cp "{tmp_path}/good.npz" "$1/result.npz"'
    monkeypatch.setattr(processes, "COMMAND", ["sh", "-c", script, "worker"])
    assert leader.ask({"do": "payloads", "data": payload_message([b"p"], [(("a", "b"),)])}) == {}
    assert leader.ask(send(4)) == {"ready": True}
    start = time.monotonic_ns() - 1_000_000_000
    answer = leader.ask({"do": "start", "at": start})
    results = WorkerResults.unpacked(base64.b64decode(answer["results"]))
    assert len(results.trace) == 4
    assert results.trace.ok.all()
    assert results.answers == [(0, b"body")] * 4
    assert (tmp_path / "at").read_text() == f"{start}\n"
    got = [read_task(json.loads((tmp_path / str(number)).read_bytes())) for number in range(4)]
    assert [one.cpu for one in got] == [2, 4, 6, 2]
    assert [one.samples.tolist() for one in got] == [[3]] * 4
    assert {(one.parent, one.limit) for one in got} == {(os.getpid(), socket_limit(4))}
    assert [(one.payloads, one.metadata) for one in got] == [([b"p"], [(("a", "b"),)])] * 4


def test_a_host_passes_on_what_its_workers_say_meanwhile(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "trap 'exit 1' TERM; echo ready; read at; echo '[1.0,8,4,[1000]]'; while :; do sleep 0.01; done"
    monkeypatch.setattr(processes, "COMMAND", ["sh", "-c", script, "worker"])
    assert leader.ask(send(1)) == {"ready": True}
    assert leader.ask({"do": "start", "at": time.monotonic_ns()}) == {"live": [[1.0, 8, 4, [1000]]]}
    assert "results" in leader.ask({"do": "stop"})


@pytest.mark.parametrize(
    "order",
    [
        {"do": "send", "tasks": [pickle_of_a_command()], "longest": 1.0},
        {"do": "send", "tasks": [{"unknown": 1}], "longest": 1.0},
        {"do": "payloads", "data": pickle_of_a_command()},
    ],
)
def test_a_host_takes_nothing_but_data(leader: Leader, order: dict[str, Any], tmp_path: Path) -> None:
    assert "load generator" in leader.ask(order)["refused"]
    assert not MARK.exists()


def test_a_host_ends_its_workers_when_it_is_told_to_stop(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "trap 'echo stopped >&2; exit 1' TERM; echo ready; read at; while :; do sleep 0.01; done"
    monkeypatch.setattr(processes, "COMMAND", ["sh", "-c", script, "worker"])
    assert leader.ask(send(1)) == {"ready": True}
    leader.tell({"do": "start", "at": time.monotonic_ns() - 1_000_000_000})
    answer = leader.ask({"do": "stop"})
    results = WorkerResults.unpacked(base64.b64decode(answer["results"]))
    assert results.trace.losses == ("worker 0 of the load generator was lost: stopped",)
    assert results.trace.status.tolist() == [BROKEN]


def test_a_start_that_never_comes_ends_everything(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "COMMAND", ["sh", "-c", "echo ready; read at", "worker"])
    assert leader.ask(send(1)) == {"ready": True}
    leader.hang_up()
    assert [str(error) for error in leader.errors] == ["the start was cancelled"]
