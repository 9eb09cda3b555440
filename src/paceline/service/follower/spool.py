"""What an attempt has to report, in a file that outlives every process: a line for each item, whole or missing."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from paceline.core.files import (
    append_synced,
    close_to_others,
    open_private,
    private_directory,
    sync_directory,
    write_atomic,
)
from paceline.core.text import clean
from paceline.service.engines.base import Assignment, AttemptProgress, Item, Meeting
from paceline.store import codec

_ITEMS, _ASSIGNMENT, _PROGRESS, _LEASE, _PROCESS = "items.jsonl", "assignment.json", "progress.json", "lease", "process"
SPOOL_FAILED = os.EX_IOERR  # the exit code of a process whose spool took nothing more
_LOCK, _MEETING = "speaker", "meeting.json"
OUTPUT = "output.txt"  # of the process that measures
_LAST_LINES = 20

_Model = TypeVar("_Model", bound=BaseModel)


class SpoolFailed(OSError):
    """The disk of a spool is full, or fails."""


class Spool:
    """The folder of one attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: int | None = None  # lines, once this process has written one
        self._items: list[Item] = []
        self._read_to = self._lines = 0
        self._has_ended = False

    @classmethod
    def make(cls, folder: Path, assignment: Assignment) -> Spool:
        """A new one; the assignment is there before anything else, so that a folder without one means nothing."""
        close_to_others(private_directory(folder))
        spool = cls(folder)
        spool.renew()
        spool._write(_ASSIGNMENT, assignment.model_dump_json())
        sync_directory(folder)
        return spool

    @property
    def assignment(self) -> Assignment | None:
        """What is to be done; None for a folder that was never finished."""
        return self._load(_ASSIGNMENT, Assignment)

    @cached_property
    def place(self) -> int:
        """Of this follower in its gang."""
        assignment = self.assignment
        return assignment.place if assignment is not None else 0

    def append(self, kind: str, **content: Any) -> None:
        """Write one item more; it is on the disk when this returns. One process at a time may do so."""
        path = self.folder / _ITEMS
        try:
            with os.fdopen(open_private(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as file:
                self._append(file, kind, content)
        except OSError as error:
            raise SpoolFailed(error.errno, error.strerror, str(path)) from error

    def _append(self, file: FileIO, kind: str, content: dict[str, Any]) -> None:
        if self._written is None:  # how many whole lines there are; what a crash left of another is removed
            data = file.readall()
            data = data[: _whole_lines(data)]
            file.truncate(len(data))
            self._written = data.count(b"\n")
            sync_directory(self.folder)  # it may be new
        item = Item.model_validate({"number": self._written + 1, "at": datetime.now(UTC), "kind": kind, **content})
        absent = {name for name in Item.model_fields if getattr(item, name) is None}  # but not within a record
        written, self._written = self._written, None  # unknown again, should this fail half way
        # Unbuffered: what a buffer could not write is written once more when it is closed, behind the half that was.
        append_synced(file.fileno(), f"{codec.dumps(item.model_dump(exclude=absent))}\n".encode())
        self._written = written + 1

    def items(self, after: int = 0) -> list[Item]:
        """What is written, in order, beyond this number; what lies before it is dropped."""
        self._read()
        self._items = [item for item in self._items if item.number > after]
        return list(self._items)

    @property
    def has_ended(self) -> bool:
        """Whether the last item is written."""
        self._read()
        return self._has_ended

    def _read(self) -> None:
        with suppress(FileNotFoundError), (self.folder / _ITEMS).open("rb") as file:
            file.seek(self._read_to)
            new = file.read()
            end = _whole_lines(new)  # a line that is still being written is left for later
            items = [
                _item(line, self._lines + place) for place, line in enumerate(new[:end].split(b"\n")[:-1], start=1)
            ]
            self._lines += len(items)
            self._items += items
            self._read_to += end
            self._has_ended |= any(item.kind == "ended" for item in items)

    @contextmanager
    def exclusively(self) -> Iterator[bool]:
        """Be the only process that writes here, or be refused; the system ends it with the process.

        Not flock: what is forked from the one who writes would go on holding that.
        """
        with os.fdopen(open_private(self.folder / _LOCK, os.O_WRONLY | os.O_CREAT), "wb") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True

    @property
    def progress(self) -> AttemptProgress:
        """What is going on."""
        return self._load(_PROGRESS, AttemptProgress) or AttemptProgress()

    @progress.setter
    def progress(self, progress: AttemptProgress) -> None:
        self._write(_PROGRESS, progress.model_dump_json())

    @property
    def meeting(self) -> Meeting | None:
        """Where the first of a gang is waited for."""
        return self._load(_MEETING, Meeting)

    @meeting.setter
    def meeting(self, meeting: Meeting) -> None:
        self._write(_MEETING, meeting.model_dump_json())

    def _write(self, name: str, text: str) -> None:
        write_atomic(self.folder / name, text, private=True)

    def _load(self, name: str, model: type[_Model]) -> _Model | None:
        try:
            return model.model_validate_json((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return None

    def last_words(self) -> str | None:
        """The last lines that the process wrote, for a message; None if it wrote nothing that can be read."""
        try:
            lines = (self.folder / OUTPUT).read_text(errors="replace").splitlines()[-_LAST_LINES:]
        except OSError:
            return None
        words = " / ".join(line.strip() for line in lines if line.strip())
        return f"; its last words: {words}" if words else ""

    def renew(self) -> None:
        """Renew the lease."""
        (self.folder / _LEASE).touch(0o600)

    @property
    def renewed_at(self) -> float:
        """When the lease was last renewed, in seconds since the epoch."""
        return (self.folder / _LEASE).stat().st_mtime

    @property
    def process(self) -> dict[str, Any] | None:
        """Who measures, as `paceline.store.location` identifies processes; None before it began."""
        try:
            runner: dict[str, Any] = json.loads((self.folder / _PROCESS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return runner

    @process.setter
    def process(self, runner: dict[str, Any]) -> None:
        self._write(_PROCESS, json.dumps(runner))


def _whole_lines(data: bytes) -> int:
    """Where the last line ends that was written whole; a loss of power can also leave its end without its middle."""
    end = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    try:
        codec.loads(data[start:end] or b"{}")
    except ValueError:
        return start
    return end


def _item(line: bytes, number: int) -> Item:
    """The item of a line, whose number is that of the line; one that is damaged must not keep the others back."""
    try:
        item = Item.model_validate(codec.loads(line))
        if item.number == number:
            return item
    except (ValueError, RecursionError):
        pass
    text = clean(line.decode(errors="backslashreplace"))
    return Item(number=number, at=datetime.now(UTC), kind="unreadable", text=text)
