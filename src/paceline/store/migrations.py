"""The steps from one schema version to the next; a released step is never changed.

A new step is a function here and an entry of `_STEPS`, and its number the last of `REVISIONS` in `store/location.py`.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn

from paceline.core.benchmark import described
from paceline.core.environment import Environment
from paceline.core.run import machine_key, sessions_of
from paceline.store import codec
from paceline.store.location import DESCRIBED_SINCE, REVISIONS, SCHEMA_VERSION, SESSIONS_SINCE
from paceline.store.reader import load_records, load_runs
from paceline.store.schema import records, runs, schema_version
from paceline.store.store import ask

_REVOKED = re.compile(r"token revoke|DELETE /api/v\d+/tokens/\S+")  # as the audit log has it
_MOMENT = sa.DateTime(timezone=True)


def upgrade(connection: sa.Connection, version: str) -> None:
    """Apply the steps that are missing, in the transaction of this connection."""
    for revision in REVISIONS[REVISIONS.index(version) + 1 :]:
        _STEPS[revision](connection)
    connection.execute(sa.update(schema_version).values(version_num=SCHEMA_VERSION))
    # What reads and writes whole records needs the newest schema.
    if version < DESCRIBED_SINCE:
        describe_records(connection)
    if version < SESSIONS_SINCE:
        assign_sessions(connection)


def describe_records(connection: sa.Connection) -> None:
    """Describe every record as its benchmark does; run by run, for there may be many samples."""
    for run_id, document in connection.execute(sa.select(runs.c.id, runs.c.environment)).all():
        environment = Environment.read(document)
        for record in load_records(partial(ask, connection), "run_id = :run_id", {"run_id": run_id}):
            attempt = {"run_id": run_id, "case_index": record.case.index, "attempt": record.attempt}
            description = codec.description_of(described(record, environment))
            connection.execute(sa.update(records).filter_by(**attempt).values(description=description))


def assign_sessions(connection: sa.Connection) -> None:
    """Say of every run on which machine and in which session it was taken."""
    stored = load_runs(partial(ask, connection))
    sessions = sessions_of(stored)
    for run in stored:
        values = {"session": sessions[run.id], "machine": machine_key(run.environment)}
        connection.execute(sa.update(runs).where(runs.c.id == run.id).values(values))


def _add(connection: sa.Connection, table: str, *columns: sa.Column[Any]) -> None:
    for column in columns:
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN {definition}"))


def _descriptions(connection: sa.Connection) -> None:
    """Records say of themselves what they are; what the column `doubts` held is called a warning everywhere."""
    _add(connection, "records", sa.Column("description", sa.JSON, nullable=False, server_default="{}"))
    connection.execute(sa.text("ALTER TABLE records RENAME COLUMN doubts TO warnings"))


def _sessions(connection: sa.Connection) -> None:
    """Runs belong to sessions, and say which machine they were taken on."""
    names = ("session", "machine")
    _add(connection, "runs", *(sa.Column(name, sa.Text, nullable=False, server_default="") for name in names))
    connection.execute(sa.text("CREATE INDEX ix_runs_machine ON runs (machine)"))


def _quarantine(connection: sa.Connection) -> None:
    """Items of reports that cannot be stored are put aside, so that everything else goes on."""
    then = sa.MetaData()
    sa.Table("jobs", then, sa.Column("id", sa.Text, primary_key=True))
    sa.Table(
        "quarantine",
        then,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("follower", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.UniqueConstraint("job_id", "attempt", "follower", "number", name="one_row_per_item"),
    ).create(connection)


def _token_quotas(connection: sa.Connection) -> None:
    """Tokens have quotas, and one that was revoked stays known, so that a leader that had tokens is never open again.

    The audit log says which were revoked before.
    """
    quotas = sa.Column("quotas", sa.JSON, nullable=False, server_default="{}")
    _add(connection, "tokens", quotas, sa.Column("revoked_at", _MOMENT))
    names = ("name", "digest")
    moments = (sa.column(name, _MOMENT) for name in ("created_at", "revoked_at"))
    tokens = sa.table("tokens", *map(sa.column, names), sa.column("scopes", sa.JSON), *moments)
    audit = sa.table("audit", sa.column("at", _MOMENT), *map(sa.column, ("what", "subject", "outcome")))
    known = set(connection.scalars(sa.select(tokens.c.name)))
    for row in connection.execute(sa.select(audit).order_by(audit.c.at.desc())).all():
        if row.subject not in known and row.outcome in ("ok", "204") and _REVOKED.fullmatch(row.what):
            known.add(row.subject)
            digest = f"revoked {row.subject}"  # that of no token
            values = {"name": row.subject, "digest": digest, "scopes": [], "created_at": row.at, "revoked_at": row.at}
            connection.execute(sa.insert(tokens).values(values))


def _notes(connection: sa.Connection) -> None:
    """Runs can be pinned, so that nothing deletes them, and have a note."""
    pinned = sa.Column("pinned", sa.Boolean, nullable=False, server_default=sa.false())
    _add(connection, "runs", pinned, sa.Column("note", sa.Text, nullable=False, server_default=""))


_STEPS = {
    "0007": _descriptions,
    "0008": _sessions,
    "0009": _quarantine,
    "0010": _token_quotas,
    "0011": _notes,
}
