"""The versions of the store's schema, known without the libraries that make it."""

from __future__ import annotations

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
SCHEMA_VERSION = REVISIONS[-1]
DESCRIBED_SINCE = "0007"  # records say of themselves what they are; older ones are described when they are migrated
VERSION_TABLE = "alembic_version"
