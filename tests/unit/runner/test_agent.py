"""The agent on one host, over real pipes in a test's own process."""

from __future__ import annotations

import errno
import os
import runpy
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.core import registry
from paceline.remote import agent as messages
from paceline.remote import agent as remote_agent
from paceline.remote.agent import Orders
from paceline.runner import agent as agent_module
from paceline.runner.agent import Agent
from paceline.runner.fork_client import WarmServer
from paceline.version import VERSION
from support.probing import PROVIDER, probing_case
from support.scripted_ranks import ScriptedRank, scripted


class Staying(Orders):
    """Orders whose end does not end the process that reads them."""

    def leave(self) -> None:
        pass


class Command:
    """The other end: sends orders, hears answers."""

    def __init__(self, server: WarmServer) -> None:
        source, self._sink = os.pipe()
        answers, sink = os.pipe()
        self._answers = os.fdopen(answers, "rb")
        self._ends = (source, sink)
        self._agent = Agent(Staying(source, sink), server)
        self._thread = threading.Thread(target=self._agent.serve, daemon=True)
        self._thread.start()

    def ask(self, **order: Any) -> dict[str, Any]:
        os.write(self._sink, messages.encode(order))
        return self.hear()

    def hear(self) -> dict[str, Any]:
        message = messages.decode(self._answers.readline())
        assert message is not None
        return message

    def close(self) -> None:
        os.close(self._sink)
        self._thread.join(10)
        assert not self._thread.is_alive(), "it ends with its orders"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    monkeypatch.setattr(remote_agent, "LEAVE_SECONDS", 0.0)
    made = Command(WarmServer())
    yield made
    made.close()


@pytest.mark.parametrize("exists", [True, False])
def test_what_the_command_was_given_counts_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command, exists: bool
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    if exists:
        work.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/theirs", "/both", ""]))
    monkeypatch.setenv("NCCL_DEBUG", "")
    monkeypatch.setattr(sys, "path", ["/first", "/both", "/last"])
    hello = command.ask(do="hello", environment={"NCCL_DEBUG": "INFO"}, path=["/ours", "/both"], folder=str(work))
    assert hello["hello"]["version"] == VERSION
    assert isinstance(hello["hello"]["devices"], dict)
    assert os.environ["NCCL_DEBUG"] == "INFO"
    assert os.environ["PYTHONPATH"] == os.pathsep.join(["/ours", "/both", "/theirs"])
    assert sys.path == ["/ours", "/first", "/both", "/last"]
    assert Path.cwd() == (work if exists else home)


def test_a_full_disk_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    def full(_towards: str) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x")

    monkeypatch.setattr(agent_module, "is_loopback", full)
    refusal = command.ask(do="face", address="127.0.0.1")
    assert refusal == {"refused": "cannot go on: [Errno 28] No space left on device: '/tmp/x'"}
    monkeypatch.setattr(agent_module.Orders, "of_streams", lambda: None)
    monkeypatch.setattr(agent_module, "WarmServer", lambda: full(""))
    with pytest.raises(SystemExit, match=r"no case can be measured here: .* No space left on device"):
        agent_module.main()


def test_a_door_opens_for_the_others_and_closes_when_the_way_is_clear(command: Command) -> None:
    port = command.ask(do="listen")["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    assert command.ask(do="reach", address="127.0.0.1", port=port) == {"address": "127.0.0.1"}
    assert command.ask(do="face", address="127.0.0.1") == {"address": "127.0.0.1"}
    refusal = command.ask(do="reach", address="127.0.0.1", port=port)["refused"]
    assert refusal.startswith(f"cannot reach the first host at 127.0.0.1, port {port}: ")
    assert refusal.endswith("; try another --master-address")


def test_a_host_of_one_family_of_addresses_has_a_door_too(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    port = command.ask(do="listen")["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    command.ask(do="face", address="127.0.0.1")


def test_who_has_no_door_faces_the_others_as_well(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    assert command.ask(do="face", address="127.0.0.1") == {"address": "127.0.0.1"}

    def unknown(_towards: str) -> str:
        raise OSError("no route")

    monkeypatch.setattr(agent_module, "own_address", unknown)
    assert command.ask(do="face", address="b") == {"refused": "finds no route to b: no route"}


def test_a_port_of_this_host_is_free(command: Command) -> None:
    with socket.create_server(("", command.ask(do="port")["port"])):
        pass


def test_the_environment_of_this_host_is_told(command: Command) -> None:
    assert command.ask(do="describe")["environment"]


@pytest.mark.parametrize("is_loopback", [True, False])
@pytest.mark.parametrize("way", ["face", "reach"])
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_this_host_are_measured_and_the_first_reports(
    monkeypatch: pytest.MonkeyPatch, is_loopback: bool, way: str, rank: int
) -> None:
    def play(ranks: Sequence[ScriptedRank]) -> None:
        ranks[0].tell(progress={"phase": "measuring", "metric": "", "unit": "", "samples": []})
        ranks[0].measured(0.5)
        ranks[0].exit()

    monkeypatch.setattr(remote_agent, "LEAVE_SECONDS", 0.0)
    monkeypatch.setattr(registry, "providers", lambda: ("paceline", PROVIDER))
    monkeypatch.setattr(agent_module, "is_loopback", lambda _address: is_loopback)
    monkeypatch.setattr(agent_module, "bound_to", lambda address: {"IF": address, "MINE": "network"})
    with scripted(1, play) as server, socket.create_server(("127.0.0.1", 0)) as door:
        command = Command(server.warm)
        command.ask(do=way, address="127.0.0.1", port=door.getsockname()[1])
        case = probing_case(ranks=2).model_dump(mode="json")
        answer = command.ask(do="run", case=case, ranks={rank: {"MINE": "order"}})
        if rank == 0:
            assert answer["progress"]["phase"] == "measuring"
            answer = command.hear()
        command.close()
        (started,) = server.ranks
    assert list(answer["ended"]["results"]) == [str(rank)]
    assert answer["ended"]["failure"] is None
    network = {} if is_loopback else {"IF": "127.0.0.1"}
    assert started.order["environment"] == network | {"MINE": "order"}
    assert (started.order["rank"], started.order["world_size"]) == (rank, 2)


def test_as_a_program_it_serves_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = os.pipe()
    answers, answers_sink = os.pipe()
    os.write(sink, messages.encode({"do": "port"}))
    os.close(sink)
    monkeypatch.setattr(Orders, "of_streams", classmethod(lambda _cls: Staying(source, answers_sink)))
    monkeypatch.setattr(remote_agent, "LEAVE_SECONDS", 0.0)
    runpy.run_path(agent_module.__file__, run_name="__main__")
    answer = messages.decode(os.read(answers, 1000))
    assert answer is not None
    assert answer["port"] > 0
    for descriptor in (answers, answers_sink):
        os.close(descriptor)
