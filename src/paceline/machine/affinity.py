"""Which CPUs a run is pinned to: what a user writes, checked against what this machine has."""

from __future__ import annotations

import os
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

from paceline.core.errors import InputError
from paceline.core.probe import ROOT, attempt, read_cpu_list, read_text

FLAG = "--affinity"
MANY_CORES = 4  # from as many on, the first core is left to interrupts and to the rest of the system


def read_affinity(text: str, root: Path = ROOT, allowed: Collection[int] | None = None) -> set[int]:
    """The CPUs that `0-3,8`, `auto` or `isolated` means here; what this process may not use is refused."""
    isolated = isolated_cpus(root)
    usable = set(os.sched_getaffinity(0) if allowed is None else allowed) | isolated
    if text == "auto":
        return isolated or one_thread_of_each_core(usable, root)
    if text == "isolated":
        if not isolated:
            message = (
                f"{FLAG} isolated: no CPU of this machine is isolated; boot with isolcpus=2-7 nohz_full=2-7, "
                f"or name CPUs, such as {FLAG} {show_cpu_list(usable)}"
            )
            raise InputError("no-isolated-cpus", message, key=FLAG, value=text)
        return isolated
    cpus = attempt(lambda: read_cpu_list(text))
    if not cpus:
        message = f"{FLAG} {text}: not a list of CPUs; write 0-3, 0,2, auto or isolated"
        raise InputError("invalid-affinity", message, key=FLAG, value=text)
    if missing := cpus - usable:
        message = (
            f"{FLAG} {text}: CPU {show_cpu_list(missing)} does not exist here, or this process may not use it; "
            f"choose among {show_cpu_list(usable)}"
        )
        raise InputError("no-such-cpu", message, key=FLAG, value=text)
    return cpus


def isolated_cpus(root: Path = ROOT) -> set[int]:
    """The CPUs that the kernel schedules nothing on by itself."""
    return cpus_in("isolated", root)


def cpus_in(name: str, root: Path = ROOT) -> set[int]:
    """The CPUs that the kernel lists under this name: online, isolated, nohz_full."""
    return attempt(lambda: read_cpu_list(read_text(root / "sys/devices/system/cpu" / name) or "")) or set()


def one_thread_of_each_core(cpus: Collection[int], root: Path = ROOT) -> set[int]:
    """The first hardware thread of each core; of many cores not the first, where most interrupts are handled."""
    first_threads = {min(siblings(cpu, root) & set(cpus), default=cpu) for cpu in cpus}
    return first_threads - {min(first_threads)} if len(first_threads) >= MANY_CORES else first_threads


def siblings(cpu: int, root: Path = ROOT) -> set[int]:
    """The hardware threads of the core of this one, itself among them."""
    text = read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return (attempt(lambda: read_cpu_list(text)) if text else None) or {cpu}


def show_cpu_list(cpus: Collection[int]) -> str:
    """As the kernel writes it: 0-3,8."""
    ordered = sorted(cpus)
    starts = [ordered[0], *(b for a, b in pairwise(ordered) if b != a + 1)]
    ends = [*(a for a, b in pairwise(ordered) if b != a + 1), ordered[-1]]
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in zip(starts, ends, strict=True))
