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

from paceline.core.ports import free_port
from paceline.servers._program import ServedProcess, answers
from paceline.servers.base import ServerFailed

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


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedProcess]]:
    started: list[ServedProcess] = []

    def start(code: str, **options: float) -> ServedProcess:
        served = ServedProcess([sys.executable, "-c", code], folder=tmp_path, **options)  # type: ignore[arg-type]
        started.append(served)
        return served

    yield start
    for served in started:
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


def test_an_orphaned_daemon_is_watched_and_ended_too(serve: Callable[..., ServedProcess], tmp_path: Path) -> None:
    served = serve(DAEMONS)
    served.start()
    served.wait((tmp_path / "pids").exists, timeout=30)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert set(pids) <= set(served.pids())
    served.stop()
    assert not any(map(running, pids))
    assert served.pids() == []
    assert not served.is_alive()


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
import sys, time, pathlib
from paceline.servers._program import ServedProcess
folder = pathlib.Path({str(tmp_path)!r})
served = ServedProcess([sys.executable, "-c", {DAEMONS!r}], folder=folder)
served.start()
served.wait((folder / "pids").exists, timeout=30)
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


def test_who_ignores_the_request_to_end_is_killed(serve: Callable[..., ServedProcess]) -> None:
    served = serve(STUBBORN, grace=0.2)
    served.start()
    served.wait(lambda: "ignoring" in served.logs(), timeout=30)
    served.stop()
    assert served.exit_code == 128 + signal.SIGKILL


def test_who_obeys_has_time_to_end(serve: Callable[..., ServedProcess], tmp_path: Path) -> None:
    served = serve(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), print('ended well', flush=True), sys.exit(3)))\n"
        "print('here', flush=True)\n"
        "time.sleep(600)"
    )
    served.start()
    served.wait(lambda: "here" in served.logs(), timeout=30)
    served.stop()
    assert "ended well" in served.logs()
    assert served.exit_code == 3


def test_a_death_before_ready_is_told_with_the_last_words(serve: Callable[..., ServedProcess]) -> None:
    served = serve("import sys; print('no such model'); sys.exit(5)")
    served.start()
    with pytest.raises(ServerFailed, match="exit code 5 before it was ready") as failure:
        served.wait(lambda: False, timeout=30)
    assert failure.value.logs == "no such model"


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    served = ServedProcess([str(tmp_path / "nothing")], folder=tmp_path)
    served.start()
    with pytest.raises(ServerFailed, match="exit code 127") as failure:
        served.wait(lambda: False, timeout=30)
    assert "No such file" in failure.value.logs


def test_never_ready(serve: Callable[..., ServedProcess]) -> None:
    served = serve("import time; time.sleep(600)")
    served.start()
    with pytest.raises(ServerFailed, match=r"not ready after 0\.1 s"):
        served.wait(lambda: False, timeout=0.1)


def test_it_outlives_the_thread_that_started_it(serve: Callable[..., ServedProcess]) -> None:
    served = serve("import time; print('here', flush=True); time.sleep(600)")
    starter = threading.Thread(target=served.start)
    starter.start()
    starter.join()
    served.wait(lambda: "here" in served.logs(), timeout=30)
    time.sleep(0.2)
    assert served.is_alive()


def test_stopping_needs_no_start_and_can_be_repeated(serve: Callable[..., ServedProcess]) -> None:
    served = serve("import time; time.sleep(600)")
    served.stop()
    served.start()
    served.stop()
    served.stop()
    assert not served.is_alive()


def test_nobody_answers_at_a_free_port() -> None:
    assert not answers("127.0.0.1", free_port(), "/")
