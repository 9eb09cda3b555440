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
from paceline.core.errors import InputError
from paceline.service.api.tokens import Scope, make
from paceline.store import open_store
from paceline.store.store import Store
from support.refused import refused

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
    assert lines["unwanted"].split()[:3] == ["read", "revoked", "since"]

    told = listed(store)
    assert [(one["state"], one["since"]) for one in told.values()][:3] == [
        ("valid", None),
        ("valid", None),
        ("expired", (began + DAY).isoformat()),
    ]
    assert told["old"]["expires_at"] == told["old"]["since"]
    revoked = {row.name: row.revoked_at for row in store.queue.tokens()}["unwanted"]
    assert revoked is not None
    assert (told["unwanted"]["state"], told["unwanted"]["since"]) == ("revoked", revoked.isoformat())


def test_a_token_that_is_made_again_is_not_called_revoked(store: Store) -> None:
    add(store, "ann")
    asked(store, "revoke", "ann")
    asked(store, "create", "ann")
    assert [(name, one["state"]) for name, one in listed(store).items()] == [("ann", "valid")]


def test_the_list_says_who_is_let_in_when_no_token_is_valid(store: Store) -> None:
    assert asked(store, "list") == "There are no tokens: a leader answers its own machine alone.\n"
    add(store, "ann")
    asked(store, "revoke", "ann")
    assert asked(store, "list").splitlines()[-1] == (
        "No token is valid: a leader lets nobody in until `paceline token create` makes one."
    )


def test_the_token_of_a_follower_is_valid_for_ever_and_says_where_it_belongs(store: Store) -> None:
    made = CliRunner().invoke(
        token.command, ["create", "bravo", "--scope", "follower", "--store", str(store.location.path)]
    )
    assert "on the machine 'bravo', for `paceline follower --own-token-file FILE`" in made.stderr
    assert "From now on every follower needs a token" in made.stderr
    second = CliRunner().invoke(
        token.command, ["create", "charlie", "--scope", "follower", "--store", str(store.location.path)]
    )
    assert "From now on" not in second.stderr
    assert [one["expires_at"] for one in listed(store).values()] == [None, None]
    assert asked(store, "list").splitlines()[-1] == (
        "There are no tokens of people: a leader answers its own machine alone."
    )


def test_a_follower_and_a_person_cannot_have_one_name(store: Store) -> None:
    asked(store, "create", "bravo", "--scope", "follower")
    asked(store, "revoke", "bravo")
    done = CliRunner().invoke(token.command, ["create", "bravo", "--store", str(store.location.path)])
    assert isinstance(done.exception, InputError) and done.exception.code == "token-of-another-kind"
    asked(store, "create", "bravo", "--scope", "follower")


def test_a_token_has_the_quotas_that_it_is_made_with_until_it_is_given_others(store: Store) -> None:
    asked(store, "create", "ann", "--max-queued", "5", "--machine-hours", "1.5")
    assert listed(store)["ann"]["quotas"] == {"max_queued": 5, "machine_hours": 1.5}
    digests = [row.digest for row in store.queue.tokens()]
    limited = asked(store, "limit", "ann", "--max-running", "2", "--max-priority", "-10")
    assert limited == "The token 'ann' has max running 2, max priority -10\n"
    assert listed(store)["ann"]["quotas"] == {"max_running": 2, "max_priority": -10}
    assert [row.digest for row in store.queue.tokens()] == digests, "it is the same token"
    assert asked(store, "limit", "ann") == "The token 'ann' has no quotas\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("create", "boss", "--scope", "admin", "--max-queued", "5"), "quota-of-admin"),
        (("create", "bravo", "--scope", "follower", "--max-queued", "5"), "quota-of-follower"),
        (("limit", "nobody", "--max-queued", "5"), "unknown-token"),
        (("revoke", "nobody"), "unknown-token"),
    ],
)
def test_a_quota_that_would_bind_nobody_is_refused(store: Store, words: tuple[str, ...], code: str) -> None:
    done = CliRunner().invoke(token.command, [*words, "--store", str(store.location.path)])
    assert isinstance(done.exception, InputError) and done.exception.code == code


@pytest.mark.parametrize("time", ["90", "soon", "d", "1.5"])
def test_a_time_without_a_unit_is_refused(store: Store, time: str) -> None:
    wanted = ["create", "alfa", "--scope", "read", "--expires", time, "--store", str(store.location.path)]
    with refused("not-a-duration", key="--expires", value=time):
        CliRunner().invoke(token.command, wanted, catch_exceptions=False)
    assert listed(store) == {}


@pytest.mark.parametrize(
    ("flag", "value"), [("--machine-hours", "nan"), ("--machine-hours", "inf"), ("--max-queued", "99999999")]
)
@pytest.mark.parametrize("verb", ["create", "limit"])
def test_a_quota_that_is_none_is_refused(store: Store, verb: str, flag: str, value: str) -> None:
    with refused("invalid-value", key=flag, says=f"{flag} {value}: must be less than or equal to 1000000"):
        CliRunner().invoke(token.command, [verb, "ann", flag, value], catch_exceptions=False)
