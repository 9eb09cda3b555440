"""Tokens: made once, stored as digests, compared in a time that does not depend on how much was right.

The pages have sessions instead, which a token begins: signed, short, and over when the token is.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum

from paceline.core.errors import InputError
from paceline.service.admission import Quotas
from paceline.service.api.errors import Refused
from paceline.service.credentials import digest, is_followers, state_of
from paceline.service.jobs import Job
from paceline.store.queue import TokenRow
from paceline.store.store import Store

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
SHORTEST = 32  # characters of a token that somebody else has made
IDLE = timedelta(hours=1)  # after which a session is over that was not used
LONGEST_SESSION = timedelta(hours=24)  # after which it is over in any case
_FRESH = 1.0  # seconds for which rows that were read are used


class Scope(IntEnum):
    """What a token may do; each holds those before it."""

    FOLLOWER = 0  # nothing here: it only proves who a follower is
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
    quotas: Quotas = field(default_factory=Quotas)

    def may_change(self, job: Job) -> bool:
        """Whether it is a job of theirs, or they may change those of everybody."""
        return self.scope >= Scope.ADMIN or job.submitted_by == self.name


LOCAL = Caller("local", Scope.ADMIN)  # whoever sits at this machine, while nobody has made a token


def make(
    name: str, scope: Scope, lasts: timedelta | None, now: datetime | None = None, quotas: Quotas | None = None
) -> tuple[str, TokenRow]:
    """A new token, to be shown once, and what is stored of it."""
    token = f"pl_{secrets.token_urlsafe(32)}"
    return token, row_of(token, name, scope, lasts, now, quotas)


def row_of(
    token: str,
    name: str,
    scope: Scope,
    lasts: timedelta | None,
    now: datetime | None = None,
    quotas: Quotas | None = None,
) -> TokenRow:
    """What is stored of a token."""
    if not NAME.fullmatch(name):
        message = f"a token cannot be called '{name}': letters, digits, . _ @ and -, at most 64"
        raise InputError("invalid-token-name", message, key="name", value=name)
    if len(token) < SHORTEST:
        message = f"the token has {len(token)} characters, which can be guessed: give at least {SHORTEST}"
        raise InputError("token-too-short", message, key="token")
    now = now or datetime.now(UTC)
    limits = (quotas or Quotas()).model_dump(exclude_none=True)
    return TokenRow(name, digest(token), (scope.word,), now, now + lasts if lasts is not None else None, limits)


def check_kind(row: TokenRow, earlier: Iterable[TokenRow]) -> None:
    """Refuse a new token in place of another kind: of a follower's, what it has proven would be forgotten."""
    replaced = next((one for one in earlier if one.name == row.name), None)
    if replaced is not None and is_followers(replaced) != is_followers(row):
        whose = "of a follower" if is_followers(replaced) else "of a person or program"
        message = f"there is a token '{row.name}' {whose}: give this one another name"
        raise InputError("token-of-another-kind", message, key="name", value=row.name)


def find(rows: Iterable[TokenRow], token: str, now: datetime) -> TokenRow | None:
    """Whose token it is, if it is valid."""
    row = _whose(rows, token)
    return None if row is None or state_of(row, now) != "valid" else row


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

    @property
    def is_fresh(self) -> bool:
        """Whether the next question needs no look into the store."""
        looked_at = self._looked_at
        return looked_at is not None and self._clock() - looked_at <= _FRESH

    def caller(self, token: str) -> Caller | None:
        """Whose token it is, if it is valid."""
        row = find(self.rows(), token, datetime.now(UTC))
        return None if row is None else caller_of(row)

    def of_session(self, session: Session) -> Caller | None:
        """Who began a session, if the token that they began it with is still valid."""
        valid = (row for row in self.rows() if state_of(row, datetime.now(UTC)) == "valid")
        row = next((row for row in valid if (row.name, fingerprint(row)) == (session.name, session.token)), None)
        return None if row is None else caller_of(row)

    def why_not(self, token: str) -> str:
        """Why a token does not let in; only who has it learns that there was such a one."""
        with self._lock:
            rows = self._rows  # as they were when it was not let in
        row = _whose(rows, token)
        if row is not None and row.revoked_at is not None:
            return f"the token '{row.name}' was revoked, on {row.revoked_at:%Y-%m-%d at %H:%M} UTC"
        if row is None or row.expires_at is None:
            return "this token is not known here"
        return f"the token '{row.name}' has expired, on {row.expires_at:%Y-%m-%d at %H:%M} UTC"


def check_owner(caller: Caller, job: Job) -> None:
    """Refuse to change the job of somebody else."""
    if not caller.may_change(job):
        message = f"job '{job.id}' is of '{job.submitted_by}', and '{caller.name}' may cancel its own alone"
        raise Refused(403, "not-yours", message, "ask its owner, or somebody who has a token with the scope admin")


def caller_of(row: TokenRow) -> Caller:
    """Who has a token."""
    scope = max((Scope.of(word) for word in row.scopes), default=Scope.READ)
    return Caller(row.name, scope, Quotas() if scope is Scope.ADMIN else Quotas.model_validate(row.quotas))


def fingerprint(row: TokenRow) -> str:
    """What ties a session to one token, not to the next one of the same name; nothing follows from it."""
    return digest(row.digest)[:16]


@dataclass(frozen=True)
class Session:
    """Somebody who signed in with a token."""

    name: str
    token: str  # its fingerprint
    begun: int  # in seconds since 1970, as all times here
    until: int


class Sessions:
    """Signs sessions, and reads those that it has signed; nothing of them is stored."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._clock = clock

    def begin(self, row: TokenRow) -> str:
        """The cookie of somebody who has just shown their token."""
        return self._signed(row.name, fingerprint(row), int(self._clock()))

    def read(self, cookie: str) -> Session | None:
        """The session of a cookie, unless it is over or somebody else's work."""
        text, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._signature(text).encode(), signature.encode()):
            return None
        name, token, begun, until = text.rsplit(".", 3)
        session = Session(name, token, int(begun), int(until))
        return session if self._clock() < session.until else None

    def renewed(self, session: Session) -> str | None:
        """The cookie of a session that is used on, once half of its time has passed and if it may last longer."""
        left = session.until - self._clock()
        at_end = session.until >= session.begun + int(LONGEST_SESSION.total_seconds())
        return None if at_end or left > IDLE.total_seconds() / 2 else self._signed(*astuple(session)[:3])

    def _signed(self, name: str, token: str, begun: int) -> str:
        latest = begun + int(LONGEST_SESSION.total_seconds())
        until = min(int(self._clock() + IDLE.total_seconds()), latest)
        text = f"{name}.{token}.{begun}.{until}"
        return f"{text}.{self._signature(text)}"

    def _signature(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()
