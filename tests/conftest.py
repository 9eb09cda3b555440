"""What tests of every kind share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import Sandbox, sandbox_in
from support.postgres import PostgresServer, postgres_server

ALONE = ("fault", "browser")  # folders whose tests all depend on when things happen


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of some folders run alone without each saying so."""
    for item in items:
        if item.path.parent.name in ALONE:
            item.add_marker(pytest.mark.alone)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A place to start real processes in; whatever they leave running ends with the test."""
    with sandbox_in(tmp_path / "sandbox") as made:
        yield made


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of our own, for as long as the tests run."""
    with postgres_server() as server:
        yield server
