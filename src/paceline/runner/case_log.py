"""What a rank prints: a file whose head and tail are kept, however much is printed, and for how long."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.core.quantity import show_size

MOST = 16 << 20  # bytes of the file; the rank appends, so that what is cut off is not written again
HEAD = TAIL = 64 << 10  # bytes that are kept of the beginning and the end when it is cut
SHOWN_HEAD, SHOWN_TAIL = 500, 2000


@dataclass
class CaseLog:
    """The file of one rank."""

    path: Path
    dropped: int = 0  # bytes
    _tail: bytes = b""  # of what was cut off last

    def cut(self) -> bool:
        """Cut the file if it has become too long; whether that was so."""
        with suppress(OSError):
            if self.path.stat().st_size <= MOST:
                return False
            with self.path.open("r+b") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(size - TAIL)
                tail = file.read(TAIL)
                file.truncate(HEAD)
            self.dropped += size - HEAD - TAIL + len(self._tail)
            self._tail = tail
            return True
        return False

    def excerpt(self) -> str:
        """The last lines, and where something was dropped also the first."""
        head, end = (text.decode(errors="replace").strip() for text in self._ends())
        if not self.dropped:
            return end
        return f"{head}\n[... {show_size(self.dropped)} of output were dropped ...]\n{end}"

    def _ends(self) -> tuple[bytes, bytes]:
        with suppress(OSError), self.path.open("rb") as file:
            head = file.read(SHOWN_HEAD)
            begin = HEAD if self.dropped else 0
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - SHOWN_TAIL))
            return head, (self._tail + file.read())[-SHOWN_TAIL:]
        return b"", b""
