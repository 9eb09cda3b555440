"""Measurements at a point of a sweep: a size, a pair of devices."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the point; what was measured before has none."""
    point = sa.Column("at", sa.JSON(none_as_null=True), nullable=False, server_default="{}")
    op.add_column("measurements", point)
