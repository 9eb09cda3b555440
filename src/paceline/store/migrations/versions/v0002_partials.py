"""Samples of the case in flight, so that they outlive a runner that dies."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table of partials."""
    op.create_table(
        "partials",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("case_index", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("kept_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("samples", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "case_index"], ["cases.run_id", "cases.case_index"], name="partial_of_case", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_partials_case", "partials", ["run_id", "case_index", "attempt"])
