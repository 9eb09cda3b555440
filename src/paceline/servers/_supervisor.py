"""Stands between Paceline and a server: it adopts what the server starts, and ends all of it when Paceline dies.

It is run as a file, without site-packages, so that it starts quickly: it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK = 1.0  # seconds between checks of the parent, should its death not have been signalled


def main(parent: int, grace: float, command: list[str]) -> int:
    wake, note = os.pipe()
    for end in (wake, note):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(note)
    received: list[int] = []  # signals to end
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: received.append(signum))
    for number in (signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # The kernel also signals the end of the thread that started this process; only a new parent means death.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != parent:
        return 70
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127
    code: int | None = None
    deadline = float("inf")
    while code is None and time.monotonic() < deadline:
        select.select([wake], [], [], _LOOK if deadline == float("inf") else 0.05)
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        code = _reap(child.pid)
        if deadline == float("inf") and (received or os.getppid() != parent):
            deadline = time.monotonic() + grace
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
    while left := _descendants(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended = _reap(child.pid)
        code = ended if code is None else code
        time.sleep(0.005)
    child.returncode = code  # reaped here, not by subprocess
    return 0 if code is None else code if code >= 0 else 128 - code


def _reap(main_pid: int) -> int | None:
    """Wait for every child that has ended; the exit code if the command itself was among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == main_pid:
            code = os.waitstatus_to_exitcode(status)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    below = list(children.get(root, []))
    for pid in below:  # the list grows while it is read
        below += children.get(pid, [])
    return below


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
