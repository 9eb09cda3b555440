"""Runs can be pinned, so that nothing deletes them, and have a note."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add both; runs from before are not pinned and have no note."""
    op.add_column("runs", sa.Column("pinned", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("runs", sa.Column("note", sa.Text, nullable=False, server_default=""))
