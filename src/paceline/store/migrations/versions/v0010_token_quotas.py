"""Tokens have quotas, and one that was revoked stays known, so that a leader that had tokens is never open again."""

import re

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_REVOKED = re.compile(r"token revoke|DELETE /api/v\d+/tokens/\S+")  # as the audit log has it


def upgrade() -> None:
    """Add both columns, and the tokens that the audit log says were revoked."""
    op.add_column("tokens", sa.Column("quotas", sa.JSON, nullable=False, server_default="{}"))
    op.add_column("tokens", sa.Column("revoked_at", sa.DateTime(timezone=True)))
    moment = sa.DateTime(timezone=True)
    tokens = sa.table(
        "tokens",
        sa.column("name", sa.Text),
        sa.column("digest", sa.Text),
        sa.column("scopes", sa.JSON),
        sa.column("created_at", moment),
        sa.column("revoked_at", moment),
    )
    texts = (sa.column(name, sa.Text) for name in ("what", "subject", "outcome"))
    audit = sa.table("audit", sa.column("at", moment), *texts)
    connection = op.get_bind()
    known = set(connection.scalars(sa.select(tokens.c.name)))
    for row in connection.execute(sa.select(audit).order_by(audit.c.at.desc())).all():
        if row.subject not in known and row.outcome in ("ok", "204") and _REVOKED.fullmatch(row.what):
            known.add(row.subject)
            digest = f"revoked {row.subject}"  # that of no token
            values = {"name": row.subject, "digest": digest, "scopes": [], "created_at": row.at, "revoked_at": row.at}
            connection.execute(sa.insert(tokens).values(values))
