"""The steps of an installation: their output, their failing, and that nothing of them lives on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paceline.core.installing import InstallFailed, run_step
from support.scripted_ranks import PATIENCE_SECONDS

# As pip runs cmake, and that a compiler: a child, and one in a session of its own.
COMPILING = "echo $$ > {0}/pid1; sleep 600 & echo $! > {0}/pid2; setsid sh -c 'echo $$ > {0}/pid3; exec sleep 600'"
INSTALLING = (
    "import sys; from pathlib import Path; from paceline.core.installing import run_step; "
    "from paceline.core.interrupt import catch_interrupts; sys.argv[2] == 'yes' and catch_interrupts(); "
    "run_step(['sh', '-c', sys.argv[1]], Path('install.log'), 'it failed')"
)


def test_a_step_that_fails_shows_the_end_of_its_output(tmp_path: Path) -> None:
    log = tmp_path / "install.log"
    run_step(["sh", "-c", "echo good $PWD $X; exit 0"], log, "it failed", folder=tmp_path, variables={"X": "7"})
    with pytest.raises(InstallFailed, match=r"it failed \(exit code 3\)(.|\n)*bad"):
        run_step(["sh", "-c", "echo bad; exit 3"], log, "it failed")
    with pytest.raises(InstallFailed, match=r"exit code 127(.|\n)*no-such-program: No such file"):
        run_step(["no-such-program"], log, "it failed")
    assert f"good {tmp_path} 7\n" in log.read_text()


def _hear_signals() -> None:
    """What starts the tests may ignore them, as shells and nohup do for what runs in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("number", "catches"),
    [
        (signal.SIGTERM, True),
        (signal.SIGINT, True),
        (signal.SIGHUP, True),
        (signal.SIGTERM, False),
        (signal.SIGKILL, False),
    ],
)
def test_what_a_step_started_ends_with_the_process_that_installs(tmp_path: Path, number: int, catches: bool) -> None:
    command = [sys.executable, "-c", INSTALLING, COMPILING.format(tmp_path), "yes" if catches else "no"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_hear_signals,
    ) as installing:
        deadline = time.monotonic() + PATIENCE_SECONDS
        paths = [tmp_path / f"pid{place}" for place in (1, 2, 3)]
        while not all(path.exists() and path.read_text().endswith("\n") for path in paths):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pids = [int(path.read_text()) for path in paths]
        os.kill(installing.pid, number)
    while any(map(_is_running, pids)) and not catches and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [pid for pid in pids if _is_running(pid)] == []


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
