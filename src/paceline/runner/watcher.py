"""The process that watches the machine while cases run: forked by the warm server, it takes orders from the runner."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.core.die_with_parent import die_with_parent
from paceline.core.watch import Readings
from paceline.machine.conditions import summarize_looks, watcher
from paceline.runner.channel import Channel

NAME = "paceline-watch"
INTERVAL_SECONDS = 0.25  # between two looks, at least
COST = 0.003  # of a core that the looks may take: the more there is to see, the fewer they are
MANY_LOOKS = 1000  # the longer a case takes, the rarer they are, so that those of a day are not many more
LOWEST_PRIORITY = 19


def serve(channel: Channel) -> None:
    """Watch from each order to the next one; until the runner is gone."""
    die_with_parent()
    with suppress(OSError):
        Path("/proc/self/comm").write_text(NAME)
    cpus = os.sched_getaffinity(0)
    with suppress(OSError):  # the cores of the case are its own, where there are others
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    seen: dict[str, Any] = {}
    while (received := channel.receive()) is not None:
        if "watch" in received[0]:
            seen = _watch(channel, received[0]["watch"], cpus)
        else:
            channel.send(seen)


def _watch(channel: Channel, targets: list[str], cpus: Set[int]) -> dict[str, Any]:
    """Until the next order comes."""
    began, spent = time.monotonic(), time.process_time()
    read, looks = watcher(targets, cpus), list[tuple[float, Readings]]()
    ready = time.process_time()
    is_over = False
    while not is_over:
        elapsed = time.monotonic() - began
        looks.append((elapsed, read()))
        cost = (time.process_time() - ready) / len(looks)
        interval = max(INTERVAL_SECONDS, cost / COST, elapsed / MANY_LOOKS)
        is_over = bool(select.select([channel], [], [], interval)[0])
    looks.append((time.monotonic() - began, read()))
    seen = summarize_looks(looks)
    return seen.model_copy(update={"cpu_seconds": time.process_time() - spent}).model_dump(mode="json")
