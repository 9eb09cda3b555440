"""Peak host memory of this process during a region."""

from __future__ import annotations

import resource
from pathlib import Path

PROC = Path("/proc/self")


class HostPeak:
    """The largest resident memory of this process since `start()`; what it started is not counted.

    The kernel's high-water mark is set back at the start. Where that is not permitted, the mark of the process's
    whole life is read; `exact` says whether the peak is known to lie in the region.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._was_reset = False
        self._life_before = 0
        self.exact = False

    def start(self) -> None:
        """Begin the region; may be called again for another."""
        self._life_before = _life_peak()
        self._was_reset = self._reset()
        self.exact = self._was_reset

    def read(self) -> int:
        """Peak in bytes since the start."""
        mark = self._field("VmHWM")
        if self._was_reset and mark is not None:
            return mark
        peak = _life_peak()
        self.exact = peak > self._life_before  # a mark that rose did so in the region
        return peak

    def _reset(self) -> bool:
        before = self._field("VmHWM")
        try:
            (self._proc / "clear_refs").write_text("5")
        except OSError:
            return False
        after = self._field("VmHWM")
        return before is not None and after is not None and after <= before

    def _field(self, name: str) -> int | None:
        try:
            text = (self._proc / "status").read_text()
        except OSError:
            return None
        for line in text.splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        return None


def _life_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
