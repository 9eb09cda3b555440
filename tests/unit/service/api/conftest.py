"""A leader that answers: one for each test, or one for all tests of a module that leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.leading import Served, served_in


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A leader of a test's own."""
    with served_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A leader for tests that change nothing."""
    with served_in(tmp_path_factory.mktemp("leader")) as made:
        yield made
