"""A control group for the warm server and its cases: it bounds what they take, and ends them as one."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.probe import ROOT, read_int, read_table, read_text
from paceline.core.quantity import show_size
from paceline.core.supervisor import descendants
from paceline.machine import container
from paceline.runner.rank import HOST_PART

_CONTROLLERS = ("memory", "pids")
_PREFIX = "paceline-"
_RUNNER = "paceline-runner"  # where the runner's own processes go if their group must be empty
_PROCESSES = "cgroup.procs"
# Processes and threads: far above what cases need, far below what stops a machine.
_LEAST_PROCESSES, _PROCESSES_PER_CPU = 4096, 256
_END_SECONDS = 2.0


@dataclass(frozen=True)
class _Folder:
    path: Path
    second: bool  # whether it is of version 2

    @property
    def processes(self) -> set[int]:
        return {int(word) for word in (read_text(self.path / _PROCESSES) or "").split()}

    def write(self, name: str, value: object) -> bool:
        """Whether the kernel took it; a file of a controller that is not enabled here is missing."""
        try:
            (self.path / name).write_text(str(value))
        except OSError:
            return False
        return True


@dataclass
class ControlGroup:
    """The folders of one group, one in each hierarchy; without folders where this user may not make any."""

    folders: list[_Folder] = field(default_factory=list)
    bounds_memory: bool = False  # whether the kernel keeps the last ceiling

    @classmethod
    def make(cls, root: Path = ROOT) -> ControlGroup:
        """A new one below that of this process."""
        name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        group = cls()
        for base in _bases(root):
            _remove_stale(base.path, root)
            if base.second:
                _enable_controllers(base, root)
            with suppress(OSError):
                (base.path / name).mkdir()
                group.folders.append(_Folder(base.path / name, base.second))
        most = max(_LEAST_PROCESSES, _PROCESSES_PER_CPU * (os.cpu_count() or 1))
        for folder in group.folders:
            folder.write("pids.max", most)
            # A case that swaps makes the machine suffer before it reaches its ceiling.
            folder.write(*(("memory.swap.max", 0) if folder.second else ("memory.swappiness", 0)))
        return group

    @property
    def entries(self) -> list[Path]:
        """The files into which a process that joins writes its id."""
        return [folder.path / _PROCESSES for folder in self.folders]

    def bound_memory(self, ceiling: int) -> None:
        """Let its processes take so many bytes more than they have now, together."""
        self.bounds_memory = False
        for folder in self.folders:
            used = container.memory_used(folder.path, second=folder.second)
            if used is not None:
                name = "memory.max" if folder.second else "memory.limit_in_bytes"
                self.bounds_memory |= folder.write(name, used + ceiling)

    def memory_kills(self) -> int | None:
        """Of its processes, how many the kernel has killed for want of memory; None where it is not counted."""
        counts = [container.memory_kills_in(folder.path, second=folder.second) for folder in self.folders]
        return next((count for count in counts if count is not None), None)

    def times_at_ceiling(self) -> int:
        """How often its processes wanted more than the ceiling."""
        return sum(
            int(read_table(folder.path / "memory.events").get("max", 0))
            if folder.second
            else read_int(folder.path / "memory.failcnt") or 0
            for folder in self.folders
        )

    def end(self) -> None:
        """Kill whatever is in it, and remove it."""
        deadline = time.monotonic() + _END_SECONDS
        for folder in self.folders:
            if folder.second and folder.processes:
                folder.write("cgroup.kill", 1)
            while folder.processes and time.monotonic() < deadline:
                for pid in folder.processes:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.002)
            while folder.path.exists() and time.monotonic() < deadline:
                with suppress(OSError):  # it is busy until the kernel has let go of the last process
                    folder.path.rmdir()
                    break
                time.sleep(0.005)
        self.folders = []


def _bases(root: Path) -> Iterator[_Folder]:
    """The groups of this process that bound memory and processes, each once."""
    seen = set()
    for controller in _CONTROLLERS:
        folders = container.cgroup_folders(root, controller)
        for path, second in sorted(folders, key=lambda one: one[1])[:1]:  # version 1 where that has the controller
            base = path.parent if path.name == _RUNNER else path
            if base not in seen:
                seen.add(base)
                yield _Folder(base, second)


def _enable_controllers(base: _Folder, root: Path) -> None:
    """In version 2 a group hands out controllers only while no process is in itself; ours may go one level down."""
    offered = set((read_text(base.path / "cgroup.controllers") or "").split())
    enabled = set((read_text(base.path / "cgroup.subtree_control") or "").split())
    wanted = " ".join(f"+{name}" for name in _CONTROLLERS if name in offered - enabled)
    if not wanted or base.write("cgroup.subtree_control", wanted):
        return
    ours = {os.getpid(), *descendants(os.getpid(), proc=root / "proc")}
    if not base.processes <= ours:  # others would have to be moved, too
        return
    inner = _Folder(base.path / _RUNNER, second=True)
    with suppress(OSError):
        inner.path.mkdir(exist_ok=True)
        for pid in base.processes:
            inner.write(_PROCESSES, pid)
        base.write("cgroup.subtree_control", wanted)


def _remove_stale(base: Path, root: Path) -> None:
    """Remove the empty groups of runners that were killed."""
    with suppress(OSError):
        for path in base.glob(f"{_PREFIX}*-*"):
            owner = path.name.removeprefix(_PREFIX).partition("-")[0]
            if owner.isdecimal() and not (root / "proc" / owner).exists():
                with suppress(OSError):  # somebody is still in it
                    path.rmdir()


LOOK_SECONDS = 0.2
COUNT_SECONDS = 5.0  # between two counts of what the processes take
NEAR = 0.8  # of the ceiling: from here on they are counted at every look
_PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """Whether a case takes more than its ceiling."""

    def __init__(self, group: ControlGroup, limit: int | None, share: float = 1.0, *, is_local: bool = True) -> None:
        """Begin before the case starts; `share` is the part of its ranks on this machine that this runner starts.

        Only whoever is on this machine may set a limit above what is free.
        """
        self._group = group
        free = container.free_memory()
        ceilings: list[float] = [] if limit is None else [limit]
        if free is not None and (limit is None or not is_local):
            ceilings.append(HOST_PART * free)
        self.ceiling = int(share * min(ceilings)) if ceilings else None
        if self.ceiling is not None:
            group.bound_memory(self.ceiling)
        self._times_at_ceiling = group.times_at_ceiling()
        self._available = container.available_memory()
        self._looked_at = self._counted_at = time.monotonic()
        self._is_exceeded = False

    def is_exceeded(self, now: float, server: int | None) -> bool:
        """Whether all that the warm server forked takes too much; always False where the kernel sees to it."""
        if self.ceiling is None or server is None or self._group.bounds_memory or self._is_exceeded:
            return False
        if now < self._looked_at + LOOK_SECONDS:
            return False
        self._looked_at = now
        # To count takes milliseconds; what the machine has left shows in microseconds whether it is time to.
        available = container.available_memory()
        is_near = self._available is None or available is None or self._available - available > NEAR * self.ceiling
        if not is_near and now < self._counted_at + COUNT_SECONDS:
            return False
        self._counted_at = now
        self._is_exceeded = taken(server) > self.ceiling
        return self._is_exceeded

    def reason(self) -> str:
        """Why a case was ended for its memory."""
        if self.ceiling is None or not (self._is_exceeded or self._group.times_at_ceiling() > self._times_at_ceiling):
            return "the host's memory ran out; use a smaller batch"
        remedy = "use a smaller batch or size, or raise --memory-limit"
        return f"its processes wanted more host memory than its ceiling of {show_size(self.ceiling)}; {remedy}"


def taken(server: int) -> int:
    """Bytes of their own that all descendants of a process have in memory."""
    total = 0
    for pid in descendants(server):
        with suppress(OSError, ValueError, IndexError):
            _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
            total += (int(resident) - int(shared)) * _PAGE
    return total
