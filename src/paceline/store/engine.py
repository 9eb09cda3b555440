"""Opens a store: makes the engine, migrates the schema, imports what was spooled."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    create_engine,
    event,
    func,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from paceline.core.errors import InputError, StoreError
from paceline.core.files import open_private, private_directory, sync_directory
from paceline.core.text import clean_all
from paceline.store import codec, spool
from paceline.store.location import (
    REVISIONS,
    SCHEMA_VERSION,
    VERSION_TABLE,
    Location,
    bad_postgres_url,
)
from paceline.store.reader import (
    BUSY_SECONDS,
    UNREADABLE,
    close_files_to_others,
    is_read_only,
    read_only_options,
)
from paceline.store.schema import metadata, schema_version, version_metadata
from paceline.store.store import Store, opening_error

ADVISORY_LOCK = 0x9ACE11E  # the same number in every Paceline
CONNECT_SECONDS = 10
_BEGIN = "paceline_begin"  # execution option: how SQLite begins a transaction

_log = logging.getLogger(__name__)


def ensure_newest(location: Location, *, reads: Engine, writes: Engine, read_only: bool) -> None:
    """Migrate the store forward if it is behind; refuse one that is ahead. At the newest version, one SELECT.

    That one waits for nobody: who only wants to read must not queue up behind somebody who writes.
    """
    try:
        with reads.connect() as connection:
            version = _version(connection)
    except (OperationalError, ProgrammingError):
        # Look again rather than raise: another process may have made the table since. A real error comes again.
        with reads.connect() as connection:
            version = _version_if_any(connection)
    if version == SCHEMA_VERSION:
        return
    _refuse_unknown(location, version)
    if read_only:
        raise StoreError(
            f"the store {location.shown} has schema version {version or 'none'}, not {SCHEMA_VERSION}, and cannot be "
            f"migrated where it may not be written: copy it to another directory and open that"
        )
    with writes.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(ADVISORY_LOCK)))
        # Whoever held the lock before may have migrated the store, even to a version that is newer than ours.
        version = _version_if_any(connection)
        if version != SCHEMA_VERSION:
            _refuse_unknown(location, version)
            if version is None:
                _create(connection)
            else:
                from paceline.store import migrations  # which most who open a store do not need

                migrations.upgrade(connection, version)


def _create(connection: Connection) -> None:
    """The newest schema in an empty database."""
    metadata.create_all(connection)
    version_metadata.create_all(connection)
    connection.execute(insert(schema_version).values(version_num=SCHEMA_VERSION))


def _version(connection: Connection) -> str | None:
    version: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return version


def _version_if_any(connection: Connection) -> str | None:
    return _version(connection) if inspect(connection).has_table(VERSION_TABLE) else None


def _refuse_unknown(location: Location, version: str | None) -> None:
    if version is not None and version not in REVISIONS:
        remedy = "upgrade Paceline" if version > SCHEMA_VERSION else "open it with Paceline 0.1.0 first"
        raise StoreError(
            f"the store {location.shown} has schema version {version}, and this Paceline knows versions "
            f"{REVISIONS[0]} to {SCHEMA_VERSION}: {remedy}, or name another store"
        )


def open_at(location: Location) -> Store:
    """The store at this location, made if there is none."""
    read_only = location.path is not None and is_read_only(location.path)
    engine = _postgres_engine(location) if location.path is None else _sqlite_engine(location.path, read_only)
    reads = writes = engine
    if location.path is None:
        reads = engine.execution_options(isolation_level="REPEATABLE READ")
    elif not read_only:
        # A transaction that begins by reading cannot wait for its turn to write; it can only fail.
        writes = engine.execution_options(**{_BEGIN: "IMMEDIATE"})
    try:
        ensure_newest(location, reads=reads, writes=writes, read_only=read_only)
    except (SQLAlchemyError, sqlite3.Error, *UNREADABLE) as error:  # the latter of what is damaged
        engine.dispose()
        # Without its context: a driver's own message may repeat the password that it was given.
        raise opening_error(location, error) from None
    except (StoreError, InputError):
        engine.dispose()
        raise
    store = Store(location, reads=reads, writes=writes)
    for path in () if read_only else filter(spool.is_ours, location.spools):
        try:
            _, refusals = store.import_spool(path)
        except (StoreError, InputError) as error:
            # The disk may still be full, or another process was faster; what is stored can be read all the same.
            refusals = [str(error)]
        for refusal in refusals:
            _log.warning("a spooled record still waits: %s", refusal)
    return store


def _sqlite_engine(path: Path, read_only: bool) -> Engine:
    if read_only:
        url = URL.create("sqlite", database=path.as_uri(), query=read_only_options(path) | {"uri": "true"})
    else:
        try:
            private_directory(path.parent)
        except OSError as error:
            raise StoreError(
                f"could not make the directory {path.parent} for the store: {error.strerror}; "
                f"name another path with --store or $PACELINE_STORE"
            ) from error
        _make_private_file(path)
        url = URL.create("sqlite", database=str(path))
    engine = _engine(url)

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # so that no transaction begins but by the listener below
        connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        if not read_only:
            _use_write_ahead_log(connection, path)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get(_BEGIN, 'DEFERRED')}")

    return engine


def _make_private_file(path: Path) -> None:
    """Make a missing file before SQLite would, which gives its log the file's mode: only its user may read both."""
    if path.exists():
        close_files_to_others(path)
        return
    with suppress(OSError):  # SQLite says best what is wrong
        os.close(open_private(path, os.O_RDWR | os.O_CREAT))
        sync_directory(path.parent)


def _use_write_ahead_log(connection: sqlite3.Connection, path: Path) -> None:
    # SQLite does not wait here while another process has the file open for the first time, so we do.
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            # A store must not grow inside the file of another program. (The database of a server may be shared.)
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            if tables and VERSION_TABLE not in tables:
                message = (
                    f"the store {path} is the database of another program (it has the table '{tables[0]}'): "
                    f"give the path of a Paceline store, or of a file that does not exist yet"
                )
                raise InputError("foreign-database", message, key="--store", value=str(path))
            if not tables:  # can be set only before there is anything
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _postgres_engine(location: Location) -> Engine:
    try:
        url = make_url(location.url)
    except (ArgumentError, ValueError):
        raise bad_postgres_url("not-a-url", "is not valid") from None
    try:
        return _engine(url.set(query={"connect_timeout": str(CONNECT_SECONDS), **url.query}))
    except ImportError as error:
        raise StoreError(
            f"the store {location.shown} needs psycopg, which cannot be imported ({error}); "
            f"install it with `pip install '.[postgres]'`"
        ) from error


def _engine(url: URL) -> Engine:
    engine = create_engine(
        url,
        json_serializer=codec.dumps,
        json_deserializer=codec.loads,
        hide_parameters=True,
        pool_pre_ping=url.get_backend_name() == "postgresql",
    )

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def clean_values(_: Connection, __: object, statement: str, values: Any, *___: object) -> tuple[str, Any]:
        return statement, clean_all(values)

    return engine
