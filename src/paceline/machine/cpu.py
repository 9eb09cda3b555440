"""The processor, its caches and nodes, and host memory, from /proc and /sys of x86 and Arm machines."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Set
from pathlib import Path

from paceline.core.environment import Cache, Cpu, Memory, NumaNode
from paceline.core.errors import InputError
from paceline.core.files import shipped_rows
from paceline.core.probe import ROOT, attempt, cpu_info, parse_size, read_cpu_list, read_int, read_table, read_text
from paceline.devices.cpu import instruction_flags
from paceline.machine import container


def describe_cpu(root: Path = ROOT, affinity: Set[int] | None = None) -> Cpu:
    """The processor of the machine whose /proc and /sys lie below `root`."""
    usable = affinity if affinity is not None else attempt(lambda: os.sched_getaffinity(0))
    first = min(usable, default=0) if usable else 0
    info = cpu_info(root)
    system = root / "sys/devices/system/cpu"
    frequency = system / f"cpu{first}/cpufreq"
    online = read_text(system / "online")
    quota = attempt(lambda: container.cpu_quota(root))
    maximum = read_int(frequency / "cpuinfo_max_freq")
    return Cpu(
        model=attempt(lambda: _model(info)),
        architecture=platform.machine() or None,
        sockets=attempt(lambda: _distinct(system, "physical_package_id")),
        physical_cores=attempt(lambda: _distinct(system, "core_cpus_list", "thread_siblings_list")),
        logical_cores=attempt(lambda: len(read_cpu_list(online))) if online else os.cpu_count(),
        affinity=len(usable) if usable else None,
        quota=quota,
        usable=min(float(len(usable)), quota or float(len(usable))) if usable else quota,
        frequency_mhz=frequency_mhz(root, usable or ()),
        max_frequency_mhz=maximum / 1000 if maximum else None,
        governor=read_text(frequency / "scaling_governor"),
        boost=boost(root),
        flags=sorted(instruction_flags(root)),
        caches=attempt(lambda: _caches(system / f"cpu{first}/cache")) or [],
        numa_nodes=attempt(lambda: _nodes(root / "sys/devices/system/node")) or [],
    )


def describe_memory(root: Path = ROOT) -> Memory:
    """Host memory, and what the control group leaves of it."""
    table = read_table(root / "proc/meminfo")

    def field(name: str) -> int | None:
        return attempt(lambda: parse_size(table[name]))

    total, swap, free = field("MemTotal"), field("SwapTotal"), field("SwapFree")
    limit = attempt(lambda: container.memory_limit(root))
    if limit and total and limit[0] >= total:
        limit = None
    return Memory(
        total=total,
        available=field("MemAvailable"),
        swap_total=swap,
        swap_used=swap - free if swap is not None and free is not None else None,
        limit=limit[0] if limit else None,
        limit_used=limit[1] if limit else None,
    )


def frequency_mhz(root: Path, cpus: Set[int] | tuple[int, ...]) -> float | None:
    """Mean clock of the first few usable cores: asking each of hundreds would itself take their time."""
    chosen = sorted(cpus)[:4]
    clocks = [
        value / 1000
        for cpu in chosen
        if (value := read_int(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"))
    ]
    if not clocks:
        text = read_text(root / "proc/cpuinfo", limit=16384) or ""
        clocks = [float(clock) for clock in re.findall(r"^cpu MHz\s*:\s*(\d+\.?\d*)\n", text, re.MULTILINE)][:4]
    return round(sum(clocks) / len(clocks), 1) if clocks else None


def boost(root: Path = ROOT) -> bool | None:
    """Whether cores may clock above their base frequency."""
    system = root / "sys/devices/system/cpu"
    no_turbo = read_int(system / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == 0
    value = read_int(system / "cpufreq/boost")
    return None if value is None else value == 1


def _model(info: dict[str, str]) -> str | None:
    if name := info.get("model name"):
        return " ".join(name.split())
    if "CPU implementer" not in info or "CPU part" not in info:
        return None
    implementer, part = int(info["CPU implementer"], 16), int(info["CPU part"], 16)
    for row in shipped_rows("paceline.machine", "arm_parts.csv"):
        if (int(row["implementer"], 16), int(row["part"], 16)) == (implementer, part):
            return row["name"]
    return f"Arm implementer {implementer:#04x} part {part:#05x}"


def _distinct(system: Path, *names: str) -> int | None:
    """How many different values the cores' topology files of this name hold; the first name that exists counts."""
    for name in names:
        values = {read_text(path) for path in system.glob(f"cpu[0-9]*/topology/{name}")} - {None, "", "-1"}
        if values:
            return len(values)
    return None


def _caches(folder: Path) -> list[Cache]:
    caches = []
    for index in sorted(folder.glob("index[0-9]*")):
        level, size, shared = read_int(index / "level"), read_text(index / "size"), read_text(index / "shared_cpu_list")
        if level is not None:
            caches.append(
                Cache(
                    level=level,
                    kind=read_text(index / "type") or "Unified",
                    size=parse_size(size) if size else None,
                    shared_by=len(read_cpu_list(shared)) if shared else None,
                )
            )
    return caches


def _nodes(folder: Path) -> list[NumaNode]:
    nodes = []
    for path in folder.glob("node[0-9]*"):
        index = int(path.name.removeprefix("node"))
        total = read_table(path / "meminfo").get(f"Node {index} MemTotal")
        nodes.append(
            NumaNode(index=index, cpus=read_text(path / "cpulist") or None, memory=parse_size(total) if total else None)
        )
    return sorted(nodes, key=lambda node: node.index)


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
    firsts = [cpu for cpu in sorted(cpus) if cpu - 1 not in cpus]
    lasts = [cpu for cpu in sorted(cpus) if cpu + 1 not in cpus]
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in zip(firsts, lasts, strict=True))
