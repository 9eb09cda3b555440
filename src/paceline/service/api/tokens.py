"""Tokens: made once, stored as digests, compared in a time that does not depend on how much was right."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Literal

from paceline.core.errors import InputError
from paceline.store.queue import AuditRow, TokenRow
from paceline.store.store import Store

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
SHORTEST = 32  # characters of a token that somebody else has made
AUDITED = 10_000  # newest entries of the audit log that revocations are looked for in
_FRESH = 1.0  # seconds for which rows that were read are used
_REVOKED = re.compile(r"token revoke|DELETE /api/v\d+/tokens/\S+")  # as the audit log has it


class Scope(IntEnum):
    """What a token may do; each holds those before it."""

    READ = 1
    SUBMIT = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """As people write it."""
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Scope:
        """The scope of this name."""
        return cls[word.upper()]


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    name: str
    scope: Scope


LOCAL = Caller("local", Scope.ADMIN)  # whoever sits at this machine, while nobody has made a token


def digest(token: str) -> str:
    """What is stored of a token: it is random and long, so that a plain hash cannot be guessed back."""
    return hashlib.sha256(token.encode()).hexdigest()


def make(name: str, scope: Scope, lasts: timedelta | None, now: datetime | None = None) -> tuple[str, TokenRow]:
    """A new token, to be shown once, and what is stored of it."""
    token = f"pl_{secrets.token_urlsafe(32)}"
    return token, row_of(token, name, scope, lasts, now)


def row_of(token: str, name: str, scope: Scope, lasts: timedelta | None, now: datetime | None = None) -> TokenRow:
    """What is stored of a token."""
    if not NAME.fullmatch(name):
        message = f"a token cannot be called '{name}': letters, digits, . _ @ and -, at most 64"
        raise InputError("invalid-token-name", message, key="name", value=name)
    if len(token) < SHORTEST:
        message = f"the token has {len(token)} characters, which can be guessed: give at least {SHORTEST}"
        raise InputError("token-too-short", message, key="token")
    now = now or datetime.now(UTC)
    return TokenRow(name, digest(token), (scope.word,), now, now + lasts if lasts is not None else None)


def find(rows: Iterable[TokenRow], token: str, now: datetime) -> TokenRow | None:
    """Whose token it is, if it holds."""
    row = _whose(rows, token)
    return None if row is None or has_expired(row, now) else row


def has_expired(row: TokenRow, now: datetime) -> bool:
    """Whether its time is over."""
    return row.expires_at is not None and row.expires_at <= now


@dataclass(frozen=True)
class TokenStatus:
    """A token, and whether it still holds."""

    name: str
    state: Literal["valid", "expired", "revoked"]
    since: datetime | None  # it no longer holds
    row: TokenRow | None  # None of one that was revoked: it is forgotten but for the audit log


def token_statuses(rows: Iterable[TokenRow], audited: Iterable[AuditRow], now: datetime) -> list[TokenStatus]:
    """All tokens that are stored, then those that were revoked according to `audited`, the newest first."""
    statuses: dict[str, TokenStatus] = {}
    for row in rows:
        if has_expired(row, now):
            statuses[row.name] = TokenStatus(row.name, "expired", row.expires_at, row)
        else:
            statuses[row.name] = TokenStatus(row.name, "valid", None, row)
    for entry in audited:
        if _REVOKED.fullmatch(entry.what) and entry.outcome in ("ok", "204"):
            statuses.setdefault(entry.subject, TokenStatus(entry.subject, "revoked", entry.at, None))
    return list(statuses.values())


def _whose(rows: Iterable[TokenRow], token: str) -> TokenRow | None:
    """Every row is compared, so that the time it takes reveals nothing."""
    hashed = digest(token)
    owners = [row for row in rows if hmac.compare_digest(row.digest, hashed)]
    return owners[-1] if owners else None


class Tokens:
    """The tokens in the store, looked up again every second: another process may make or revoke one."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: list[TokenRow] = []
        self._looked_at: float | None = None

    def rows(self) -> list[TokenRow]:
        """All of them."""
        with self._lock:
            if self._looked_at is None or self._clock() - self._looked_at > _FRESH:
                self._rows = self._store.queue.tokens()
                self._looked_at = self._clock()
            return self._rows

    def forget(self) -> None:
        """Look into the store at the next question."""
        with self._lock:
            self._looked_at = None

    def caller(self, token: str) -> Caller | None:
        """Whose token it is, if it is one that holds."""
        row = find(self.rows(), token, datetime.now(UTC))
        if row is None:
            return None
        return Caller(row.name, max((Scope.of(word) for word in row.scopes), default=Scope.READ))

    def why_not(self, token: str) -> str:
        """Why a token does not let in; only who has it learns that there was such a one."""
        with self._lock:
            rows = self._rows  # as they were when it was not let in
        row = _whose(rows, token)
        if row is None or row.expires_at is None:
            return "this token is not known here"
        return f"the token '{row.name}' has expired, on {row.expires_at:%Y-%m-%d at %H:%M} UTC"
