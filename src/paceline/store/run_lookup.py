"""Reads runs from a store, and does no more: what most verbs need of it.

A SQLite file is read by the standard library alone: SQLAlchemy takes longer to import than most runs take to read.
"""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict

from paceline.core.errors import InputError, unknown
from paceline.core.record import Record
from paceline.core.run import RunRecords, RunStatus
from paceline.store import codec, loading, spool
from paceline.store.loading import Ask
from paceline.store.location import SCHEMA_VERSION, VERSION_TABLE, Location


class RunRow(BaseModel):
    """A run as a list shows it; the counts are of the last attempt at each case."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    status: RunStatus  # interrupted also when the runner's process is gone
    started_at: datetime
    ended_at: datetime | None
    cases: int
    ok: int
    not_ok: int
    tags: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        """Cases without a record."""
        return self.cases - self.ok - self.not_ok


LAST = "last"
BUSY_SECONDS = 30
_NEWEST_FIRST = "ORDER BY started_at DESC, id DESC"


def find_run(ask: Ask, text: str, location: Location) -> str:
    """The id of the run that is meant by `last`, an id, or the unambiguous beginning of one."""
    if text == LAST:
        newest = ask(f"SELECT id FROM runs {_NEWEST_FIRST} LIMIT 1", {}).fetchone()
        if newest is None:
            message = f"no last run: the store {location.shown} is empty; `paceline run` fills it"
            raise InputError("empty-store", message, value=location.shown)
        return str(newest[0])
    # Not LIKE, which in SQLite takes a for A and in both takes _ for anything.
    begins = f"SELECT id FROM runs WHERE substr(id, 1, :length) = :text {_NEWEST_FIRST}"
    matches = [run_id for (run_id,) in ask(begins, {"length": len(text), "text": text}).fetchall()] if text else []
    if text in matches or len(matches) == 1:
        return text if text in matches else str(matches[0])
    if not matches:
        raise unknown("run", text, all_ids(ask))
    more = f" and {len(matches) - 10} more" if len(matches) > 10 else ""
    message = f"'{text}' is the beginning of {len(matches)} runs: {', '.join(matches[:10])}{more}; type more of yours"
    raise InputError("ambiguous-run", message, value=text)


def all_ids(ask: Ask) -> list[str]:
    """Every run, the newest first."""
    return [run_id for (run_id,) in ask(f"SELECT id FROM runs {_NEWEST_FIRST}", {}).fetchall()]


class Reader(ABC):
    """A store that can be read; `paceline.store.open_reader` makes one."""

    def __init__(self, location: Location) -> None:
        self.location = location

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Give back the connections."""

    @abstractmethod
    def asking(self, doing: str) -> AbstractContextManager[Ask]:
        """Questions that are all answered as of one moment."""

    def load(self, run_id: str, *, samples: bool = True) -> RunRecords:
        """The run with the last attempt at each of its cases; without `samples` where summaries say enough."""
        with self.asking(f"load run '{run_id}'") as ask:
            records = loading.load_run(ask, run_id, samples=samples)
            if records is None:
                raise unknown("run", run_id, all_ids(ask))
            return records

    def attempts(self, run_id: str, case_index: int) -> list[Record]:
        """Every attempt at one case, the first one first."""
        with self.asking(f"load case {case_index} of run '{run_id}'") as ask:
            return loading.load_attempts(ask, run_id, case_index)

    def find_run(self, text: str) -> str:
        """The id of the run that a person means by `last`, an id, or the unambiguous beginning of one."""
        with self.asking("find a run") as ask:
            return find_run(ask, text, self.location)

    def find_runs(self, text: str) -> list[str]:
        """The ids of the runs that a person means: all that carry this tag, the oldest first, or the one run."""
        with self.asking("find runs") as ask:
            rows = ask("SELECT id, CAST(tags AS TEXT) FROM runs ORDER BY started_at, id", {}).fetchall()
            tagged = [run_id for run_id, tags in rows if text in codec.loads(tags)]
            return tagged or [find_run(ask, text, self.location)]


class FileReader(Reader):
    """A SQLite file at the newest schema version. Threads may not share it."""

    def __init__(self, location: Location, connection: sqlite3.Connection) -> None:
        super().__init__(location)
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def asking(self, doing: str) -> Iterator[Ask]:
        try:
            self._connection.execute("BEGIN")
            try:
                yield self._connection.execute
            finally:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            from paceline.store.store import store_error

            raise store_error(doing, self.location, error) from error


def open_file(location: Location) -> FileReader | None:
    """The store, if it is a file that can be read as it is: nothing to be made, migrated or imported first.

    The code that does those things reports best what is wrong with a file that cannot be read.
    """
    if location.path is None or any(spool.is_ours(path) for path in location.spools):
        return None
    options = read_only_options(location.path) if is_read_only(location.path) else {"mode": "rw"}
    try:
        connection = sqlite3.connect(
            f"{location.path.as_uri()}?{urlencode(options)}", timeout=BUSY_SECONDS, isolation_level=None, uri=True
        )
    except sqlite3.Error:
        return None
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA query_only = ON")
        if connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(SCHEMA_VERSION,)]:
            return FileReader(location, connection)
    connection.close()
    return None


def is_read_only(path: Path) -> bool:
    """Whether there is a file that may only be read."""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def read_only_options(path: Path) -> dict[str, str]:
    """How SQLite opens such a file."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        return {"mode": "ro"}
    # Reading a WAL database writes to a shared-memory file next to it, unless nobody else can be writing.
    return {"mode": "ro", "immutable": "1"}
