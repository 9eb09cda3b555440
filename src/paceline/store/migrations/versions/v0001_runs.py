"""Runs, their planned cases, and the records with their measurements."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the first tables."""
    op.create_table(
        "runs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("command", sa.JSON, nullable=False),
        sa.Column("environment", sa.JSON, nullable=False),
        sa.Column("runner", sa.JSON, nullable=False),
    )
    op.create_index("ix_runs_started_at", "runs", ["started_at"])
    op.create_table(
        "cases",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("case_index", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_table(
        "records",
        sa.Column("id", ROW_NUMBER, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("case_index", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.Float(53), nullable=False),
        sa.Column("case", sa.JSON, nullable=False),
        sa.Column("cause", sa.JSON),
        sa.Column("facts", sa.JSON, nullable=False),
        sa.Column("doubts", sa.JSON, nullable=False),
        sa.Column("conditions", sa.JSON, nullable=False),
        sa.UniqueConstraint("run_id", "case_index", "attempt", name="one_record_per_attempt"),
        sa.ForeignKeyConstraint(
            ["run_id", "case_index"], ["cases.run_id", "cases.case_index"], name="record_of_case", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "measurements",
        sa.Column(
            "record_id",
            ROW_NUMBER,
            sa.ForeignKey("records.id", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("metric", sa.JSON, nullable=False),
        sa.Column("statistic", sa.Text, nullable=False),
        sa.Column("summary", sa.JSON, nullable=False),
        sa.Column("derived_from", sa.Text, nullable=False),
        sa.Column("work", sa.Float(53)),
        sa.Column("samples", sa.LargeBinary, nullable=False),
    )
