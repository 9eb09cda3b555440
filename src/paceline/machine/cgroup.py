"""What the control groups of this process grant it, in both versions of control groups."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from paceline.core.probe import ROOT, read_int, read_table, read_text

_UNLIMITED = 2**60  # version 1 writes "no limit" as the largest whole page


def _folders(root: Path, controller: str) -> list[tuple[Path, bool]]:
    """Folders that bind this process, innermost first, each with whether it is of version 2.

    Inside a container the path may be one that only the host can see; then its missing folders are passed over
    and the mount's own root is what binds.
    """
    mount = root / "sys/fs/cgroup"
    found: list[tuple[Path, bool]] = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            bases, second = [mount, mount / "unified"], True
        elif controller in controllers.split(","):
            bases, second = [mount / controllers, mount / controller], False
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for base in bases:
            found += [(base / part, second) for part in (inner, *inner.parents) if (base / part).is_dir()]
    return list(dict.fromkeys(found))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores' worth of time per period, the tightest of all enclosing groups."""
    quotas: list[float] = []
    for folder, second in _folders(root, "cpu"):
        if second:
            words = (read_text(folder / "cpu.max") or "").split()
            if len(words) == 2 and words[0] != "max":
                quotas.append(int(words[0]) / int(words[1]))
        else:
            quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
            if quota and period and quota > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def cpu_stopped(root: Path = ROOT) -> float | None:
    """Seconds for which the innermost group was stopped because its quota was spent."""
    for folder, _ in _folders(root, "cpu"):
        table = read_table(folder / "cpu.stat")
        if "throttled_usec" in table:
            return int(table["throttled_usec"]) / 1e6
        if "throttled_time" in table:
            return int(table["throttled_time"]) / 1e9
    return None


def memory_limit(root: Path = ROOT) -> tuple[int, int | None] | None:
    """The tightest limit in bytes and how much of it is taken beyond reclaimable file pages; None for no limit."""
    tightest: tuple[int, int | None] | None = None
    for folder, second in _folders(root, "memory"):
        limit = read_int(folder / ("memory.max" if second else "memory.limit_in_bytes"))
        if limit is None or limit >= _UNLIMITED or (tightest and tightest[0] <= limit):
            continue
        used = read_int(folder / ("memory.current" if second else "memory.usage_in_bytes"))
        table = read_table(folder / "memory.stat")
        cached = int(table.get("inactive_file") or table.get("total_inactive_file") or 0)
        tightest = (limit, max(0, used - cached) if used is not None else None)
    return tightest


def memory_kills(root: Path = ROOT) -> int | None:
    """Processes of the innermost group that the kernel has killed for want of memory, its own or the machine's."""
    for folder, second in _folders(root, "memory"):
        count = read_table(folder / ("memory.events" if second else "memory.oom_control")).get("oom_kill", "")
        if count.isdecimal():
            return int(count)
    return None
