"""wrk, the fastest of the load generators that only count, in a closed loop from one core."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from paceline.load.request import Endpoint, Prepared

PROGRAM = "wrk"
_COUNT = re.compile(r"(\d+) requests in ")
_TROUBLE = re.compile(r"(Non-2xx or 3xx responses|Socket errors).*")


@dataclass(frozen=True)
class Pace:
    """What a load generator managed on one core."""

    per_cpu_second: float
    per_second: float


def program() -> str | None:
    """Where wrk is; None if it is not installed."""
    return shutil.which(PROGRAM)


def pace(endpoint: Endpoint, request: Prepared, users: int, seconds: float, cpu: int) -> Pace:
    """One run of wrk; it sends the same request, which it prepares once."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "request.lua"
        script.write_text(
            f'wrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\n'
            f"wrk.body = [==[{request.body.decode()}]==]\n"
        )
        url = f"http://{endpoint.host}:{endpoint.port}{endpoint.path}"
        command = [PROGRAM, "-t1", f"-c{users}", f"-d{seconds:.0f}s", "-s", str(script), url]
        pinned = ["taskset", "-c", str(cpu), *command]
        before = os.times()
        done = subprocess.run(pinned, check=True, capture_output=True, text=True)
        after = os.times()
    count = _COUNT.search(done.stdout)
    if count is None or _TROUBLE.search(done.stdout):
        raise RuntimeError(f"wrk: {done.stdout}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Pace(int(count[1]) / used, int(count[1]) / seconds)
