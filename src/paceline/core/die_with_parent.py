"""A process that does not outlive the one that started it.

Run as a file, this becomes the script that its arguments name: torchrun gives every rank a session of its own, so that
whoever kills a case with its process group would leave the ranks running. The interpreter may then be one without
Paceline: only the standard library is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent (`parent`, where its id is at hand) ends."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1 if parent is None else os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(70)


if __name__ == "__main__":
    die_with_parent()
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])  # the kernel keeps the signal across this
