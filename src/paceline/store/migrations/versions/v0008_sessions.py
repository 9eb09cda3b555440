"""Runs belong to sessions, and say which machine they were taken on."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add both; those of runs from before are filled in once the schema is the newest."""
    for name in ("session", "machine"):
        op.add_column("runs", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.create_index("ix_runs_machine", "runs", ["machine"])
