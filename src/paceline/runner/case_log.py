"""What a rank prints: a file whose head and tail are kept, however much is printed, and for how long."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.core.quantity import show_size

MOST = 16 << 20  # bytes of the file; the rank appends, so that what is cut off is not written again
HEAD = TAIL = 64 << 10  # bytes that are kept of the beginning and the end when it is cut
SHOWN_HEAD, SHOWN_TAIL = 500, 2000
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # fallocate(2)


@dataclass
class CaseLog:
    """The file of one rank."""

    path: Path
    dropped: int = 0  # bytes
    _hole: int = HEAD  # where what was dropped in place ends

    def cut(self) -> bool:
        """Cut the file if it has become too long; whether that was so."""
        with suppress(OSError), self.path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size - self._hole <= MOST - HEAD:
                return False
            if _give_back(file.fileno(), self._hole, size - TAIL):
                self.dropped += size - TAIL - self._hole
                self._hole = size - TAIL
                return True
            file.seek(size - TAIL)
            tail = file.read()
            file.truncate(HEAD)  # what is written at this moment is lost
            with self.path.open("ab") as again:
                again.write(tail)
            self.dropped += size - HEAD - TAIL
            return True
        return False

    def excerpt(self) -> str:
        """The last lines, and where something was dropped also the first."""
        self.cut()  # it may have been written, and its rank have ended, since the last look
        head, end = (text.decode(errors="replace").strip() for text in self._ends())
        if not self.dropped:
            return end
        return f"{head}\n[... {show_size(self.dropped)} of output were dropped ...]\n{end}"

    def _ends(self) -> tuple[bytes, bytes]:
        with suppress(OSError), self.path.open("rb") as file:
            head = file.read(SHOWN_HEAD)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._hole if self.dropped else 0, size - SHOWN_TAIL))
            return head, file.read()[-SHOWN_TAIL:]
        return b"", b""


def _give_back(descriptor: int, begin: int, end: int) -> bool:
    """Free the disk space of a part of a file; the rest stays where it is, so that nobody who appends is disturbed."""
    with suppress(AttributeError):  # Linux only, and not every file system can
        number = ctypes.c_longlong
        return not ctypes.CDLL(None).fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, number(begin), number(end - begin))
    return False
