"""Where a rank is when the time of its case is over: asked by a signal, it writes down its stack.

Of ranks that train together all are late when one of them hangs. Those that wait inside a collective are not the cause.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ASK = signal.SIGUSR2
ANSWER_SECONDS = 0.5
WAITING = "waiting for other ranks"

_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)')
_STATES = {"T": "stopped", "t": "held by a debugger", "D": "inside the kernel", "Z": "ended"}


@dataclass(frozen=True)
class Where:
    """What a rank was doing."""

    stack: str  # innermost call first; empty if it did not answer
    state: str  # of its process, as the kernel has it

    @property
    def is_waiting(self) -> bool:
        """Whether it is inside a collective, where every rank waits for the others."""
        innermost = _FRAME.search(self.stack)
        return innermost is not None and "torch/distributed/" in innermost["file"]

    def __str__(self) -> str:
        innermost = _FRAME.search(self.stack)
        if innermost is None:
            return "the process does not react" + (f" ({self.state})" if self.state else "")
        call = f"{innermost['name']} ({Path(innermost['file']).name}:{innermost['line']})"
        return f"{WAITING} in {call}" if self.is_waiting else f"it was in {call}"


def answer(log: Path) -> None:
    """Let this process write its stack next to its log whenever it is asked; also within a call that never returns."""
    file = os.open(log.with_suffix(".stack"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(ASK, file=file, all_threads=False)


def ask(logs: Mapping[int, Path]) -> dict[int, Where]:
    """Where the processes of these ids are; not for long, as one that is stopped or in the kernel never answers."""
    for pid in logs:
        with suppress(ProcessLookupError):
            os.kill(pid, ASK)
    deadline = time.monotonic() + ANSWER_SECONDS
    while not all(_written(log) for log in logs.values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    positions = {}
    for pid, log in logs.items():
        letter = ""
        with suppress(OSError):
            letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        positions[pid] = Where(_written(log), _STATES.get(letter, ""))
    return positions


def _written(log: Path) -> str:
    with suppress(OSError):
        return log.with_suffix(".stack").read_text(errors="replace").strip()
    return ""
