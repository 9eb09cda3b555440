"""The console that reports are shown on."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console

WIDTH = 100
LEAST = 80  # a narrower terminal breaks long lines by itself: ugly, but a table loses no column and no half of a number


def open_console(file: TextIO | None = None) -> Console:
    """A console that fits its terminal; a pipe gets a fixed width, so that no table is squeezed."""
    file = file or sys.stdout
    console = Console(file=file, highlight=False, width=None if file.isatty() else WIDTH)
    if console.width < LEAST:
        console.width = LEAST
    return console
