"""Copies a whole store while others write to it, and back; a copy is a SQLite store, whatever it was made of."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

from sqlalchemy import Connection, delete, func, insert, select, text

from paceline.core.errors import InputError, StoreError
from paceline.core.files import open_private, private_directory, sync_directory
from paceline.store.engine import open_at
from paceline.store.location import Location, locate
from paceline.store.reader import read_only_options
from paceline.store.schema import metadata
from paceline.store.store import Store, store_error

_ROWS_AT_ONCE = 200
_LOGS = ("-wal", "-shm")
_FIRST_BYTES = b"SQLite format 3\0"


def back_up(store: Store, target: Path, *, replace: bool = False) -> None:
    """Write all that is in the store at one moment to a file, which is whole and checked when it has its name."""
    if target.exists() and not replace:
        raise _not_empty(target, "name another file, or write over it with --replace")
    with _staged(target) as staged:
        if store.location.path is not None:
            # In one step: it sees one moment, and who writes to the log does not wait for it.
            with store.driver("back up") as source, closing(sqlite3.connect(staged)) as copy:
                source.backup(copy)
        else:
            with (
                open_at(locate(staged)) as copied,
                store.reading("back up") as source_rows,
                copied.writing("back up") as target_rows,
            ):
                _copy_rows(source_rows, target_rows)
        _require_whole(staged)
        _put_in_place(staged, target)


def restore(source: Path, location: Location, *, replace: bool = False) -> Path | None:
    """Make the store of a backup; what is there already stays unless it is to be replaced.

    Returns the file to which a store that was replaced was moved.
    """
    if not source.is_file():
        message = f"there is no backup '{source}': name a file that `paceline store backup` wrote"
        raise InputError("missing-file", message, value=str(source))
    _require_sqlite(source)
    _require_whole(source)
    with _staged(location.path) as staged:
        _copy_file(source, staged)
        with open_at(locate(staged)) as copied:  # migrates what an earlier version wrote
            if location.path is None:
                _restore_rows(copied, location, replace=replace)
                return None
            _close_log(copied)
        return _restore_file(staged, location.path, replace=replace)


def _restore_file(staged: Path, target: Path, *, replace: bool) -> Path | None:
    moved = None
    if target.exists() and target.stat().st_size:
        if not replace:
            raise _not_empty(target, "name another with --store, or have it replaced with --replace")
        _require_unused(target)
        moved = target.with_name(f"{target.name}.replaced-{datetime.now(UTC):%Y%m%d-%H%M%S}")
        for end in ("", *_LOGS):
            with suppress(FileNotFoundError):
                Path(f"{target}{end}").rename(f"{moved}{end}")
    _put_in_place(staged, target)
    return moved


def _restore_rows(copied: Store, location: Location, *, replace: bool) -> None:
    with open_at(location) as target, copied.reading("restore") as source, target.writing("restore") as connection:
        rows = {table: connection.scalar(select(func.count()).select_from(table)) for table in metadata.sorted_tables}
        if any(rows.values()) and not replace:
            raise _not_empty(location.shown, "name another with --store, or have it replaced with --replace")
        for table in reversed(metadata.sorted_tables):
            connection.execute(delete(table))
        _copy_rows(source, connection)


def _copy_rows(source: Connection, target: Connection) -> None:
    """Copy every table, those first to which others refer."""
    for table in metadata.sorted_tables:
        for rows in source.execute(select(table)).mappings().partitions(_ROWS_AT_ONCE):
            target.execute(insert(table), [dict(row) for row in rows])
    number_from_here(target)


def number_from_here(connection: Connection) -> None:
    """Let PostgreSQL number new rows after those that came with their number; SQLite does by itself."""
    if connection.dialect.name != "postgresql":
        return
    for table in metadata.sorted_tables:
        column = table.autoincrement_column
        if column is not None:
            sequence = f"pg_get_serial_sequence('{table.name}', '{column.name}')"
            newest = f"(SELECT max({column.name}) FROM {table.name})"
            connection.execute(text(f"SELECT setval({sequence}, coalesce({newest}, 0) + 1, false)"))


@contextmanager
def _staged(target: Path | None) -> Iterator[Path]:
    """A file to write to first: next to the target, so that it can take its name, or else a temporary one."""
    try:
        folder = private_directory(target.absolute().parent) if target is not None else None
        with tempfile.TemporaryDirectory(dir=folder, prefix=".paceline-") as made:
            yield Path(made) / "staged.db"
    except OSError as error:
        where = target.parent if target is not None else tempfile.gettempdir()
        raise StoreError(f"could not write below {where}: {error.strerror}; name a place with room") from error


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, not even beside the file."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?{urlencode(read_only_options(path))}", uri=True)


def _copy_file(source: Path, target: Path) -> None:
    os.close(open_private(target, os.O_RDWR | os.O_CREAT))
    try:
        with closing(read_only(source)) as backup, closing(sqlite3.connect(target)) as copy:
            backup.backup(copy)
    except sqlite3.Error as error:
        raise store_error("read the backup", locate(source), error) from error


def _require_sqlite(source: Path) -> None:
    try:
        with source.open("rb") as file:
            begin = file.read(len(_FIRST_BYTES))
    except OSError as error:
        message = f"the backup '{source}' cannot be read: {error.strerror}"
        raise InputError("unreadable-file", message, value=str(source)) from None
    if begin != _FIRST_BYTES:
        message = f"'{source}' is no SQLite file, as backups are: name one that `paceline store backup` wrote"
        raise InputError("not-a-backup", message, value=str(source))


def _require_whole(path: Path) -> None:
    try:
        with closing(read_only(path)) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(1)")]
    except sqlite3.Error as error:
        found = [str(error)]
    if found != ["ok"]:
        message = f"'{path}' is damaged: {found[0]}; `paceline store check --store {path} --save FILE` saves the rest"
        raise StoreError(message)


def _close_log(store: Store) -> None:
    """Have everything in the one file that is renamed."""
    with store.maintaining("close the log") as execute:
        execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _put_in_place(staged: Path, target: Path) -> None:
    with staged.open("rb") as file:
        os.fsync(file.fileno())
    staged.chmod(0o600)
    staged.replace(target)
    sync_directory(target.absolute().parent)


def _require_unused(path: Path) -> None:
    """Refuse to replace a file that others have open; SQLite leaves its log only when nobody else is there."""
    try:
        with closing(sqlite3.connect(path, timeout=1.0)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            message = f"the store {path} is in use: end the leader and the runs that write to it first"
            raise InputError("store-in-use", message, key="--store", value=str(path)) from None
    except sqlite3.DatabaseError:
        return  # too damaged to be in use


def _not_empty(target: Path | str, remedy: str) -> InputError:
    return InputError("not-empty", f"'{target}' holds data already: {remedy}", value=str(target))
