"""How long a token holds, how far it reaches, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from paceline.service.api.tokens import (
    Caller,
    Scope,
    Tokens,
    digest,
    find,
    has_expired,
    make,
    row_of,
    token_statuses,
)
from paceline.store import open_store
from paceline.store.queue import AuditRow, TokenRow
from paceline.store.store import Store
from support.refused import refused

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


def put(store: Store, row: TokenRow) -> None:
    with store.queue.writing("keep a token") as writing:
        writing.put_token(row)


@pytest.mark.parametrize(("lasts", "expires_at"), [(HOUR, NOON + HOUR), (None, None)])
def test_a_token_holds_for_as_long_as_it_was_made_for(lasts: timedelta | None, expires_at: datetime | None) -> None:
    token, row = make("ci", Scope.SUBMIT, lasts, NOON)
    assert row == TokenRow("ci", digest(token), ("submit",), NOON, expires_at)


def test_a_token_is_made_now_unless_another_time_is_given() -> None:
    before = datetime.now(UTC)
    _, row = make("ci", Scope.READ, HOUR)
    assert before <= row.created_at <= datetime.now(UTC)


def test_a_token_no_longer_holds_from_its_last_moment_on() -> None:
    token, row = make("ci", Scope.READ, HOUR, NOON)
    almost = NOON + HOUR - timedelta(microseconds=1)
    assert (has_expired(row, almost), has_expired(row, NOON + HOUR)) == (False, True)
    assert (find([row], token, almost), find([row], token, NOON + HOUR)) == (row, None)
    _, eternal = make("ci", Scope.READ, None, NOON)
    assert not has_expired(eternal, NOON + 10_000 * HOUR)


def test_a_token_of_somebody_elses_making_is_long_enough() -> None:
    assert row_of("x" * 32, "ci", Scope.READ, None).digest == digest("x" * 32)
    with refused("token-too-short", key="token"):
        row_of("x" * 31, "ci", Scope.READ, None)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a" * 65, "ä"])
def test_a_token_has_a_plain_name(name: str) -> None:
    with refused("invalid-token-name", key="name", value=name):
        make(name, Scope.READ, None)


def test_a_scope_is_called_by_its_word() -> None:
    assert [Scope.of(word) for word in ("read", "submit", "ADMIN")] == [Scope.READ, Scope.SUBMIT, Scope.ADMIN]


def test_only_a_revocation_that_was_done_makes_a_token_revoked() -> None:
    rows = [make("valid", Scope.READ, None, NOON)[1], make("old", Scope.READ, HOUR, NOON - 2 * HOUR)[1]]
    audited = [
        AuditRow(NOON, "local", "token revoke", "by-hand", "ok"),
        AuditRow(NOON, "boss", "DELETE /api/v1/tokens/over-http", "over-http", "204"),
        AuditRow(NOON, "boss", "DELETE /api/v1/tokens/absent", "absent", "404"),
        AuditRow(NOON, "local", "token create", "made", "ok"),
        AuditRow(NOON, "local", "token revoke", "valid", "ok"),  # it was made again later
        AuditRow(NOON - HOUR, "local", "token revoke", "by-hand", "ok"),
    ]
    statuses = token_statuses(rows, audited, NOON)
    assert [(one.name, one.state, one.since) for one in statuses] == [
        ("valid", "valid", None),
        ("old", "expired", NOON - HOUR),
        ("by-hand", "revoked", NOON),
        ("over-http", "revoked", NOON),
    ]


def test_tokens_are_looked_up_again_once_a_second_has_passed(store: Store) -> None:
    now = 100.0
    tokens = Tokens(store, clock=lambda: now)
    assert tokens.rows() == []
    put(store, make("ci", Scope.READ, None, NOON)[1])
    now = 101.0
    assert tokens.rows() == []
    now = 101.001
    assert [row.name for row in tokens.rows()] == ["ci"]
    put(store, make("more", Scope.READ, None, NOON)[1])
    assert [row.name for row in tokens.rows()] == ["ci"]
    tokens.forget()
    assert [row.name for row in tokens.rows()] == ["ci", "more"]


@pytest.mark.parametrize(
    ("scopes", "scope"), [(("read", "admin"), Scope.ADMIN), (("submit", "read"), Scope.SUBMIT), ((), Scope.READ)]
)
def test_a_caller_reaches_as_far_as_the_highest_of_its_scopes(
    store: Store, scopes: tuple[str, ...], scope: Scope
) -> None:
    put(store, TokenRow("ci", digest("secret"), scopes, NOON, None))
    tokens = Tokens(store)
    assert tokens.caller("secret") == Caller("ci", scope)
    assert tokens.caller("other") is None


def test_only_who_has_a_token_that_has_expired_learns_that_it_has(store: Store) -> None:
    expired, row = make("old", Scope.READ, HOUR, NOON)
    eternal, other = make("eternal", Scope.READ, None, NOON)
    put(store, row)
    put(store, other)
    tokens = Tokens(store)
    tokens.rows()
    unknown = "this token is not known here"
    assert tokens.why_not(expired) == "the token 'old' has expired, on 2026-03-01 at 13:00 UTC"
    assert (tokens.why_not("guess"), tokens.why_not(eternal)) == (unknown, unknown)
