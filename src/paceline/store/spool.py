"""Keeps records that the database could not take in a file of JSON lines, until it can.

The file is locked while somebody appends to it or imports it. Whoever replaces or removes it holds the lock, so a
process that waited for the lock looks again whether the file it has open is still the one with that name.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from paceline.core.errors import StoreError
from paceline.core.files import append_synced, open_private, private_directory, sync_directory
from paceline.core.record import Record
from paceline.store.codec import from_line, to_line


def keep(record: Record, spools: Sequence[Path]) -> Path:
    """Append the record to the first file that takes it, durably; returns that file."""
    line = to_line(record).encode() + b"\n"
    refusals = []
    for path in spools:
        try:
            private_directory(path.parent)
            _append(path, line)
            return path
        except OSError as error:
            refusals.append(f"{path}: {error.strerror}")
    raise StoreError(f"the record could not be kept anywhere ({'; '.join(refusals)}); free some disk space")


def import_records(path: Path, add: Callable[[Record], None]) -> tuple[int, list[str]]:
    """Hand every spooled record to `add`, then drop from the file those that it took.

    Returns how many it took and why others stay: lines that are not a record, and records that `add` refused with
    StoreError; any other error ends the import and leaves the file as it was. A record is dropped only after `add`
    returned, so a crash can repeat it but not lose it.
    """
    with _locked(path, os.O_RDWR) as descriptor:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            lines = [line for line in file.read().splitlines() if line.strip()]
        left, refusals = [], []
        for number, line in enumerate(lines, 1):
            try:
                add(from_line(line))
            except (ValueError, StoreError) as error:
                left.append(line)
                reason = str(error)
                if isinstance(error, ValidationError):
                    first = error.errors()[0]
                    reason = f"'{'.'.join(map(str, first['loc']))}': {first['msg']}"
                if isinstance(error, ValueError):
                    reason = f"it is not a spooled record: {reason}"
                refusals.append(f"{path}, line {number}: {reason}")
        if not left:
            path.unlink()
        elif len(left) < len(lines):
            fresh_descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
            with os.fdopen(fresh_descriptor, "wb") as file:
                file.writelines(line + b"\n" for line in left)
                file.flush()
                os.fsync(fresh_descriptor)
            Path(fresh).replace(path)
            sync_directory(path.parent)
        return len(lines) - len(left), refusals


def is_ours(path: Path) -> bool:
    """Whether there is a spool that this user may trust: in a shared temporary directory anybody can make a file."""
    try:
        return path.lstat().st_uid == os.getuid() and path.is_file() and not path.is_symlink()
    except OSError:
        return False


@contextmanager
def _locked(path: Path, flags: int) -> Iterator[int]:
    while True:
        descriptor = open_private(path, flags | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                is_current = os.path.samestat(path.lstat(), os.fstat(descriptor))
            except FileNotFoundError:
                is_current = False
            if is_current:
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _append(path: Path, line: bytes) -> None:
    with _locked(path, os.O_RDWR | os.O_CREAT) as descriptor:
        size = os.fstat(descriptor).st_size
        # A process that died while it wrote left half a line; it must not spoil this one.
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        try:
            append_synced(descriptor, b"\n" + line if torn else line)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    sync_directory(path.parent)
