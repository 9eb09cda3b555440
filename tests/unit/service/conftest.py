"""A store of its own, and time that a test lets pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.store import open_store
from paceline.store.store import Store
from support.scripted_followers import Clock


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()
