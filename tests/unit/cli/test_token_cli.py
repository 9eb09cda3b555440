"""What `paceline token list` says of each token: whether it holds, or since when it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli import token
from paceline.service.api.tokens import Scope, make
from paceline.store import open_store
from paceline.store.queue import AuditRow
from paceline.store.store import Store

DAY = timedelta(days=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


def asked(store: Store, *words: str) -> str:
    done = CliRunner().invoke(token.command, [*words, "--store", str(store.location.path)])
    assert done.exit_code == 0, done.output
    return done.stdout


def listed(store: Store) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(asked(store, "list", "--json"))}


def add(store: Store, name: str, lasts: timedelta | None = DAY, now: datetime | None = None) -> None:
    _, row = make(name, Scope.READ, lasts, now)
    with store.queue.writing("add a token") as writing:
        writing.put_token(row)


def test_each_token_says_whether_it_holds(store: Store) -> None:
    began = datetime(2020, 1, 1, 12, 30, tzinfo=UTC)
    add(store, "fresh")
    add(store, "lasting", lasts=None)
    add(store, "old", now=began)
    add(store, "unwanted")
    asked(store, "revoke", "unwanted")
    lines = dict(line.split(maxsplit=1) for line in asked(store, "list").splitlines())
    assert list(lines) == ["fresh", "lasting", "old", "unwanted"]
    assert lines["fresh"].split() == ["read", "valid", "until", *lines["fresh"].split()[-3:]]
    assert lines["lasting"].split() == ["read", "valid", "for", "ever"]
    assert lines["old"].split() == ["read", "expired", "since", "2020-01-02", "12:30", "UTC"]
    assert lines["unwanted"].split()[:3] == ["-", "revoked", "since"]

    told = listed(store)
    assert [(one["state"], one["since"]) for one in told.values()][:3] == [
        ("valid", None),
        ("valid", None),
        ("expired", (began + DAY).isoformat()),
    ]
    assert told["old"]["expires_at"] == told["old"]["since"]
    (entry,) = store.queue.audited()
    assert (told["unwanted"]["state"], told["unwanted"]["since"]) == ("revoked", entry.at.isoformat())
    assert told["unwanted"]["scopes"] == [], "it may do nothing"


def test_a_token_that_is_made_again_is_not_called_revoked(store: Store) -> None:
    add(store, "ann")
    asked(store, "revoke", "ann")
    asked(store, "create", "ann")
    assert [(name, one["state"]) for name, one in listed(store).items()] == [("ann", "valid")]


@pytest.mark.parametrize(("outcome", "states"), [("204", ["revoked"]), ("404", []), ("403 forbidden", [])])
def test_what_was_revoked_over_the_network_counts_if_it_was(store: Store, outcome: str, states: list[str]) -> None:
    with store.queue.writing("note who did what") as writing:
        writing.note(AuditRow(datetime.now(UTC), "admin", "DELETE /api/v1/tokens/ann", "ann", outcome))
        writing.note(AuditRow(datetime.now(UTC), "admin", "POST /api/v1/tokens", "bob", "201"))
    assert [one["state"] for one in listed(store).values()] == states
    assert asked(store, "list").endswith("There are no tokens: a leader answers its own machine alone.\n")
