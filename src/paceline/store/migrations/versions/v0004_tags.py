"""Runs may have tags: names that people gave them."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the tags; runs from before have none."""
    op.add_column("runs", sa.Column("tags", sa.JSON(none_as_null=True), nullable=False, server_default="[]"))
