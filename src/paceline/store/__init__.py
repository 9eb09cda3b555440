"""Keeps runs and their records in SQLite or PostgreSQL, and loses none of them.

Importing this package is cheap: the database libraries are imported when a store is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import InputError
from paceline.core.run import RunRow
from paceline.store.location import default_url, locate

if TYPE_CHECKING:
    from paceline.store.reader import Reader
    from paceline.store.store import Store

__all__ = ["RunRow", "default_url", "locate", "open_existing", "open_reader", "open_store"]


def open_store(url_or_path: str | Path | None = None) -> Store:
    """Open the store at a path or URL (by default the user's own), at the newest schema, spooled records imported."""
    from paceline.store.engine import open_at

    return open_at(locate(default_url() if url_or_path is None else url_or_path))


def open_existing(url_or_path: str | Path | None = None) -> Store:
    """Open a store to look at runs: one that is named must exist, as a typo would otherwise make an empty one."""
    _must_exist(url_or_path)
    return open_store(url_or_path)


def open_reader(url_or_path: str | Path | None = None) -> Reader:
    """Open the same store only to read runs: at once where there is nothing to be migrated or imported."""
    from paceline.store.reader import open_file

    _must_exist(url_or_path)
    location = locate(default_url() if url_or_path is None else url_or_path)
    return open_file(location) or open_store(url_or_path)


def _must_exist(url_or_path: str | Path | None) -> None:
    if url_or_path is None:
        return  # the user's own is made when it is first asked for
    location = locate(url_or_path)
    if location.path is None or not all(map(_is_missing, (location.path, *location.spools))):
        return
    message = f"there is no store '{location.shown}': check the path; paceline run --store PATH makes one"
    raise InputError("missing-store", message, key="--store", value=location.shown)


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # opening it says best what is wrong
    return False
