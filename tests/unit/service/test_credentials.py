"""A follower proves who it is with each answer; what is forged, changed, replayed or revoked is not believed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from paceline.core.errors import InputError, StoreError
from paceline.service.api.tokens import Scope, make
from paceline.service.credentials import Answer, Credentials, digest, read_token, signed
from paceline.store.queue import TokenRow
from paceline.store.store import Store

NONCE, NEXT = b"first question", b"second question"


def given(*names: str) -> tuple[dict[str, str], list[TokenRow]]:
    made = {name: make(name, Scope.FOLLOWER, None) for name in names}
    return {name: token for name, (token, _) in made.items()}, [row for _, row in made.values()]


def test_while_no_follower_was_given_a_token_all_are_believed() -> None:
    _, of_a_person = make("ann", Scope.ADMIN, None)
    for credentials in (Credentials(), Credentials(lambda: [of_a_person])):
        assert credentials.why_refused("bravo") == ""
        assert credentials.why_not_believed("bravo", NONCE, Answer(b"[]")) == ""
        assert credentials.why_not_believed("bravo", NONCE, signed(b"[]", "of another leader", "bravo", NONCE)) == ""


def test_from_the_first_token_on_every_follower_needs_its_own() -> None:
    tokens, rows = given("bravo")
    credentials = Credentials(lambda: rows)
    assert credentials.why_not_believed("bravo", NONCE, signed(b"[1]", tokens["bravo"], "bravo", NONCE)) == ""
    shows_none = credentials.why_not_believed("bravo", NONCE, Answer(b"[1]"))
    assert shows_none == "it shows no token: start it with --own-token-file"
    assert credentials.why_refused("charlie").startswith(
        "it has no token of its own: make one with `paceline token create charlie --scope follower`"
    )
    with_that_of_another = signed(b"[1]", tokens["bravo"], "charlie", NONCE)
    assert "no token of its own" in credentials.why_not_believed("charlie", NONCE, with_that_of_another)
    revoked = [TokenRow(**vars(rows[0]) | {"revoked_at": datetime.now(UTC)})]
    assert "no token of its own" in Credentials(lambda: revoked).why_refused("bravo-under-another-name")


def test_what_is_forged_changed_or_replayed_is_not_believed() -> None:
    tokens, rows = given("bravo", "charlie")
    credentials = Credentials(lambda: rows)
    real = signed(b"[1]", tokens["bravo"], "bravo", NONCE)
    others = signed(b"[1]", tokens["charlie"], "charlie", NONCE)
    not_believed = {
        "in another's name": signed(b"[1]", tokens["charlie"], "bravo", NONCE),
        "changed": Answer(b"[2]", real.proof),
        "with the proof of another": Answer(real.body, others.proof),
        "to an earlier question": signed(b"[1]", tokens["bravo"], "bravo", NEXT),
        "cut short": Answer(real.body, real.proof[:-1]),
        "one bit": Answer(real.body, bytes([real.proof[0] ^ 1, *real.proof[1:]])),
        "with too long a proof": Answer(real.body, real.proof + b"\0"),
        "who has read the store": signed(b"[1]", rows[0].digest, "bravo", NONCE),
    }
    assert credentials.why_not_believed("bravo", NONCE, real) == ""
    for how, answer in not_believed.items():
        assert credentials.why_not_believed("bravo", NONCE, answer) == "it does not have the token 'bravo'", how
    assert credentials.why_not_believed("bravo", NEXT, real), "replayed"


def test_the_token_is_in_no_answer() -> None:
    tokens, _ = given("bravo")
    answers = [signed(b"[1]", tokens["bravo"], "bravo", nonce) for nonce in (NONCE, NEXT)]
    for answer in answers:
        assert tokens["bravo"].encode() not in answer.proof
        assert digest(tokens["bravo"]).encode() not in answer.proof
    assert answers[0].proof != answers[1].proof


def test_a_token_that_is_revoked_expired_or_made_again_does_no_more(store: Store) -> None:
    now = datetime.now(UTC)
    token, row = make("bravo", Scope.FOLLOWER, None, now)
    old, expired = make("charlie", Scope.FOLLOWER, timedelta(hours=1), now - timedelta(hours=2))
    with store.queue.writing("make tokens") as writing:
        writing.put_token(row)
        writing.put_token(expired)
    credentials = Credentials(store.queue.tokens)
    answer = signed(b"[]", token, "bravo", NONCE)
    assert credentials.why_refused("charlie").startswith("its token expired on ")
    assert credentials.why_not_believed("charlie", NONCE, signed(b"[]", old, "charlie", NONCE))
    assert credentials.why_not_believed("bravo", NONCE, answer) == ""

    with store.queue.writing("revoke a token") as writing:
        writing.revoke_token("bravo")
    credentials.refresh()
    assert credentials.why_refused("bravo").startswith("its token was revoked on ")
    assert credentials.why_not_believed("bravo", NONCE, answer).startswith("its token was revoked on ")
    assert credentials.why_refused("under a new name"), "also when no token is valid any more"

    again, row = make("bravo", Scope.FOLLOWER, None)
    with store.queue.writing("make a token again") as writing:
        writing.put_token(row)
    credentials.refresh()
    assert credentials.why_not_believed("bravo", NONCE, answer) == "it does not have the token 'bravo'"
    assert credentials.why_not_believed("bravo", NONCE, signed(b"[]", again, "bravo", NONCE)) == ""


def test_a_store_that_is_away_changes_nothing() -> None:
    tokens, rows = given("bravo")
    is_away = False

    def read() -> list[TokenRow]:
        if is_away:
            raise StoreError("the database is gone")
        return rows

    credentials = Credentials(read)
    is_away = True
    credentials.refresh()
    assert credentials.why_not_believed("bravo", NONCE, signed(b"[]", tokens["bravo"], "bravo", NONCE)) == ""
    assert credentials.why_refused("charlie")
    with pytest.raises(StoreError):
        Credentials(read)


def test_the_follower_that_the_leader_starts_needs_no_stored_token() -> None:
    _, rows = given("bravo")
    credentials = Credentials(lambda: rows).with_own("home", "made by the leader")
    answer = signed(b"[]", "made by the leader", "home", NONCE)
    assert credentials.why_not_believed("home", NONCE, answer) == ""
    assert credentials.why_not_believed("home", NONCE, signed(b"[]", "a guess", "home", NONCE))

    _, of_home = given("home")
    revoked = [*rows, TokenRow(**vars(of_home[0]) | {"revoked_at": datetime.now(UTC)})]
    assert Credentials(lambda: [*rows, *of_home]).with_own("home", "made by the leader").why_refused("home") == ""
    refusing = Credentials(lambda: revoked).with_own("home", "made by the leader")
    assert refusing.why_not_believed("home", NONCE, answer).startswith("its token was revoked on ")


@pytest.mark.parametrize("text", ["", "\n", "x" * 65])
def test_a_file_without_a_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own-token"
    path.write_text(text)
    with pytest.raises(InputError, match="holds no token of a follower") as refusal:
        read_token(path)
    assert refusal.value.code == "not-a-token"
    with pytest.raises(InputError, match="cannot be read"):
        read_token(tmp_path)
