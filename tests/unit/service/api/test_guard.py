"""The guard in front of any application: what it lets through, what it answers itself, and what it notes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from paceline.core.errors import StoreError
from paceline.service.api.guard import Buckets, Guard, Limits, Turns, _too_many, is_loopback, needed, needs
from paceline.service.api.tokens import LOCAL, Scope, Sessions, Tokens, make
from paceline.store import open_store
from paceline.store.queue import AuditRow
from paceline.store.store import Store

LOOPBACK = ("127.0.0.1", 1234)


def a_route(methods: str, path: str, scope: Scope | None) -> Route:
    @needs(scope)
    def endpoint(_: Request) -> Response:
        raise AssertionError("the application behind the guard answers")

    return Route(path, endpoint, methods=methods.split())


ROUTES = [
    a_route("GET OPTIONS", "/api/v1/jobs", Scope.READ),
    a_route("POST", "/api/v1/jobs", Scope.SUBMIT),
    a_route("POST", "/api/v1/jobs/{job}/cancel", Scope.SUBMIT),
    a_route("POST", "/api/v1/validate", Scope.SUBMIT),
    a_route("GET", "/api/v1/health", None),
    a_route("POST", "/api/v1/health", None),
    a_route("GET", "/api/v1/tokens", Scope.ADMIN),
    a_route("DELETE", "/api/v1/tokens/{name}", Scope.ADMIN),
    a_route("GET POST", "/login", None),
    a_route("GET", "/jobs", Scope.READ),
    a_route("POST", "/submit", Scope.SUBMIT),
    a_route("POST", "/submit/check", Scope.SUBMIT),
    Route("/api/v1/undeclared", lambda _: Response(), methods=["GET"]),
]


@dataclass
class Front:
    """A guard, the application behind it, and all that went to and fro."""

    store: Store
    is_local: bool = True
    limits: Limits = field(default_factory=Limits)
    proxies: tuple[str, ...] = ()
    subject: str = ""
    callers: list[Any] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    fail: Callable[[Send], Any] | None = None

    def __post_init__(self) -> None:
        self.tokens = Tokens(self.store)
        self.sessions = Sessions(b"secret")
        self.guard = Guard(
            self._app, self.store, self.tokens, self.sessions, ROUTES, self.is_local, self.limits, self.proxies
        )

    async def _app(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            self.callers.append(scope["type"])
            return
        self.callers.append(scope["state"]["caller"])
        scope["state"]["subject"] = self.subject
        message = await receive()
        assert message["more_body"] is False
        self.bodies.append(message["body"])
        assert (await receive())["type"] == "http.disconnect"
        if self.fail is not None:
            await self.fail(send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    def ask(
        self,
        method: str = "GET",
        path: str = "/api/v1/jobs",
        *parts: bytes,
        client: tuple[str, int] | None = LOOPBACK,
        ends: bool = True,
        **headers: str,
    ) -> tuple[int, dict[str, str], bytes]:
        """One request, with the body in these parts; the status, headers and body of the answer."""
        given = {"host": "localhost"} | {name.replace("_", "-"): value for name, value in headers.items()}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value != "-"]
        scope = {"type": "http", "method": method, "path": path, "headers": raw, "client": client}
        messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        messages += [{"type": "http.request", "body": b""}] if ends else []
        incoming: Iterator[Message] = iter([*messages, {"type": "http.disconnect"}])
        sent: list[Message] = []

        async def receive() -> Message:
            return next(incoming)

        async def send(message: Message) -> None:
            sent.append(message)

        asyncio.run(self.guard(scope, receive, send))
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
        names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], names, sent[1]["body"]

    def code(self, *words: Any, **headers: Any) -> tuple[int, str]:
        """The status and code of a refusal."""
        status, _, body = self.ask(*words, **headers)
        return status, json.loads(body)["error"]["code"]

    def add_token(self, name: str, scope: Scope) -> str:
        token, row = make(name, scope, None)
        with self.store.queue.writing("keep a token") as writing:
            writing.put_token(row)
        self.tokens._looked_at = None
        return f"Bearer {token}"

    def audit(self) -> list[tuple[str, str, str, str]]:
        rows = reversed(self.store.queue.audited(1000))
        return [(row.who, row.what, row.subject, row.outcome) for row in rows]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def front(store: Store) -> Front:
    return Front(store)


def test_the_application_gets_the_whole_body_and_who_sends_it(front: Front) -> None:
    status, _, body = front.ask("POST", "/api/v1/jobs", b"[1,", b"2]", content_type="Application/JSON; charset=utf-8")
    assert (status, body) == (200, b"done")
    assert (front.callers, front.bodies) == ([LOCAL], [b"[1,2]"])


def test_the_start_and_end_of_a_server_pass_and_other_protocols_do_not(front: Front) -> None:
    async def receive() -> Message:
        return {}

    async def send(_: Message) -> None:
        return

    for kind in ("lifespan", "websocket"):
        asyncio.run(front.guard({"type": kind}, receive, send))
    assert front.callers == ["lifespan"]


@pytest.mark.parametrize(("path", "cached"), [("/api/v1/jobs", "no-store"), ("/jobs", None), ("/apiary", None)])
def test_pages_may_be_kept_by_a_browser_and_answers_of_the_api_may_not(
    front: Front, path: str, cached: str | None
) -> None:
    _, headers, _ = front.ask("GET", path)
    assert (headers["x-content-type-options"], headers.get("cache-control")) == ("nosniff", cached)
    assert ("content-security-policy" in headers) is (cached is not None)


class TestWhoIsLetIn:
    """By a token, or by sitting at the machine."""

    @pytest.mark.parametrize(
        ("is_local", "address", "has_tokens", "status"),
        [
            (True, "127.0.0.1", False, 200),
            (True, "127.0.0.1", True, 401),
            (True, "203.0.113.7", False, 401),
            (False, "127.0.0.1", False, 401),
        ],
    )
    def test_without_a_token_only_who_sits_at_a_machine_that_has_none(
        self, store: Store, is_local: bool, address: str, has_tokens: bool, status: int
    ) -> None:
        front = Front(store, is_local=is_local)
        if has_tokens:
            front.add_token("somebody", Scope.READ)
        assert front.ask(client=(address, 1))[0] == status

    @pytest.mark.parametrize("path", ["/api/v1/tokens\n", "/api/v1/tokens\x00", "/\x7f", "/\x85", "/\u2028", "/a\tb"])
    def test_a_path_with_control_characters_is_no_path(self, front: Front, path: str) -> None:
        reader, admin = front.add_token("reader", Scope.READ), front.add_token("admin", Scope.ADMIN)
        assert front.code("GET", path, authorization=reader) == (400, "unreadable")
        assert front.code("GET", path, authorization=admin) == (400, "unreadable")
        assert front.callers == []

    def test_who_comes_from_nowhere_is_not_at_the_machine(self, front: Front) -> None:
        assert front.code(client=None) == (401, "unauthorized")
        assert front.audit() == [("unknown", "GET /api/v1/jobs", "", "401 unauthorized")]

    def test_an_answer_says_whether_there_was_a_token(self, front: Front) -> None:
        front.add_token("somebody", Scope.READ)
        messages = [
            json.loads(front.ask(authorization=text)[2])["error"]["message"] for text in ("-", "Bearer of nothing")
        ]
        assert messages == ["this leader needs a token", "this token is not known here"]

    def test_a_token_counts_only_as_a_bearers(self, front: Front) -> None:
        bearer = front.add_token("somebody", Scope.READ)
        token = bearer.removeprefix("Bearer ")
        assert front.ask(authorization=bearer.lower().replace(token.lower(), token))[0] == 200
        assert front.ask(authorization=f"Basic {token}")[0] == 401
        assert front.ask(cookie=f"paceline_session={token}")[0] == 401

    def test_a_session_lets_in_until_its_token_is_revoked(self, front: Front) -> None:
        front.add_token("somebody", Scope.READ)
        (row,) = front.store.queue.tokens()
        cookie = f"paceline_session={front.sessions.begin(row)}"
        assert front.ask(authorization="Bearer ", cookie=cookie)[0] == 200
        assert front.ask("POST", cookie=cookie)[0] == 403
        with front.store.queue.writing("revoke a token") as writing:
            writing.revoke_token("somebody")
        front.tokens._looked_at = None
        assert front.ask(cookie=cookie)[0] == 401

    @pytest.mark.parametrize(
        ("peer", "proxies", "forwarded", "is_secure"),
        [
            ("127.0.0.1", (), "-", False),
            ("127.0.0.1", (), "https", True),
            ("10.0.0.7", ("10.0.0.7",), "https", True),
            ("10.0.0.7", ("10.0.0.7",), "http", False),
            ("10.0.0.8", ("10.0.0.7",), "https", False),
        ],
    )
    def test_a_session_is_renewed_and_secure_where_a_browser_came_by_tls(
        self, store: Store, peer: str, proxies: tuple[str, ...], forwarded: str, is_secure: bool
    ) -> None:
        front = Front(store, proxies=proxies)
        front.add_token("somebody", Scope.READ)
        (row,) = front.store.queue.tokens()
        half_used = Sessions(b"secret", clock=lambda: time.time() - 2000)
        for sessions, is_renewed in ((half_used, True), (front.sessions, False)):
            cookie = f"paceline_session={sessions.begin(row)}"
            _, headers, _ = front.ask(client=(peer, 1), cookie=cookie, x_forwarded_proto=forwarded)
            words = headers.get("set-cookie", "").split("; ")
            assert (words[0].startswith("paceline_session=somebody.")) is is_renewed
            assert {"HttpOnly", "Max-Age=3600", "SameSite=strict"} <= set(words) or not is_renewed
            assert ("Secure" in words) is (is_secure and is_renewed)

    def test_a_leader_that_had_a_token_is_never_open_again(self, front: Front) -> None:
        assert front.ask()[0] == 200
        front.add_token("only", Scope.ADMIN)
        with front.store.queue.writing("revoke a token") as writing:
            writing.revoke_token("only")
        front.tokens._looked_at = None
        assert front.ask()[0] == 401
        assert front.ask("POST", "/api/v1/tokens")[0] == 401

    @pytest.mark.parametrize("cookie", ["paceline_session=", "paceline_session", "a=b", "[=]"])
    def test_a_cookie_without_a_session_is_none(self, front: Front, cookie: str) -> None:
        assert front.ask(cookie=cookie)[0] == 200

    @pytest.mark.parametrize(
        ("method", "path", "accept", "status"),
        [
            ("GET", "/jobs", "text/html,*/*", 303),
            ("GET", "/jobs", "application/json", 401),
            ("POST", "/jobs", "text/html", 401),
            ("GET", "/api/v1/jobs", "text/html", 401),
        ],
    )
    def test_only_a_browser_that_asks_for_a_page_is_sent_to_sign_in(
        self, front: Front, method: str, path: str, accept: str, status: int
    ) -> None:
        front.add_token("somebody", Scope.READ)
        answered, headers, _ = front.ask(method, path, accept=accept)
        assert (answered, headers.get("location")) == (status, "/login?next=%2Fjobs" if status == 303 else None)
        assert len(front.audit()) == (0 if status == 303 else 1)

    @pytest.mark.parametrize(("path", "status"), [("/api/v1/health", 200), ("/login", 200), ("/api/v1/jobs", 503)])
    def test_a_store_that_fails_closes_all_but_what_is_open_to_anybody(
        self, front: Front, monkeypatch: pytest.MonkeyPatch, path: str, status: int
    ) -> None:
        def fail() -> None:
            raise StoreError("the database is gone")

        monkeypatch.setattr(front.tokens, "rows", fail)
        assert front.ask("GET", path)[0] == front.ask("POST", path)[0] == status
        assert front.callers == ([None, None] if status == 200 else [])
        assert [row for row in front.audit() if row[3] != "200"] == []

    @pytest.mark.parametrize(
        ("method", "path", "scope"),
        [
            ("GET", "/api/v1/jobs", Scope.READ),
            ("HEAD", "/api/v1/jobs", Scope.READ),
            ("OPTIONS", "/api/v1/jobs", Scope.READ),
            ("POST", "/api/v1/jobs", Scope.SUBMIT),
            ("POST", "/api/v1/validate", Scope.SUBMIT),
            ("POST", "/submit", Scope.SUBMIT),
            ("GET", "/api/v1/undeclared", Scope.ADMIN),
            ("GET", "/api/v1/tokens", Scope.ADMIN),
            ("DELETE", "/api/v1/tokens/x", Scope.ADMIN),
            ("PUT", "/api/v1/jobs", Scope.READ),
            ("GET", "/nothing", Scope.READ),
        ],
    )
    def test_each_request_needs_a_scope_and_no_more(self, front: Front, method: str, path: str, scope: Scope) -> None:
        assert needed(ROUTES, {"type": "http", "method": method, "path": path}) is scope
        for has in Scope:
            bearer = front.add_token(has.word, has)
            assert front.ask(method, path, authorization=bearer)[0] == (200 if has >= scope else 403)


class TestOtherSites:
    """Pages that somebody else has made a browser open."""

    @pytest.mark.parametrize(
        "headers",
        [
            {"origin": "http://localhost"},
            {"origin": "http://LOCALHOST"},
            {"sec_fetch_site": "same-origin"},
            {"sec_fetch_site": "none"},
            {"origin": "http://localhost", "sec_fetch_site": "same-origin"},
            {},
        ],
    )
    def test_a_page_of_this_site_may_write(self, front: Front, headers: dict[str, str]) -> None:
        assert front.ask("POST", "/api/v1/jobs", **headers)[0] == 200  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "headers",
        [
            {"origin": "http://evil"},
            {"origin": "null", "host": "-"},
            {"origin": "http://localhost", "sec_fetch_site": "cross-site"},
            {"origin": "http://evil", "sec_fetch_site": "same-origin"},
            {"sec_fetch_site": "cross-site"},
        ],
    )
    def test_a_page_of_another_site_may_not_even_with_a_token(self, front: Front, headers: dict[str, str]) -> None:
        bearer = front.add_token("somebody", Scope.ADMIN)
        refusal = front.code("POST", "/api/v1/jobs", authorization=bearer, **headers)
        assert refusal == (403, "other-site")
        assert front.ask("GET", "/api/v1/jobs", authorization=bearer, **headers)[0] == 200  # type: ignore[arg-type]

    def test_a_request_without_a_name_is_for_nobody_here(self, front: Front) -> None:
        assert front.code(host="-") == (403, "other-host")

    @pytest.mark.parametrize(
        ("name", "is_this"),
        [("localhost", True), ("LocalHost.", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.1", False),
         ("evil.example", False), ("", False)],
    )  # fmt: skip
    def test_names_of_this_machine(self, name: str, is_this: bool) -> None:
        assert is_loopback(name) is is_this


class TestBody:
    """How much, of which kind."""

    @pytest.mark.parametrize("says", [True, False])
    @pytest.mark.parametrize(("size", "status"), [(10, 200), (11, 413)])
    def test_a_body_may_be_as_long_as_the_limit(self, store: Store, says: bool, size: int, status: int) -> None:
        front = Front(store, limits=Limits(body=10))
        length = str(size) if says else "-"
        answered, headers, _ = front.ask(
            "POST", "/api/v1/jobs", b"x" * 5, b"x" * (size - 5), content_type="application/json", content_length=length
        )
        assert (answered, headers.get("connection")) == (status, "close" if status == 413 else None)

    def test_a_length_that_is_no_number_is_not_one(self, front: Front) -> None:
        assert front.ask("POST", "/api/v1/jobs", content_length="many")[0] == 200

    def test_a_length_beyond_all_numbers_is_too_large(self, front: Front) -> None:
        assert front.code("POST", "/api/v1/jobs", content_length="9" * 5000) == (413, "too-large")

    def test_a_body_that_breaks_off_is_not_read(self, front: Front) -> None:
        assert front.code("POST", "/api/v1/jobs", b"[", ends=False) == (400, "unreadable")
        assert front.bodies == []

    @pytest.mark.parametrize(
        ("method", "path", "kind", "status"),
        [
            ("POST", "/submit", "application/x-www-form-urlencoded", 200),
            ("POST", "/submit", "application/json", 200),
            ("POST", "/submit", "text/plain", 415),
            ("POST", "/api/v1/jobs", "application/x-www-form-urlencoded", 415),
            ("POST", "/api/v1/jobs", "-", 415),
            ("GET", "/api/v1/jobs", "text/plain", 200),
        ],
    )
    def test_forms_are_for_pages_and_json_is_for_all(
        self, front: Front, method: str, path: str, kind: str, status: int
    ) -> None:
        assert front.ask(method, path, b"a=b", content_type=kind)[0] == status

    def test_no_body_is_of_no_kind(self, front: Front) -> None:
        assert front.ask("POST", "/api/v1/jobs/x/cancel", content_type="text/plain")[0] == 200


class TestNotes:
    """The audit log: who wrote what, and who was not let in."""

    def test_writes_are_noted_with_their_outcome_and_reads_are_not(self, front: Front) -> None:
        front.subject = "job-1"
        bearer = front.add_token("boss", Scope.ADMIN)
        front.ask("POST", "/api/v1/jobs", authorization=bearer)
        front.ask("GET", "/api/v1/jobs", authorization=bearer)
        front.ask("POST", "/api/v1/validate", authorization=bearer)
        front.ask("POST", "/submit/check", authorization=bearer)
        assert front.audit() == [("boss", "POST /api/v1/jobs", "job-1", "200")]

    def test_refusals_are_noted_once(self, store: Store) -> None:
        front = Front(store, limits=Limits(body=10))
        bearer = front.add_token("reader", Scope.READ)
        front.ask("GET", "/api/v1/tokens", authorization=bearer)
        front.ask("POST", "/submit/check", authorization=bearer)
        front.ask("POST", "/login", b"x" * 11)
        front.ask("GET", "/login", b"x" * 11)
        assert front.audit() == [
            ("reader", "GET /api/v1/tokens", "", "403 forbidden"),
            ("reader", "POST /submit/check", "", "403 forbidden"),
            ("127.0.0.1", "POST /login", "", "413 too-large"),
        ]

    def test_who_asks_too_often_is_not_noted(self, store: Store) -> None:
        front = Front(store, limits=Limits(rate=1e-6, burst=1))
        assert [front.ask("POST", "/api/v1/jobs")[0] for _ in range(3)] == [200, 429, 429]
        assert [outcome for *_, outcome in front.audit()] == ["200"]

    def test_a_note_is_printable_and_not_too_long(self, front: Front) -> None:
        front.subject = "s" * 300
        front.ask("POST", "/" + "x" * 300)
        front.ask("POST", "/a\nb")
        assert [(what, subject) for _, what, subject, _ in front.audit()] == [
            ("POST /" + "x" * 194, "s" * 200),
            ("POST /a\\nb", ""),
        ]

    def test_a_request_goes_on_if_it_cannot_be_noted(
        self, front: Front, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object) -> None:
            raise StoreError("the disk is full")

        monkeypatch.setattr("paceline.store.queue.Writing.note", fail)
        assert front.ask("POST", "/api/v1/jobs")[0] == 200
        assert "not in the audit log: POST /api/v1/jobs by local, 200: the disk is full" in caplog.text

    def test_of_those_who_guess_only_some_are_noted(self, store: Store) -> None:
        front = Front(store, limits=Limits(notes=1e-6, note_burst=2))
        bearer = front.add_token("reader", Scope.READ)
        assert {front.ask()[0] for _ in range(9)} == {401}
        assert {front.ask("GET", "/api/v1/tokens", authorization=bearer)[0] for _ in range(3)} == {403}
        assert [who for who, *_ in front.audit()] == ["127.0.0.1"] * 2 + ["reader"] * 3

    def test_what_is_old_goes_when_the_first_and_every_so_many_are_noted(self, front: Front) -> None:
        with front.store.queue.writing("note something old") as writing:
            for days in (91, 89):
                writing.note(AuditRow(datetime.now(UTC) - timedelta(days=days), f"{days} days ago", "", "", ""))
        front.ask("POST", "/api/v1/jobs")
        assert [who for who, *_ in front.audit()] == ["89 days ago", "local"]


class TestOften:
    """How many requests, and when to come again."""

    def test_each_address_at_the_machine_counts_for_itself(self, store: Store) -> None:
        front = Front(store, limits=Limits(rate=1e-6, burst=1))
        addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.1"]
        assert [front.ask(client=(address, 1))[0] for address in addresses] == [200, 200, 429]

    def test_behind_a_proxy_that_is_trusted_each_address_counts_for_itself(self, store: Store) -> None:
        front = Front(store, is_local=False, limits=Limits(failures=1e-6, failure_burst=1), proxies=("10.0.0.7",))
        asked = [("10.0.0.7", "1.1.1.1"), ("10.0.0.7", "2.2.2.2, 1.1.1.1"), ("10.0.0.7", "2.2.2.2"), ("10.0.0.7", "-")]
        asked += [("10.0.0.8", "3.3.3.3"), ("10.0.0.8", "4.4.4.4")]
        statuses = [front.ask(client=(peer, 1), x_forwarded_for=text)[0] for peer, text in asked]
        assert statuses == [401, 429, 401, 401, 401, 429]

    def test_each_token_counts_for_itself_wherever_it_comes_from(self, store: Store) -> None:
        front = Front(store, limits=Limits(rate=1e-6, burst=1))
        one, other = front.add_token("one", Scope.READ), front.add_token("other", Scope.READ)
        asked = [(one, "127.0.0.1"), (other, "127.0.0.1"), (one, "127.0.0.2")]
        answers = [front.ask(authorization=bearer, client=(address, 1))[0] for bearer, address in asked]
        assert answers == [200, 200, 429]

    @pytest.mark.parametrize(("seconds", "after"), [(0.01, "1"), (0.9, "1"), (1.2, "2"), (60.7, "61")])
    def test_whole_seconds_are_told_that_are_enough(self, seconds: float, after: str) -> None:
        refusal = _too_many(seconds, "requests")
        assert (refusal.status, refusal.headers) == (429, {"Retry-After": after})

    def test_a_bucket_fills_by_the_time_that_has_passed(self) -> None:
        now = 100.0
        buckets = Buckets(rate=2.0, burst=1, clock=lambda: now)
        assert (buckets.take("a"), buckets.take("a")) == (0.0, 0.5)
        now = 100.125
        assert (buckets.take("a"), buckets.take("a")) == (0.375, 0.375)  # who was refused has used nothing
        now = 100.5
        assert (buckets.take("a"), buckets.take("a")) == (0.0, 0.5)
        now = 200.0
        assert (buckets.take("a"), buckets.take("a")) == (0.0, 0.5)  # and holds no more than it did at first

    @pytest.mark.parametrize(("others", "is_remembered"), [(9_999, True), (10_000, False)])
    def test_of_very_many_clients_the_one_that_was_away_longest_is_forgotten(
        self, others: int, is_remembered: bool
    ) -> None:
        buckets = Buckets(rate=2.0, burst=1, clock=lambda: 0.0)
        buckets.take("first")
        for number in range(others):
            buckets.take(f"other {number}")
        assert (buckets.take("first") > 0) is is_remembered


class TestDefects:
    """What fails behind the guard."""

    def test_a_defect_before_the_answer_is_answered(self, front: Front) -> None:
        async def fail(_: Send) -> None:
            raise ZeroDivisionError

        front.fail = fail
        assert front.code() == (500, "defect")

    def test_a_defect_in_the_middle_of_an_answer_breaks_it_off(self, front: Front) -> None:
        async def fail(send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise ZeroDivisionError

        front.fail = fail
        with pytest.raises(ZeroDivisionError):
            front.ask()


def test_who_asks_for_much_waits_for_their_own_turn_and_nobody_else_does() -> None:
    turns, order = Turns(at_once=2), list[str]()

    async def ask(who: str, name: str, over: asyncio.Event) -> None:
        async with turns.turn(who):
            order.append(name)
            await over.wait()

    async def crowd() -> None:
        over = asyncio.Event()
        asked = [asyncio.create_task(ask("ann", f"ann {number}", over)) for number in range(4)]
        asked.append(asyncio.create_task(ask("bob", "bob", over)))
        while len(order) < 3:
            await asyncio.sleep(0)
        assert order == ["ann 0", "ann 1", "bob"]
        asked[2].cancel()  # it has gone while it waited
        over.set()
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(crowd())
    assert order == ["ann 0", "ann 1", "bob", "ann 3"]
    assert turns.clients == 0


def test_a_turn_is_over_when_the_answer_begins_however_slowly_it_is_read(store: Store) -> None:
    read, entered = asyncio.Event(), list[str]()

    async def app(scope: AsgiScope, receive: Receive, send: Send) -> None:
        entered.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await read.wait()

    guard = Guard(app, store, Tokens(store), Sessions(b"secret"), ROUTES, True, Limits(at_once=1))

    async def crowd() -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(_: Message) -> None: ...

        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "GET", "path": "/api/v1/jobs", "headers": headers, "client": LOOPBACK}
        asked = [asyncio.create_task(guard(scope | {"state": {}}, receive, send)) for _ in range(3)]
        async with asyncio.timeout(30):
            while len(entered) < 3:
                await asyncio.sleep(0.001)
        read.set()
        await asyncio.gather(*asked)

    asyncio.run(crowd())
