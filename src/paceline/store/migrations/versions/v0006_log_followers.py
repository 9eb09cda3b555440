"""Lines of a job's log say which follower told them, as several may tell of one attempt."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Number lines as they come in, and keep beside that the number that their follower gave them."""
    op.add_column("job_logs", sa.Column("follower", sa.Text, nullable=False, server_default=""))
    op.add_column("job_logs", sa.Column("told", sa.Integer, nullable=False, server_default="0"))
    op.execute("UPDATE job_logs SET told = number")
    op.create_index("ix_job_logs_told", "job_logs", ["job_id", "attempt", "follower", "told"], unique=True)
