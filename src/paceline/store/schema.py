"""The tables of the store, as they are at the newest schema version."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

from paceline.store.location import VERSION_TABLE


class UtcDateTime(sa.TypeDecorator[datetime]):
    """An instant: aware on the way in and in UTC on the way out, although SQLite keeps no time zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"the time {value} has no time zone: use datetime.now(UTC)")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite numbers rows by itself only in a column of exactly this type.
RowNumber = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# JSON, not JSONB: PostgreSQL keeps its text as written, so that -0.0 and 1e22 come back as they were.
Document = sa.JSON(none_as_null=True)

metadata = sa.MetaData()

# Apart from the others, as it is no data: a copy of a store has its own. The name is that of stores of 0.1.0.
version_metadata = sa.MetaData()
schema_version = sa.Table(
    VERSION_TABLE,
    version_metadata,
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("started_at", UtcDateTime, nullable=False, index=True),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("session", sa.Text, nullable=False, server_default=""),
    sa.Column("machine", sa.Text, nullable=False, server_default="", index=True),
    sa.Column("command", Document, nullable=False),
    sa.Column("tags", Document, nullable=False, server_default="[]"),
    sa.Column("environment", Document, nullable=False),
    sa.Column("runner", Document, nullable=False),
    sa.Column("pinned", sa.Boolean, nullable=False, server_default=sa.false()),  # nothing deletes it
    sa.Column("note", sa.Text, nullable=False, server_default=""),
)

cases = sa.Table(
    "cases",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("case_index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("document", Document, nullable=False),
)

records = sa.Table(
    "records",
    metadata,
    sa.Column("id", RowNumber, primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("case_index", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("started_at", UtcDateTime, nullable=False),
    sa.Column("seconds", sa.Float(53), nullable=False),
    sa.Column("case", Document, nullable=False),
    sa.Column("cause", Document),
    sa.Column("facts", Document, nullable=False),
    sa.Column("warnings", Document, nullable=False),
    sa.Column("conditions", Document, nullable=False),
    sa.Column("description", Document, nullable=False, server_default="{}"),
    sa.UniqueConstraint("run_id", "case_index", "attempt", name="one_record_per_attempt"),
    sa.ForeignKeyConstraint(
        ["run_id", "case_index"], ["cases.run_id", "cases.case_index"], name="record_of_case", ondelete="CASCADE"
    ),
)

measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column(
        "record_id", RowNumber, sa.ForeignKey("records.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False),  # of the metric, for those who ask in SQL
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("at", Document, nullable=False),  # the point of a sweep
    sa.Column("metric", Document, nullable=False),
    sa.Column("statistic", sa.Text, nullable=False),
    sa.Column("summary", Document, nullable=False),
    sa.Column("derived_from", sa.Text, nullable=False),
    sa.Column("work", sa.Float(53)),
    sa.Column("samples", sa.LargeBinary, nullable=False),  # little-endian float64, in the order they were taken
)

partials = sa.Table(
    "partials",
    metadata,
    sa.Column("id", RowNumber, primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("case_index", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("metric", sa.Text, nullable=False),
    sa.Column("unit", sa.Text, nullable=False),
    sa.Column("kept_at", UtcDateTime, nullable=False),
    sa.Column("samples", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(
        ["run_id", "case_index"], ["cases.run_id", "cases.case_index"], name="partial_of_case", ondelete="CASCADE"
    ),
    sa.Index("ix_partials_case", "run_id", "case_index", "attempt"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("submitted_at", UtcDateTime, nullable=False),
    sa.Column("submitted_by", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),  # how often it changed
    sa.Column("document", Document, nullable=False),
    sa.Index("ix_jobs_submitted", "submitted_at", "id"),
)

job_events = sa.Table(
    "job_events",
    metadata,
    sa.Column("id", RowNumber, primary_key=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("document", Document, nullable=False),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("acknowledged", sa.Integer, nullable=False),  # the last report of its follower that is in the store
)

job_logs = sa.Table(
    "job_logs",
    metadata,
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),  # in the order in which they came in
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("follower", sa.Text, nullable=False, server_default=""),
    sa.Column("told", sa.Integer, nullable=False, server_default="0"),  # the follower's own number
    sa.Index("ix_job_logs_told", "job_id", "attempt", "follower", "told", unique=True),
)

quarantine = sa.Table(
    "quarantine",
    metadata,
    sa.Column("id", RowNumber, primary_key=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("follower", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),  # of the item in the attempt, as its follower counts them
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),  # why it could not be stored
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("document", Document, nullable=False),  # the item
    sa.UniqueConstraint("job_id", "attempt", "follower", "number", name="one_row_per_item"),
)

followers = sa.Table(
    "followers",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("seen_at", UtcDateTime, nullable=False),
    sa.Column("document", Document, nullable=False),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),  # of the token, which nobody keeps
    sa.Column("scopes", Document, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime),
    sa.Column("quotas", Document, nullable=False, server_default="{}"),
    sa.Column("revoked_at", UtcDateTime),  # such a row stays: a leader that ever had a token lets nobody in without one
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", RowNumber, primary_key=True),
    sa.Column("at", UtcDateTime, nullable=False, index=True),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
)
