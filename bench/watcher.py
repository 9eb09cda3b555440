"""What the process costs that watches a machine while cases run on it."""

from __future__ import annotations

import time

from bench.ratio import Ratio
from paceline.devices import counts
from paceline.runner.fork_client import WarmServer

SECONDS = 30.0
MOST = 0.005  # of one core


def watcher_ratios() -> list[Ratio]:
    """CPU time of watching this machine and all of its devices, start included, against the time that passed."""
    targets = [f"{kind}:*" for kind in counts()] or ["cpu"]
    with WarmServer() as server:
        server.warm(("paceline.core.benchmark",), time.monotonic() + SECONDS)
        server.watch(targets)
        time.sleep(SECONDS)
        seen = server.watched()
    if seen is None:
        raise LookupError("the watching process did not answer")
    value = seen.cpu_seconds / seen.times[-1]
    made_of = (
        f"{seen.cpu_seconds * 1e3:.3g} ms in {seen.times[-1]:.3g} s: {len(seen.times)} looks, {len(seen.series)} series"
    )
    return [Ratio("watcher / one core", value, f"<= {MOST}", value <= MOST, made_of)]
