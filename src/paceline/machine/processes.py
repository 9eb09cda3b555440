"""CPU time of this process with all that it started, and of others by their number."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.core.probe import ROOT, read_text

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def cpu_seconds(pid: int, root: Path = ROOT) -> float | None:
    """Time a process has used, together with its children that have ended; None for one that is gone."""
    fields = _stat(pid, root)
    return sum(int(field) for field in fields[11:15]) / _TICK if fields else None


def descendants(pid: int | None = None, root: Path = ROOT) -> list[int]:
    """Every living process that this one started, directly or not."""
    if pid is None:
        if not _has_children():
            return []
        pid = os.getpid()
    children = _children_by_parent(root)
    found, waiting = [], [pid]
    while waiting:
        born = children.get(waiting.pop(), [])
        found += born
        waiting += born
    return found


def _has_children() -> bool:
    """Asks the kernel without reaping anything, since a look at every process of a large machine takes long."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except OSError:
        return True
    return True


def _children_by_parent(root: Path) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    with os.scandir(root / "proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    for pid in pids:
        if fields := _stat(pid, root):
            children.setdefault(int(fields[1]), []).append(pid)
    return children


def _stat(pid: int, root: Path) -> list[str]:
    """The fields after the process's name, which may itself hold spaces and brackets."""
    text = read_text(root / f"proc/{pid}/stat")
    return text.rpartition(")")[2].split() if text else []
