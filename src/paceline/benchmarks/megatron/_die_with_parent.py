"""Becomes the script that its arguments name, as a process that does not outlive the launcher that started it.

torchrun gives every rank a session of its own, so that whoever kills a case with its process group would leave the
ranks running. This file is run by the interpreter of the checkout: it imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """The kernel keeps the signal to be sent at the parent's death when a process becomes another program."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the launcher was gone before the kernel was asked
        raise SystemExit(70)
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])


if __name__ == "__main__":
    main()
