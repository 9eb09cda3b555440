"""Stands between Paceline and a command: it adopts what the command starts, and ends all of it when Paceline dies.

It is run as a file, without site-packages, so that it starts quickly: it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK = 1.0  # seconds between checks of the parent, should its death not have been signalled
_MOST_OUTPUT = 64 << 20  # bytes of a file that the command prints into; what is beyond the head is then dropped
_HEAD = 1 << 20


def supervised(command: Sequence[str], grace: float) -> list[str]:
    """The command, under a supervisor that ends it, with so many seconds to do so itself, when this process ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(grace), *command]


def become_subreaper(is_one: bool = True) -> None:
    """Have the kernel hand orphans among the descendants of this process to it, instead of to init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(is_one))


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
    become_subreaper()
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
        _cap_output()
        code = _reap(child.pid)
        if deadline == float("inf") and (received or os.getppid() != parent):
            deadline = time.monotonic() + grace
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
    while left := descendants(os.getpid()):
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


def descendants(root: int, proc: Path = PROC) -> list[int]:
    """The children of a process, theirs, and so on; parents before their children."""
    children = _children(proc)
    below = list(children.get(root, []))
    for pid in below:  # the list grows while it is read
        below += children.get(pid, [])
    return below


def children_of(parent: int) -> list[int]:
    """The children of a process, its orphaned descendants included if it is a subreaper."""
    return _children(PROC).get(parent, [])


def _children(proc: Path) -> dict[int, list[int]]:
    """The children of every process; the kernel's own list is missing from many builds."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir(proc)):  # noqa: PTH208 -- with paths it takes twice as long
        with contextlib.suppress(OSError), open(f"{proc}/{name}/stat", "rb") as file:  # noqa: PTH123
            fields = file.read().rpartition(b")")[2].split(None, 2)
            children.setdefault(int(fields[1]), []).append(int(name))
    return children


def _cap_output() -> None:
    """Keep a command that prints for ever from filling the disk; its file was opened to append."""
    status = os.fstat(1)
    if stat.S_ISREG(status.st_mode) and status.st_size > _MOST_OUTPUT:
        os.ftruncate(1, _HEAD)
        os.write(1, f"\n[{status.st_size - _HEAD} bytes of output were dropped here]\n".encode())


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
