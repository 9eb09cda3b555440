"""The warm server in a test's own process: what it imports, forks, reaps and leaves."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.runner import fork_server
from paceline.runner.channel import Channel
from support.in_process import as_a_case
from support.probing import probing_case
from support.scripted_ranks import PATIENCE_SECONDS

STORM = "import signal\nfor _ in range(70_000):\n    signal.raise_signal(signal.SIGCHLD)\n"


@pytest.fixture(autouse=True)
def _case(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with as_a_case(monkeypatch):
        yield


def order(folder: Path, **parameters: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return {
        "do": "fork",
        "case": probing_case(parameters=parameters).model_dump(mode="json"),
        "rank": 0,
        "world_size": 1,
        "local_rank": 0,
        "environment": {},
        "folder": str(folder.parent),
        "log": str(folder / "rank0.log"),
    }


class Runner:
    """The other end of the server's connection."""

    def __init__(self, control: Channel) -> None:
        self.control = control
        self.control.connection.settimeout(PATIENCE_SECONDS / 3)

    def hear(self) -> dict[str, Any]:
        received = self.control.receive()
        assert received is not None
        return received[0]

    def fork(self, wanted: dict[str, Any]) -> tuple[int, Channel]:
        ours, theirs = Channel.pair()
        ours.connection.settimeout(PATIENCE_SECONDS / 3)
        self.control.send(wanted, [theirs.fileno()])
        theirs.close()
        return self.hear()["forked"], ours


def served(monkeypatch: pytest.MonkeyPatch, play: Callable[[Runner], None], serve: Callable[[], None]) -> None:
    """Serve until the play of the runner is over."""
    ours, theirs = Channel.pair()
    monkeypatch.setattr(sys, "argv", ["fork_server", str(os.dup(theirs.fileno()))])
    theirs.close()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            play(Runner(ours))
        except BaseException as error:
            errors.append(error)
        finally:
            ours.connection.shutdown(socket.SHUT_RDWR)  # forked cases hold this end, too
            ours.close()

    thread = threading.Thread(target=run)
    thread.start()
    serve()
    thread.join()
    if errors:
        raise errors[0]


