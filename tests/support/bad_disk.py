"""Builds and steers `bad_disk.c`, which makes files and sockets of a process fail."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from paceline.measure import native

HERE = Path(__file__).parent
LONGEST_SECONDS = 1700.0  # of a whole sweep, on a slow machine that does something else as well


class Fault(IntEnum):
    """How a call fails; a torn one does half of its work, or all of it, and says that it failed."""

    NO_SPACE = 0
    IO_ERROR = 1
    INTERRUPTED = 2
    TORN = 3


class Call(IntEnum):
    """What can fail, and what is recorded."""

    CREATE = 0
    WRITE = 1
    TRUNCATE = 2
    SYNC = 3
    RENAME = 4
    UNLINK = 5
    MKDIR = 6
    CONNECT = 7
    SEND = 8


class BadDisk:
    """The library that was preloaded into this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.bad_disk_kinds.restype = ctypes.c_char_p
        self._library.bad_disk_failed_name.restype = ctypes.c_char_p

    def watch(self, folder: Path, port: int = 0) -> None:
        self._library.bad_disk_watch(str(folder).encode(), port)

    def arm(self, number: int, fault: Fault) -> None:
        """The call of this number from now on fails; 0 lets all of them through and counts them."""
        self._library.bad_disk_arm(ctypes.c_long(number), int(fault))

    def record(self, descriptor: int) -> None:
        self._library.bad_disk_record(descriptor)

    @property
    def calls(self) -> str:
        """Those that counted, in order: a digit of `Call` for each."""
        return str(self._library.bad_disk_kinds().decode())

    @property
    def failed(self) -> tuple[str, str]:
        """The call that failed, and the file that it was about."""
        call = int(self._library.bad_disk_failed())
        return ("" if call < 0 else Call(call).name.lower()), self._library.bad_disk_failed_name().decode()


def with_bad_disk(program: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """What a program of this folder prints as JSON that was started with the library; skips without a compiler."""
    library = folder / "bad_disk.so"
    command = [part for part in native.build_command(HERE / "bad_disk.c", library) if part != "-Werror"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"no C compiler that builds bad_disk.c: {built.stderr}")
    work = folder / "work"
    work.mkdir()
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "PYTHONPATH": str(HERE.parent),
        "XDG_DATA_HOME": str(work / "data"),
        "TMPDIR": str(work),
    }
    environment.pop("PACELINE_STORE", None)
    command = [sys.executable, str(HERE / program), str(work), *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary
