"""Tells whether the process that runs a run is still there."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from paceline.core.run import RunStatus

# The start time is derived from the wall clock, which may be corrected while the process runs.
CLOCK_TOLERANCE = 5.0


def this_runner() -> dict[str, Any]:
    """What identifies this process on this host, also after its number was given to another."""
    import psutil

    return {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}


def status_of(status: RunStatus, runner: Mapping[str, Any]) -> RunStatus:
    """The status of a run; one whose runner is gone does not run any more."""
    return "interrupted" if status == "running" and not is_alive(runner) else status


def is_alive(runner: Mapping[str, Any]) -> bool:
    """Whether the runner's process exists; one on another host is taken to be alive, as nobody here can know."""
    if runner["host"] != socket.gethostname():
        return True
    import psutil  # takes as long as reading a small run, and most runs have ended

    try:
        process = psutil.Process(runner["pid"])
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - float(runner["started"])) < CLOCK_TOLERANCE
    except psutil.NoSuchProcess:
        return False
