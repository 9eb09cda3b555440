"""Histories of a leader in every kind of trouble: whatever happened, a checker finds nothing wrong in them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.cli import Sandbox
from support.history import violations, world
from support.postgres import PostgresServer, postgres_server
from support.relay import Relay

SEED = int(os.environ.get("PACELINE_TEST_HISTORY_SEED", "1"))
FEW, MANY = 40, 500  # operations
PATIENCE = 1800  # seconds, for a machine that does much else


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("operations", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_a_history_on_sqlite_has_no_fault(sandbox: Sandbox, operations: int) -> None:
    url = str(sandbox.folder / "store.db")
    with world(sandbox, url, SEED) as made:
        made.run(operations)
    print(f"seed {SEED}: {sum(made.history.operations.values())} operations: {dict(made.history.operations)}")
    assert list(violations(made.history, url, sandbox.folder / "diary")) == [], f"seed {SEED}"


@pytest.mark.long
@pytest.mark.timeout(PATIENCE)
def test_a_history_on_postgresql_has_no_fault(sandbox: Sandbox, postgres: PostgresServer) -> None:
    url = postgres.new_database()
    relay = Relay(postgres.port)
    with world(sandbox, url.replace(f":{postgres.port}/", f":{relay.port}/"), SEED, database=relay) as made:
        made.run(MANY)
    relay.close()
    print(f"seed {SEED}: {sum(made.history.operations.values())} operations: {dict(made.history.operations)}")
    assert list(violations(made.history, url, sandbox.folder / "diary")) == [], f"seed {SEED}"


@pytest.mark.long
def test_a_planted_defect_is_seen(sandbox: Sandbox) -> None:
    url = str(sandbox.folder / "store.db")
    with world(sandbox, url, SEED, "dropped acknowledgement") as made:
        made.run(FEW)
    assert any("is not there" in one for one in violations(made.history, url, sandbox.folder / "diary"))
