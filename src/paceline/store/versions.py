"""The versions of the store's schema, known without the libraries that make it."""

from __future__ import annotations

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
SCHEMA_VERSION = REVISIONS[-1]
VERSION_TABLE = "alembic_version"
