"""Whether the kernel has killed for want of memory: for sure where it counts that by control group, else by guess."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.core.probe import ROOT, read_table
from paceline.machine import cgroup


@dataclass(frozen=True)
class MemoryKills:
    """How often the kernel has killed for want of memory; it counts a kill before it sends the signal."""

    group: int | None  # in the control group of this process and its children; None where that is not told
    machine: int  # anywhere on this machine; 0 where that is not told

    def killer_since(self, before: MemoryKills) -> str:
        """Who has killed a process here that was ended by SIGKILL, for a message; empty if it was not for memory."""
        if self.group is not None and before.group is not None:
            return "the kernel" if self.group > before.group else ""
        return "probably the kernel" if self.machine > before.machine else ""


def kills_for_memory(root: Path = ROOT) -> MemoryKills:
    """The counts as they are now."""
    machine = read_table(root / "proc/vmstat").get("oom_kill", "")
    return MemoryKills(cgroup.memory_kills(root), int(machine) if machine.isdecimal() else 0)
