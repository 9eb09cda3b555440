"""How a follower proves with each answer that it has the token of its name, of which the leader stores a digest alone.

The proof is that of SCRAM (RFC 5802): the token, hidden by an HMAC of the answer and of a number that the leader uses
once. The digest is the key of the HMAC, and what the token is compared with. So an answer that was changed, or sent
before, proves nothing; who listens learns no token, and neither does who reads the store.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paceline.core.errors import InputError, StoreError

if TYPE_CHECKING:
    from paceline.store.queue import TokenRow

TokenState = Literal["valid", "expired", "revoked"]
FOLLOWER = "follower"  # the scope of a follower's token, whose name is that of the follower
_LONGEST = hashlib.sha512().digest_size  # of a token that can be hidden


def digest(token: str) -> str:
    """What is stored of a token: it is random and long, so that a plain hash cannot be guessed back."""
    return hashlib.sha256(token.encode()).hexdigest()


def state_of(row: TokenRow, now: datetime) -> TokenState:
    """Whether a token lets in, or why it does not."""
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "valid"


def is_followers(row: TokenRow) -> bool:
    """Whether a token is that of a follower, and not of a person or program."""
    return FOLLOWER in row.scopes


@dataclass(frozen=True)
class Answer:
    """What a follower answers, and the proof that it does; empty if it has no token."""

    body: bytes
    proof: bytes = b""


def read_token(path: Path) -> str:
    """The token in a file."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("unreadable-file", f"the token in {path} cannot be read: {error}", value=str(path)) from None
    if not 0 < len(token.encode()) <= _LONGEST:
        message = f"{path} holds no token of a follower: `paceline token create NAME --scope follower` makes one"
        raise InputError("not-a-token", message, value=str(path))
    return token


def signed(body: bytes, token: str, follower: str, nonce: bytes) -> Answer:
    """The answer of a follower that has this token; without one it proves nothing."""
    if not token:
        return Answer(body)
    return Answer(body, _hidden(token.encode(), _pad(digest(token), follower, nonce, body)))


class Credentials:
    """Which followers a leader believes; while none was ever given a token, all of them."""

    def __init__(
        self, read: Callable[[], Iterable[TokenRow]] = lambda: (), own: Mapping[str, str] | None = None
    ) -> None:
        """`own` has digests, by name, of followers that the leader itself has started, whose tokens are not stored."""
        self._read = read
        self._own = dict(own or {})
        self._rows = self._stored()

    def with_own(self, follower: str, token: str) -> Credentials:
        """The same, with a follower that the leader started itself."""
        return Credentials(self._read, {follower: digest(token)})

    @property
    def are_needed(self) -> bool:
        """Whether a follower was ever given a token."""
        return bool(self._rows)

    def refresh(self) -> None:
        """Look into the store: another process may make or revoke a token. While it is away, nothing changes."""
        with suppress(StoreError):
            self._rows = self._stored()

    def _stored(self) -> dict[str, TokenRow]:
        return {row.name: row for row in self._read() if is_followers(row)}

    def why_refused(self, follower: str) -> str:
        """Why nothing that a follower could answer would be believed; empty if it may prove itself."""
        row = self._rows.get(follower)
        if row is None:
            if not self.are_needed or follower in self._own:
                return ""
            return (
                f"it has no token of its own: make one with `paceline token create {follower} --scope follower`, and "
                "start it with --own-token-file"
            )
        state = state_of(row, datetime.now(UTC))
        since = row.revoked_at if state == "revoked" else row.expires_at
        return "" if state == "valid" else f"its token {_ENDED[state]} on {since:%Y-%m-%d at %H:%M} UTC"

    def why_not_believed(self, follower: str, nonce: bytes, answer: Answer) -> str:
        """Why an answer is not taken for that of a follower; empty if it is."""
        why = self.why_refused(follower)
        if why or not self.are_needed:
            return why
        if not answer.proof:
            return "it shows no token: start it with --own-token-file"
        stored = self._own.get(follower) or self._rows[follower].digest
        token = _hidden(answer.proof, _pad(stored, follower, nonce, answer.body))
        is_proven = hmac.compare_digest(hashlib.sha256(token).hexdigest(), stored)
        return "" if is_proven else f"it does not have the token '{follower}'"


_ENDED = {"revoked": "was revoked", "expired": "expired"}


def _pad(stored: str, follower: str, nonce: bytes, body: bytes) -> bytes:
    """What hides a token in one answer to one question."""
    return hmac.digest(stored.encode(), b"\0".join((follower.encode(), nonce.hex().encode(), body)), "sha512")


def _hidden(token: bytes, pad: bytes) -> bytes:
    """A token that is hidden, or one that is no longer."""
    return bytes(one ^ other for one, other in zip(token, pad, strict=False))
