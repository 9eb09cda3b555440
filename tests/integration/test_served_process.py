"""A server's process ends with all that it started, however it or its parent ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from paceline.core.network import free_port
from paceline.servers._program import Program, answers
from paceline.servers.base import Need, ServerFailed, ServerSettings

# Starts a daemon in a session of its own, ends the process in between, and says both ids.
DAEMONS = """
import os, subprocess, sys, time
between = subprocess.run([sys.executable, "-c", '''
import subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
daemon = subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(daemon.pid)
'''], capture_output=True, text=True)
open("pids.part", "w").write(f"{os.getpid()} {between.stdout}")
os.rename("pids.part", "pids")
time.sleep(600)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ignoring", flush=True)
time.sleep(600)
"""


class Scripted(Program):
    """A command that is ready when a test says so."""

    def __init__(self, folder: Path, command: list[str], timeout: float = 30.0) -> None:
        super().__init__(ServerSettings(ready_timeout=timeout), Need("any"), folder, lambda _: None)
        self.command = command
        self.ready: Callable[[], bool] = lambda: False

    def _is_ready(self) -> bool:
        return self.ready()

    def start(self) -> float:
        return self._run(self._command())

    def _command(self) -> list[str]:
        return self.command

    @property
    def exit_code(self) -> int | None:
        return self._supervisor.poll() if self._supervisor is not None else None

    def prepare(self) -> None: ...

    endpoint = describe = prepare  # type: ignore[assignment]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(code: str, **options: float) -> Scripted:
        served = Scripted(tmp_path, [sys.executable, "-c", code], **options)
        made.append(served)
        return served

    yield make
    for served in made:
        served.stop()


def gone(pids: list[int], within: float = 20.0) -> bool:
    deadline = time.monotonic() + within
    while any(map(running, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_orphaned_daemon_is_watched_and_ended_too(serve: Callable[..., Scripted], tmp_path: Path) -> None:
    served = serve(DAEMONS)
    served.ready = (tmp_path / "pids").exists
    served.start()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert set(pids) <= set(served.processes())
    served.stop()
    assert not any(map(running, pids))
    assert served.processes() == []
    assert not served.is_alive()


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
import sys, time, pathlib
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_served_process import Scripted
folder = pathlib.Path({str(tmp_path)!r})
served = Scripted(folder, [sys.executable, "-c", {DAEMONS!r}])
served.ready = (folder / "pids").exists
served.start()
print("started", flush=True)
time.sleep(600)
""",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
    finally:
        parent.kill()
        parent.communicate()
    assert gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])


def test_who_ignores_the_request_to_end_is_killed(serve: Callable[..., Scripted]) -> None:
    served = serve(STUBBORN)
    served.grace = 0.2  # type: ignore[misc]
    served.ready = lambda: "ignoring" in served.logs()
    served.start()
    served.stop()
    assert served.exit_code == 128 + signal.SIGKILL


def test_nothing_is_left_for_init_where_the_time_to_end_is_over_at_once(serve: Callable[..., Scripted]) -> None:
    served = serve(STUBBORN)
    served.ready = lambda: "ignoring" in served.logs()
    served.start()
    (pid,) = served.processes()
    served.grace = -10.0  # type: ignore[misc]  # as where the machine stands still after the request to end
    served.stop()
    assert served.exit_code == 128 + signal.SIGKILL, "the supervisor saw how the command ended"
    assert not psutil.pid_exists(pid)


def test_who_obeys_has_time_to_end(serve: Callable[..., Scripted], tmp_path: Path) -> None:
    served = serve(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), print('ended well', flush=True), sys.exit(3)))\n"
        "print('here', flush=True)\n"
        "time.sleep(600)"
    )
    served.ready = lambda: "here" in served.logs()
    served.start()
    served.stop()
    assert "ended well" in served.logs()
    assert served.exit_code == 3


def test_a_death_before_ready_is_told_with_the_last_words(serve: Callable[..., Scripted]) -> None:
    served = serve("import sys; print('no such model'); sys.exit(5)")
    with pytest.raises(ServerFailed, match="exit code 5 before it was ready") as failure:
        served.start()
    assert failure.value.logs == "no such model"


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    served = Scripted(tmp_path, [str(tmp_path / "nothing")])
    with pytest.raises(ServerFailed, match="exit code 127") as failure:
        served.start()
    assert "No such file" in failure.value.logs


def test_never_ready(serve: Callable[..., Scripted]) -> None:
    served = serve("import time; time.sleep(600)", timeout=0.1)
    with pytest.raises(ServerFailed, match=r"not ready after 0\.1 s"):
        served.start()
    assert served.processes() == []


def test_it_outlives_the_thread_that_started_it(serve: Callable[..., Scripted]) -> None:
    served = serve("import time; print('here', flush=True); time.sleep(600)")
    served.ready = lambda: "here" in served.logs()
    starter = threading.Thread(target=served.start)
    starter.start()
    starter.join()
    time.sleep(0.2)
    assert served.is_alive()


def test_stopping_needs_no_start_and_can_be_repeated(serve: Callable[..., Scripted]) -> None:
    served = serve("import time; time.sleep(600)")
    served.ready = lambda: True
    served.stop()
    served.start()
    served.stop()
    served.stop()
    assert not served.is_alive()


def test_nobody_answers_at_a_free_port() -> None:
    assert not answers("127.0.0.1", free_port(), "/")
