"""The runner's side of the warm server, against another end that does what a test says, and against the real one."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from paceline.runner import fork_client
from paceline.runner.channel import Channel
from paceline.runner.fork_client import ServerLost, ServerTimeout, WarmServer
from support.scripted_ranks import PATIENCE_SECONDS


class Ends:
    """Both ends of a connection, of which a test plays the server's."""

    def __init__(self) -> None:
        ours, self.theirs = Channel.pair()
        self.server = WarmServer(_control=ours)

        self.orders: list[dict[str, Any]] = []
        self.descriptors: list[int] = []

    @contextmanager
    def answering(self, *messages: dict[str, Any]) -> Iterator[None]:
        """The server gets one order within, and says all this; without a message, it leaves."""

        def answer() -> None:
            received = self.theirs.receive()
            assert received is not None
            self.orders.append(received[0])
            self.descriptors += received[1]
            for message in messages:
                self.theirs.send(message)
            if not messages:
                self.theirs.close()

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()

    def close(self) -> None:
        self.server.close()
        self.theirs.close()


IMPORTED: dict[str, Any] = {"imported": []}


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long `select` was told to wait; it does not."""
    heard: list[float] = []
    real = select.select

    def at_once(readers: Any, writers: Any, others: Any, timeout: float) -> Any:
        heard.append(timeout)
        return real(readers, writers, others, 0)

    monkeypatch.setattr(select, "select", at_once)
    return heard


def soon() -> float:
    return time.monotonic() + PATIENCE_SECONDS


def test_a_module_is_imported_once(ends: Ends) -> None:
    with ends.answering(IMPORTED):
        ends.server.warm(("json", "math"), soon())
    with ends.answering(IMPORTED):
        ends.server.warm(("math", "csv"), soon())
    ends.server.warm(("csv", "json"), soon())
    assert ends.orders == [{"do": "import", "modules": ["json", "math"]}, {"do": "import", "modules": ["csv"]}]


def test_what_is_being_imported_already_is_waited_for_and_not_ordered_again(ends: Ends) -> None:
    ends.server.begin(("json", "math"))
    with ends.answering(IMPORTED):  # to the order that was given before
        ends.server.warm(("math",), soon())
    assert ends.orders == [{"do": "import", "modules": ["json", "math"]}]
    with ends.answering(IMPORTED):
        ends.server.begin(("csv",))
        ends.server.warm(("json", "csv"), soon())
    assert ends.orders[1:] == [{"do": "import", "modules": ["csv"]}]


def test_a_server_can_be_started_before_anything_is_to_be_imported() -> None:
    server = WarmServer()
    server.begin()
    assert server.pid is not None
    server.warm((), soon())
    server.close()
    assert server == WarmServer()


def test_a_server_that_is_not_wanted_any_more_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_client, "CLOSE_SECONDS", PATIENCE_SECONDS)
    ours, theirs = Channel.pair()
    process = subprocess.Popen(["sleep", "600"])
    WarmServer(_control=ours, _process=process).abandon()
    assert process.returncode == -9
    theirs.close()


def test_a_fork_is_given_one_end_of_a_channel_and_the_runner_has_the_other(ends: Ends) -> None:
    with ends.answering({"forked": 4217}):
        pid, ours = ends.server.fork({"rank": 3}, soon())
    assert (pid, ends.orders) == (4217, [{"do": "fork", "rank": 3}])
    (descriptor,) = ends.descriptors
    case = Channel.of_descriptor(descriptor)
    case.send({"hello": 1})
    case.close()
    assert [ours.receive(), ours.receive()] == [({"hello": 1}, []), None], "nobody else holds the case's end"
    ours.close()


def test_ends_that_come_with_answers_are_remembered_until_they_are_asked_for_and_told_once(ends: Ends) -> None:
    ends.theirs.send({"ended": 10, "status": 15})
    after = {"ended": 13, "status": 0}
    with ends.answering({"ended": 11, "status": 9}, {"ended": 12, "status": 256}, IMPORTED, after, {"other": 1}):
        ends.server.warm(("json",), soon())
    assert ends.server.poll_ends() == {10: 15, 11: 9, 12: 256, 13: 0}
    assert ends.server.poll_ends() == {}


def test_asking_for_ends_does_not_wait(ends: Ends, waits: list[float]) -> None:
    assert ends.server.poll_ends() == {}
    assert waits == [0]


def test_a_server_that_was_never_needed_has_no_ends_and_is_not_started() -> None:
    with WarmServer() as server:
        assert server.poll_ends() == {}
        assert server == WarmServer()


def test_a_server_that_goes_before_it_answers_is_lost(ends: Ends) -> None:
    with ends.answering(), pytest.raises(ServerLost, match="while it imported") as caught:
        ends.server.warm(("json",), soon())
    assert caught.value.is_importing
    assert ends.server == WarmServer(), "the next order starts another"


def test_a_server_that_is_gone_is_lost_to_its_cases(ends: Ends) -> None:
    ends.theirs.close()
    with pytest.raises(ServerLost, match="--resume") as caught:
        ends.server.fork({"rank": 1}, soon())
    assert not caught.value.is_importing
    assert ends.server == WarmServer()


def test_a_server_that_is_gone_ends_no_more_cases(ends: Ends) -> None:
    ends.theirs.send({"ended": 11, "status": 9})
    ends.theirs.close()
    with pytest.raises(ServerLost):
        ends.server.poll_ends()


def test_a_server_that_died_between_cases_is_replaced(ends: Ends) -> None:
    with ends.answering(IMPORTED):
        ends.server.warm(("json",), soon())
    ends.theirs.close()
    ends.server.warm((), soon())
    assert ends.server._control is None, "the next order starts another"
    assert not ends.server._imported, "which has imported nothing"


@pytest.mark.parametrize(("left", "expected"), [(-5.0, 0.0), (20.0, 20.0)])
def test_a_server_is_waited_for_until_the_deadline_and_not_longer(
    ends: Ends, waits: list[float], monkeypatch: pytest.MonkeyPatch, left: float, expected: float
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    with pytest.raises(ServerTimeout, match="--timeout"):
        ends.server.warm(("json",), 1000.0 + left)
    assert waits[-1] == expected
    assert ends.server == WarmServer(), "the next order starts another"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_server_that_does_not_leave_is_killed(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    monkeypatch.setattr(fork_client, "CLOSE_SECONDS", PATIENCE_SECONDS if is_late else 0.0)
    ours, theirs = Channel.pair()
    process = subprocess.Popen(["sleep", "600"])
    server = WarmServer(_control=ours, _process=process)
    if is_late:  # with an order: then at once
        with pytest.raises(ServerTimeout):
            server.warm(("json",), 0.0)
    else:
        server.close()
    assert process.returncode == -9
    assert server == WarmServer()
    theirs.close()


def test_a_server_that_leaves_is_not_killed() -> None:
    ours, theirs = Channel.pair()
    waits_for_the_end = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"
    process = subprocess.Popen(
        [sys.executable, "-IS", "-c", waits_for_the_end, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    WarmServer(_control=ours, _process=process).close()
    assert process.returncode == 0


def test_the_real_server_imports_forks_and_leaves(tmp_path: Any) -> None:
    with WarmServer() as server:
        server.warm(("json", "no_such_module"), soon())
        assert server.control is server.control, "one server is started"
        process = server._process
        assert process is not None
        assert os.getsid(process.pid) == process.pid, "the terminal's interrupt does not reach it"
        pid, channel = server.fork({"log": str(tmp_path / "rank0.log")}, soon())  # an order that nobody can obey
        assert channel.receive() is None
        ends: dict[int, int] = {}
        while not ends and select.select([server.control], [], [], PATIENCE_SECONDS)[0]:
            ends = server.poll_ends()
        assert {number: os.WEXITSTATUS(status) for number, status in ends.items()} == {pid: 70}
        channel.close()
    assert process.returncode == 0


def test_a_pinned_server_starts_on_its_cpus_and_leaves_the_runner_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    cpus = frozenset({max(before)})
    with WarmServer(cpus) as server:
        assert server.control is not None
        assert server._process is not None
        assert os.sched_getaffinity(server._process.pid) == cpus
    assert os.sched_getaffinity(0) == before
