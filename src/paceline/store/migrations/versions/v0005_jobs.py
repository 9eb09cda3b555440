"""What a leader keeps: jobs and their history, followers, tokens, and who did what."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_instant = sa.DateTime(timezone=True)
_document = sa.JSON(none_as_null=True)
_row_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables; a store that no leader uses has them empty."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False, index=True),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("submitted_at", _instant, nullable=False),
        sa.Column("submitted_by", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("document", _document, nullable=False),
    )
    op.create_index("ix_jobs_submitted", "jobs", ["submitted_at", "id"])
    op.create_table(
        "job_events",
        sa.Column("id", _row_number, primary_key=True),
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("at", _instant, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("document", _document, nullable=False),
    )
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("acknowledged", sa.Integer, nullable=False),
    )
    op.create_table(
        "job_logs",
        sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", _instant, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "followers",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("seen_at", _instant, nullable=False),
        sa.Column("document", _document, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("scopes", _document, nullable=False),
        sa.Column("created_at", _instant, nullable=False),
        sa.Column("expires_at", _instant),
    )
    op.create_table(
        "audit",
        sa.Column("id", _row_number, primary_key=True),
        sa.Column("at", _instant, nullable=False, index=True),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
    )
