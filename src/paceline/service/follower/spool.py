"""What an attempt has to report, in a file that outlives every process: a line for each item, whole or missing."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from paceline.core.files import write_atomic
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
        self._read_to = 0
        self._has_ended = False

    @classmethod
    def make(cls, folder: Path, assignment: Assignment) -> Spool:
        """A new one; the assignment is there before anything else, so that a folder without one means nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        spool = cls(folder)
        spool.renew()
        write_atomic(folder / _ASSIGNMENT, assignment.model_dump_json())
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
        if self._written is None:  # how many whole lines there are; half a line, which a crash left, is removed
            data = path.read_bytes() if path.exists() else b""
            end = data.rfind(b"\n") + 1
            if end < len(data):
                os.truncate(path, end)
            self._written = data.count(b"\n")
        item = Item.model_validate({"number": self._written + 1, "at": datetime.now(UTC), "kind": kind, **content})
        absent = {name for name in Item.model_fields if getattr(item, name) is None}  # but not within a record
        written, self._written = self._written, None  # unknown again, should this fail half way
        try:
            with path.open("ab") as file:
                file.write(f"{codec.dumps(item.model_dump(exclude=absent))}\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SpoolFailed(error.errno, error.strerror, str(path)) from error
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
            end = new.rfind(b"\n") + 1  # a line that is still being written is left for later
            items = [Item.model_validate(codec.loads(line)) for line in new[:end].splitlines()]
            self._items += items
            self._read_to += end
            self._has_ended |= any(item.kind == "ended" for item in items)

    @contextmanager
    def exclusively(self) -> Iterator[bool]:
        """Be the only process that writes here, or be refused; the system ends it with the process.

        Not flock: what is forked from the one who writes would go on holding that.
        """
        with (self.folder / _LOCK).open("ab") as file:
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
        write_atomic(self.folder / _PROGRESS, progress.model_dump_json())

    @property
    def meeting(self) -> Meeting | None:
        """Where the first of a gang is waited for."""
        return self._load(_MEETING, Meeting)

    @meeting.setter
    def meeting(self, meeting: Meeting) -> None:
        write_atomic(self.folder / _MEETING, meeting.model_dump_json())

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
        (self.folder / _LEASE).touch()

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
        write_atomic(self.folder / _PROCESS, json.dumps(runner))
