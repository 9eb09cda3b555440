"""The schema of 0.1.0, where migrating begins: a new store is made at the newest version at once."""

revision = "0006"
down_revision = None
