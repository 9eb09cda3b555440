"""Brings a store to the newest schema version, once, whoever opens it first."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, column, func, inspect, select, table, text, update
from sqlalchemy.exc import OperationalError, ProgrammingError

from paceline.core.benchmark import described
from paceline.core.environment import Environment
from paceline.core.errors import StoreError
from paceline.store import codec
from paceline.store.loading import load_all_attempts
from paceline.store.location import Location
from paceline.store.schema import records, runs
from paceline.store.versions import DESCRIBED_SINCE, REVISIONS, SCHEMA_VERSION, VERSION_TABLE

if TYPE_CHECKING:
    from alembic.config import Config

ADVISORY_LOCK = 0x9ACE11E  # the same number in every Paceline
_MIGRATING = threading.Lock()  # Alembic keeps what it works on in its modules, one thing at a time for a whole process


def ensure_newest(location: Location, *, reads: Engine, writes: Engine, read_only: bool) -> None:
    """Migrate the store forward if it is behind; refuse one that is ahead. At the newest version, one SELECT.

    That one waits for nobody: who only wants to read must not queue up behind somebody who writes.
    """
    version = stored_version(reads)
    if version == SCHEMA_VERSION:
        return
    _refuse_unknown(location, version)
    if read_only:
        raise StoreError(
            f"the store {location.shown} has schema version {version or 'none'}, not {SCHEMA_VERSION}, and cannot be "
            f"migrated where it may not be written: copy it to another directory and open that"
        )
    # One after the other: threads of this process by the first, everybody else by the lock of the database itself.
    with _MIGRATING, writes.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(ADVISORY_LOCK)))
        # Whoever held the lock before may have migrated the store, even to a version that is newer than ours.
        version = _version_if_any(connection)
        if version != SCHEMA_VERSION:
            _refuse_unknown(location, version)
            upgrade(connection, SCHEMA_VERSION)
            if version is not None and version < DESCRIBED_SINCE:
                describe_records(connection)


def stored_version(engine: Engine) -> str | None:
    """The schema version of the store; None before its first opening."""
    try:
        with engine.connect() as connection:
            return _version(connection)
    except (OperationalError, ProgrammingError):
        # Ask again rather than raise: another process may have made the table since. A real error comes again.
        with engine.connect() as connection:
            return _version_if_any(connection)


def upgrade(connection: Connection, revision: str) -> None:
    """Apply the migrations up to a revision, in the transaction of this connection."""
    from alembic import command

    config = migration_config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def describe_records(connection: Connection) -> None:
    """Let every record say what it is, as its benchmark knows; run by run, for there may be many samples."""

    def ask(question: str, values: dict[str, Any]) -> Any:
        return connection.execute(text(question), values).cursor

    for run_id in connection.scalars(select(runs.c.id)).all():
        environment = Environment.read(connection.scalar(select(runs.c.environment).where(runs.c.id == run_id)) or {})
        for record in load_all_attempts(ask, run_id):
            said = codec.description_of(described(record, environment))
            own = (records.c.run_id == run_id) & (records.c.case_index == record.case.index)
            connection.execute(update(records).where(own, records.c.attempt == record.attempt).values(description=said))


def migration_config() -> Config:
    """Alembic's configuration; there is no file for it."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "paceline.store:migrations")
    return config


def _version(connection: Connection) -> str | None:
    return connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))


def _version_if_any(connection: Connection) -> str | None:
    return _version(connection) if inspect(connection).has_table(VERSION_TABLE) else None


def _refuse_unknown(location: Location, version: str | None) -> None:
    if version is not None and version not in REVISIONS:
        raise StoreError(
            f"the store {location.shown} has schema version {version}, and this Paceline knows versions up to "
            f"{SCHEMA_VERSION}: upgrade Paceline, or name another store"
        )
