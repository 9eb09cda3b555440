"""The tables of the store, as they are at the newest schema version."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
    select,
)
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: aware on the way in and in UTC on the way out, although SQLite keeps no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"the time {value} has no time zone: use datetime.now(UTC)")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite numbers rows by itself only in a column of exactly this type.
RowNumber = BigInteger().with_variant(Integer, "sqlite")

# JSON, not JSONB: PostgreSQL keeps its text as written, so that -0.0, 1e22 and \u0000 come back as they were.
Document = JSON(none_as_null=True)

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("started_at", UtcDateTime, nullable=False, index=True),
    Column("ended_at", UtcDateTime),
    Column("version", Text, nullable=False),
    Column("command", Document, nullable=False),
    Column("tags", Document, nullable=False, server_default="[]"),
    Column("environment", Document, nullable=False),
    Column("runner", Document, nullable=False),
)

cases = Table(
    "cases",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("case_index", Integer, primary_key=True, autoincrement=False),
    Column("document", Document, nullable=False),
)

records = Table(
    "records",
    metadata,
    Column("id", RowNumber, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("case_index", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("seconds", Float(53), nullable=False),
    Column("case", Document, nullable=False),
    Column("cause", Document),
    Column("facts", Document, nullable=False),
    Column("warnings", Document, nullable=False),
    Column("conditions", Document, nullable=False),
    Column("description", Document, nullable=False, server_default="{}"),
    UniqueConstraint("run_id", "case_index", "attempt", name="one_record_per_attempt"),
    ForeignKeyConstraint(
        ["run_id", "case_index"], ["cases.run_id", "cases.case_index"], name="record_of_case", ondelete="CASCADE"
    ),
)

measurements = Table(
    "measurements",
    metadata,
    Column("record_id", RowNumber, ForeignKey("records.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),  # of the metric, for those who ask in SQL
    Column("scope", Text, nullable=False),
    Column("at", Document, nullable=False),  # the point of a sweep
    Column("metric", Document, nullable=False),
    Column("statistic", Text, nullable=False),
    Column("summary", Document, nullable=False),
    Column("derived_from", Text, nullable=False),
    Column("work", Float(53)),
    Column("samples", LargeBinary, nullable=False),  # little-endian float64, in the order they were taken
)

partials = Table(
    "partials",
    metadata,
    Column("id", RowNumber, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("case_index", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("metric", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("kept_at", UtcDateTime, nullable=False),
    Column("samples", LargeBinary, nullable=False),
    ForeignKeyConstraint(
        ["run_id", "case_index"], ["cases.run_id", "cases.case_index"], name="partial_of_case", ondelete="CASCADE"
    ),
    Index("ix_partials_case", "run_id", "case_index", "attempt"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("state", Text, nullable=False, index=True),
    Column("priority", Integer, nullable=False),
    Column("submitted_at", UtcDateTime, nullable=False),
    Column("submitted_by", Text, nullable=False),
    Column("version", Integer, nullable=False),  # how often it changed
    Column("document", Document, nullable=False),
    Index("ix_jobs_submitted", "submitted_at", "id"),
)

job_events = Table(
    "job_events",
    metadata,
    Column("id", RowNumber, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("at", UtcDateTime, nullable=False),
    Column("kind", Text, nullable=False),
    Column("document", Document, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("acknowledged", Integer, nullable=False),  # the last thing its follower told that is in the store
)

job_logs = Table(
    "job_logs",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),  # in the order in which they came in
    Column("at", UtcDateTime, nullable=False),
    Column("text", Text, nullable=False),
    Column("follower", Text, nullable=False, server_default=""),
    Column("told", Integer, nullable=False, server_default="0"),  # the follower's own number
    Index("ix_job_logs_told", "job_id", "attempt", "follower", "told", unique=True),
)

followers = Table(
    "followers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("document", Document, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("name", Text, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),  # of the token, which nobody keeps
    Column("scopes", Document, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
)

audit = Table(
    "audit",
    metadata,
    Column("id", RowNumber, primary_key=True),
    Column("at", UtcDateTime, nullable=False, index=True),
    Column("who", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("outcome", Text, nullable=False),
)


def is_last() -> ColumnElement[bool]:
    """Whether a row of `records` is the last attempt at its case."""
    other = records.alias("other")
    last = select(func.max(other.c.attempt)).where(
        other.c.run_id == records.c.run_id, other.c.case_index == records.c.case_index
    )
    return records.c.attempt == last.correlate(records).scalar_subquery()