def test_modules_are_imported_and_those_that_cannot_be_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def play(runner: Runner) -> None:
        modules = ["imported_here", "no_such_module", "exits"]
        runner.control.send({"do": "import", "modules": modules})
        answers.append(runner.hear())

    answers: list[dict[str, Any]] = []
    (tmp_path / "imported_here.py").write_text("value = 7\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    served(monkeypatch, play, fork_server.main)
    assert answers == [{"imported": ["imported_here", "no_such_module", "exits"]}]
    assert sys.modules.pop("imported_here").value == 7
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "the terminal's interrupt is the runner's to handle"


def test_a_library_that_complains_while_it_is_imported_is_not_heard_and_others_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def play(runner: Runner) -> None:
        runner.control.send({"do": "import", "modules": ["complains", "speaks"]})
        runner.hear()

    for name in ("complains", "speaks"):
        (tmp_path / f"{name}.py").write_text(f"import os\nos.write(2, b'{name}')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(fork_server, "NOISY", {"complains"})
    served(monkeypatch, play, fork_server.main)
    assert [sys.modules.pop(name).__name__ for name in ("complains", "speaks")] == ["complains", "speaks"]
    assert capfd.readouterr().err == "speaks"


def test_many_ends_at_once_are_no_trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def play(runner: Runner) -> None:
        runner.control.send({"do": "import", "modules": ["storm"]})
        answers.append(runner.hear())

    answers: list[dict[str, Any]] = []
    complaints: list[object] = []
    (tmp_path / "storm.py").write_text(STORM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    served(monkeypatch, play, fork_server.main)
    del sys.modules["storm"]
    assert answers == [{"imported": ["storm"]}]
    assert complaints == []


def test_a_forked_case_sends_its_result_and_its_end_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def play(runner: Runner) -> None:
        for number in range(2):
            pid, channel = runner.fork(order(tmp_path / f"case{number}"))
            messages: list[str] = []
            while (received := channel.receive()) is not None:
                messages += received[0]
            channel.close()
            seen.append((messages, runner.hear() == {"ended": pid, "status": 0}))

    seen: list[tuple[list[str], bool]] = []
    served(monkeypatch, play, fork_server.main)
    assert seen == [(["started", "progress", "progress", "kept", "result"], True)] * 2
    assert (tmp_path / "case0").exists(), "the folder of a case that has ended is the runner's"


def test_what_still_runs_when_the_runner_goes_ends_and_its_folder_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def play(runner: Runner) -> None:
        for name in ("one", "two"):
            wanted = order(tmp_path / name, seconds=600.0)
            pid, channel = runner.fork(wanted)
            channel.receive()
            channel.close()
            pids.append(pid)
        for path in (tmp_path / "two").iterdir():
            path.unlink()
        (tmp_path / "two").rmdir()  # by somebody else

    pids: list[int] = []
    served(monkeypatch, play, fork_server.main)
    assert [os.WTERMSIG(os.waitpid(pid, 0)[1]) for pid in pids] == [signal.SIGKILL] * 2
    assert not (tmp_path / "one").exists()


def test_what_a_case_leaves_behind_in_its_group_ends_with_it(tmp_path: Path) -> None:
    leader = os.posix_spawn(
        "/bin/sh", ["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid; wait"], os.environ, setsid=True
    )
    path, deadline = tmp_path / "pid", time.monotonic() + PATIENCE_SECONDS
    while not (path.exists() and path.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.005)
    behind = psutil.Process(int(path.read_text()))
    fork_server.kill_groups([leader])
    os.waitpid(leader, 0)
    while behind.is_running() and behind.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.005)
    assert time.monotonic() < deadline
    fork_server.kill_groups([leader])  # nobody is there any more


class Left(BaseException):
    """The process has ended, with this code."""


def as_the_child(monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]) -> tuple[int, list[str], bool]:
    """What the forked side does: its exit code, the names of its messages, and whether the order's end is closed."""

    def leave(code: int) -> None:
        raise Left(code)

    ours, theirs = Channel.pair()
    runner, control = Channel.pair()
    sessions: list[None] = []
    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(os, "setsid", lambda: sessions.append(None))
    monkeypatch.setattr(os, "_exit", leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(Left) as caught:
        fork_server._obey(wanted, [theirs.connection.detach()], control, {}, set())
    assert len(sessions) == 1
    messages: list[str] = []
    ours.connection.settimeout(0.01)
    try:
        while (received := ours.receive()) is not None:
            messages += received[0]
    except TimeoutError:
        pass
    is_closed = runner.receive() is None
    ours.close()
    runner.close()
    return caught.value.args[0], messages, is_closed


def test_the_forked_side_runs_the_case_and_ends_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, messages, is_closed = as_the_child(monkeypatch, order(tmp_path / "case"))
    assert (code, messages) == (0, ["started", "progress", "progress", "kept", "result"])
    assert is_closed, "orders are the server's alone"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


def test_an_order_that_cannot_be_obeyed_ends_with_a_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, messages, _ = as_the_child(monkeypatch, {"do": "fork", "log": str(tmp_path / "rank0.log")})
    assert (code, messages) == (70, [])


def test_as_a_program_it_serves_and_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise Left(code)

    def serve() -> None:
        monkeypatch.setattr(os, "_exit", leave)
        with pytest.raises(Left) as caught:
            runpy.run_path(fork_server.__file__, run_name="__main__")
        codes.append(caught.value.args[0])

    codes: list[int] = []
    served(monkeypatch, lambda runner: runner.control.send({"do": "import", "modules": []}), serve)
    assert codes == [0]
