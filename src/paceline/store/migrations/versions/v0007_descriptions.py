"""Records say of themselves what they are: what leads, what was measured, its work, ceilings and other names.

What the column `doubts` held is called a warning everywhere, so the column is, too.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the description; those of records from before are made once the schema is the newest."""
    column = sa.Column("description", sa.JSON(none_as_null=True), nullable=False, server_default="{}")
    op.add_column("records", column)
    op.alter_column("records", "doubts", new_column_name="warnings")
