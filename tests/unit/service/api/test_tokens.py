"""How long a token holds, how far it reaches, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from paceline.service.api.tokens import (
    Caller,
    Scope,
    Session,
    Sessions,
    Tokens,
    digest,
    find,
    make,
    row_of,
    state_of,
)
from paceline.store import open_store
from paceline.store.queue import TokenRow
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
    assert (state_of(row, almost), state_of(row, NOON + HOUR)) == ("valid", "expired")
    assert (find([row], token, almost), find([row], token, NOON + HOUR)) == (row, None)
    _, eternal = make("ci", Scope.READ, None, NOON)
    assert state_of(eternal, NOON + 10_000 * HOUR) == "valid"


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


def test_a_revoked_token_is_so_whether_or_not_it_has_expired() -> None:
    token, row = make("ci", Scope.READ, HOUR, NOON)
    revoked = replace(row, revoked_at=NOON)
    assert [state_of(one, NOON) for one in (row, revoked)] == ["valid", "revoked"]
    assert [state_of(one, NOON + 2 * HOUR) for one in (row, revoked)] == ["expired", "revoked"]
    assert find([revoked], token, NOON) is None


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


class TestSessions:
    """What a browser gets for a token: short, signed, and over when the token is."""

    def test_a_session_lasts_while_it_is_used_and_a_day_at_most(self) -> None:
        _, row = make("ann@lab.org", Scope.READ, None, NOON)
        now = 1_000_000.0
        sessions = Sessions(b"secret", clock=lambda: now)
        cookie = sessions.begin(row)
        assert row.digest not in cookie
        renewals = 0
        for _ in range(10_000):
            session = sessions.read(cookie)
            if session is None:
                break
            renewed = sessions.renewed(session)
            renewals += renewed is not None
            cookie = renewed or cookie
            now += 600.0
        assert 86_400 <= now - 1_000_000.0 <= 86_400 + 600
        assert 24 <= renewals <= 48

    def test_a_session_that_is_not_used_is_over_after_an_hour(self) -> None:
        now = 0.0
        sessions = Sessions(b"secret", clock=lambda: now)
        cookie = sessions.begin(make("ann", Scope.READ, None, NOON)[1])
        now = 3599.0
        assert sessions.read(cookie) is not None
        now = 3600.0
        assert sessions.read(cookie) is None

    def test_nobody_else_makes_or_changes_a_session(self) -> None:
        sessions = Sessions(b"secret", clock=lambda: 0.0)
        cookie = sessions.begin(make("ann", Scope.READ, None, NOON)[1])
        forged = [
            "",
            ".",
            "....",
            cookie[:-1],
            "bob" + cookie[3:],
            cookie.replace(".3600.", ".9999."),
            "\u00e9." + cookie,
        ]
        assert [sessions.read(one) for one in forged] == [None] * len(forged)
        assert Sessions(b"other", clock=lambda: 0.0).read(cookie) is None

    def test_a_session_ends_with_the_token_that_began_it(self, store: Store) -> None:
        tokens, sessions = Tokens(store), Sessions(b"secret")

        def caller(cookie: str) -> Caller | None:
            tokens._looked_at = None
            session = sessions.read(cookie)
            assert isinstance(session, Session)
            return tokens.of_session(session)

        _, row = make("ann", Scope.SUBMIT, None)
        put(store, row)
        first = sessions.begin(row)
        assert caller(first) == Caller("ann", Scope.SUBMIT)
        _, again = make("ann", Scope.READ, None)
        put(store, again)
        second = sessions.begin(again)
        assert (caller(first), caller(second)) == (None, Caller("ann", Scope.READ))
        with store.queue.writing("revoke a token") as writing:
            writing.revoke_token("ann")
        assert caller(second) is None
