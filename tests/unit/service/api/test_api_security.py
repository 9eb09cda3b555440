"""Who is let in, how far, how often and with how much: everything else is refused, and noted."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fastapi import APIRouter

from paceline.service.api.guard import HEALTH, Buckets, Limits, needed
from paceline.service.api.tokens import Scope, find, make
from paceline.service.leader import Leader
from paceline.store.store import Store
from paceline.web.pages import pages_of
from support.leading import Served, plain_page, served_in

DAY = timedelta(days=1)
OPEN = {HEALTH, f"{HEALTH}/live", f"{HEALTH}/ready", "/login", "/logout"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A leader with tokens, and with all its pages."""
    limits = Limits(failures=1e6, failure_burst=10**6)

    def pages(leader: Leader, store: Store) -> APIRouter:
        return pages_of(leader, store, plain_page)

    with served_in(tmp_path_factory.mktemp("locked"), limits=limits, pages=pages) as made:
        made.add_token("somebody", "admin")
        yield made


def _routes(served: Served) -> list[tuple[str, str]]:
    """Every method and path that the application answers, mounted ones as well."""
    found = []
    waiting = list(served.app.routes)
    for route in waiting:  # grows while it is walked
        inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
        waiting += inner or []
        methods = getattr(route, "methods", None) or ["GET"]
        found += [(method, re.sub(r"\{[^}]*\}", "x", str(getattr(route, "path", "/")))) for method in methods]
    return found


def _described(served: Served, token: str) -> list[tuple[str, str]]:
    paths = served.ask("GET", "openapi.json", token=token).json["paths"]
    return [(method.upper(), re.sub(r"\{[^}]*\}", "x", path)) for path, one in paths.items() for method in one]


def test_every_route_is_closed_without_a_token(locked: Served) -> None:
    token = locked.add_token("reader", "read")
    routes = {*_routes(locked), *_described(locked, token), ("GET", "/"), ("GET", "/docs"), ("PUT", "/api/v1/nothing")}
    assert {("GET", "/api/v1/openapi.json"), ("POST", "/submit"), ("GET", "/jobs/x")} < routes
    for method, path in sorted(routes):
        if path in OPEN:
            continue
        answer = locked.ask(method, path)
        assert answer.status == 401, (method, path, answer)
        if method != "HEAD":
            assert answer.error["code"] == "unauthorized"
    assert locked.ask("GET", HEALTH).status == 200
    assert locked.ask("GET", "/", Accept="text/html").headers["location"].startswith("/login")


def test_a_token_reaches_as_far_as_its_scope(locked: Served) -> None:
    reader, submitter = locked.add_token("reader", "read"), locked.add_token("submitter", "submit")
    for method, path in _described(locked, reader):
        scope = needed(locked.app.router.routes, {"type": "http", "method": method, "path": path}) or 0
        statuses = {token: locked.ask(method, path, token=token).status for token in (reader, submitter)}
        assert (statuses[reader] == 403) == (scope > Scope.READ), (method, path)
        assert (statuses[submitter] == 403) == (scope > Scope.SUBMIT), (method, path)


def test_the_token_of_a_follower_reads_and_changes_nothing(locked: Served) -> None:
    token, reader = locked.add_token("bravo", "follower"), locked.add_token("reader", "read")
    routes = {*_routes(locked), *_described(locked, reader), ("GET", "/docs"), ("PUT", "/api/v1/nothing")}
    for method, path in sorted(routes):
        if path not in OPEN:
            answer = locked.ask(method, path, token=token)
            assert answer.status == 403, (method, path, answer)
    refused = locked.ask("GET", "jobs", token=token).error["message"]
    assert refused == "the token 'bravo' has the scope follower, and this needs read"
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    signed_in = locked.ask("POST", "/login", f"secret={token}".encode(), **form)
    assert (signed_in.status, "set-cookie" in signed_in.headers) == (403, False)


def test_the_token_of_a_follower_closes_nothing_for_people(served: Served) -> None:
    """Who has none yet is not shut out by making one for a machine; from the first of a person on, everybody is."""
    served.add_token("bravo", "follower")
    assert served.ask("GET", "jobs").status == 200
    served.add_token("ann", "admin")
    assert served.ask("GET", "jobs").status == 401


def test_every_route_declares_its_scope(locked: Served) -> None:
    undeclared = [route.path for route in locked.app.router.routes if not hasattr(route.endpoint, "needed_scope")]
    assert undeclared == []


@pytest.mark.parametrize("path", ["audit%0a", "audit%0A", "metrics%0a", "audit%00", "audit%0d", "audit%1f"])
def test_no_spelling_of_a_path_reads_what_its_scope_does_not_reach(locked: Served, path: str) -> None:
    reader, admin = locked.add_token("reader", "read"), locked.add_token("admin", "admin")
    for token in (reader, admin):
        answer = locked.ask("GET", path, token=token)
        assert (answer.status, answer.error["code"]) == (400, "unreadable")


def test_guard_and_router_agree_on_every_path(tmp_path: Path) -> None:
    with served_in(tmp_path, pages=lambda leader, store: pages_of(leader, store, plain_page)) as served:
        app = served.app
    reached: list[Any] = []
    for route in app.router.routes:
        route.app = _recorder(reached, route.endpoint)  # what would have run, without running it
    app.state.context.tokens.rows = lambda: rows
    tokens = {scope: make(scope.word, scope, None) for scope in Scope}
    rows = [row for _, row in tokens.values()]
    paths = [re.sub(r"\{[^}]*\}", "x", route.path) for route in app.router.routes]
    statuses: Counter[int] = Counter()

    async def ask_all() -> None:
        draw = Random(21)
        for number in range(3_000):
            method = draw.choice(["GET", "GET", "POST", "DELETE", "HEAD", "PUT", "OPTIONS"])
            path = _mutated(draw.choice(paths), draw) if number >= len(paths) else paths[number]
            holder = draw.choice([None, *Scope])
            headers = [(b"host", b"localhost")]
            if holder is not None:
                headers.append((b"authorization", f"Bearer {tokens[holder][0]}".encode()))
            reached.clear()
            scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
            scope |= {"client": (f"10.{number // 250}.0.{number % 250}", 1), "root_path": ""}
            expected = needed(app.router.routes, dict(scope))
            statuses[await _status(app, scope)] += 1
            for endpoint in reached:
                assert endpoint.needed_scope == expected, (method, path)
                assert expected is None or (holder is not None and holder >= expected), (method, path, holder)

    asyncio.run(ask_all())
    assert set(statuses) == {200, 400, 401, 403, 404, 405}, statuses
    assert min(statuses.values()) > 10, statuses


def _recorder(reached: list[Any], endpoint: Any) -> Any:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        reached.append(endpoint)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return app


async def _status(app: Any, scope: dict[str, Any]) -> int:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


def _mutated(path: str, draw: Random) -> str:
    """A path that is written in another way, or nearly so."""
    odd = [
        "\n",
        "\r",
        "\x00",
        "\x1f",
        "\x7f",
        "\u2028",
        "/",
        "//",
        ".",
        "/..",
        "/./",
        ";",
        "?",
        "#",
        "%0a",
        "%2f",
        " ",
        "\t",
    ]
    odd += ["\u00a0", "\u0130", "x", "{job_id}", "\\", "\ud800"]
    for _ in range(draw.choice([0, 1, 1, 2])):
        at = draw.choice([len(path), len(path), draw.randrange(len(path) + 1), 0])
        path = path[:at] + draw.choice(odd) + path[at:]
    return draw.choice([path, path, path, path.upper(), path.rstrip("/"), path[:-1]])


@pytest.mark.parametrize("header", ["Bearer ", "Bearer wrong", "Basic dXNlcjp4", "bearer", "Bearer wrong wrong", "ü"])
def test_a_wrong_token_is_no_token(locked: Served, header: str) -> None:
    assert locked.ask("GET", "jobs", Authorization=header.encode("latin-1").decode("latin-1")).status == 401


def test_a_token_that_has_expired_or_was_revoked_no_longer_holds(locked: Served) -> None:
    old = locked.add_token("old", "admin", lasts=DAY, now=datetime.now(UTC) - 2 * DAY)
    fresh = locked.add_token("fresh", "admin", lasts=DAY)
    assert [locked.ask("GET", "jobs", token=token).status for token in (old, fresh)] == [401, 200]
    locked.revoke_token("fresh")
    assert locked.ask("GET", "jobs", token=fresh).error["message"].startswith("the token 'fresh' was revoked, on 20")
    assert locked.ask("GET", "jobs", token=old).error["message"].startswith("the token 'old' has expired, on 20")


def test_pages_are_no_part_of_the_description(locked: Served) -> None:
    described = _described(locked, locked.add_token("reader", "read"))
    assert {path.split("/")[1] for _, path in described} == {"api"}


def test_a_token_is_found_by_all_of_it() -> None:
    token, row = make("a", Scope.READ, DAY)
    _, other = make("b", Scope.READ, DAY)
    now = datetime.now(UTC)
    assert find([other, row], token, now) is row
    assert find([other, row], token[:-1], now) is None
    assert find([other, row], token, now + DAY) is None
    assert len(token) >= 43


def test_a_browser_has_a_session_and_never_the_token(locked: Served) -> None:
    token = locked.add_token("browser", "read")
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    signed_in = locked.ask("POST", "/login", f"secret={token}".encode(), **form)
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    assert (signed_in.status, token in cookie) == (303, False)
    assert locked.ask("GET", "jobs", Cookie=f"a=b; {cookie}").status == 200
    assert locked.ask("GET", "jobs", Cookie=f"{cookie}x").status == 401
    assert locked.ask("GET", "jobs", Cookie=f"paceline_session={token}").status == 401
    assert locked.ask("GET", "jobs", Authorization=f"Bearer {cookie.partition('=')[2]}").status == 401


def test_who_guesses_at_the_sign_in_page_is_slowed_down_and_fills_no_log(tmp_path: Path) -> None:
    limits = Limits(failures=1e-6, failure_burst=5, notes=1e-6, note_burst=3)
    with served_in(tmp_path, limits=limits, pages=lambda leader, store: pages_of(leader, store, plain_page)) as served:
        token = served.add_token("ann", "read")
        form = {"Content_Type": "application/x-www-form-urlencoded"}
        guesses = [served.ask("POST", "/login", b"secret=guess", **form).status for _ in range(9)]
        assert guesses == [403] * 5 + [429] * 4
        assert len(served.audit()) == 3
        assert served.ask("POST", "/login", f"secret={token}".encode(), **form).status == 303
        assert served.audit()[-1] == ("127.0.0.1", "POST /login", "ann", "303")
        assert served.ask("POST", "/login", b"secret=" + b"x" * 5000, **form).status == 413


def test_revoking_the_last_token_opens_nothing(served: Served) -> None:
    served.add_token("only", "admin")
    served.revoke_token("only")
    assert served.ask("GET", "jobs").status == 401
    assert served.ask("GET", "audit").status == 401


def test_writes_and_refusals_are_noted(served: Served) -> None:
    served.submit("job-1")
    served.ask("POST", "validate", {"suite": "gemm"})
    admin, reader = served.add_token("boss", "admin"), served.add_token("reader", "read")
    served.ask("GET", "jobs")
    served.ask("GET", "jobs", token="wrong")
    served.ask("POST", "jobs/job-1/cancel", token=reader)
    served.ask("POST", "jobs/job-1/cancel", token=admin)
    served.submit("job-2", suite="nothing-such", token=admin)
    assert served.audit() == [
        ("local", "POST /api/v1/jobs", "job-1", "201"),
        ("127.0.0.1", "GET /api/v1/jobs", "", "401 unauthorized"),
        ("127.0.0.1", "GET /api/v1/jobs", "", "401 unauthorized"),
        ("reader", "POST /api/v1/jobs/job-1/cancel", "", "403 forbidden"),
        ("boss", "POST /api/v1/jobs/job-1/cancel", "job-1", "200"),
        ("boss", "POST /api/v1/jobs", "job-2", "422"),
    ]
    entries = served.ask("GET", "audit?limit=2", token=admin).json["entries"]
    assert [entry["subject"] for entry in entries] == ["job-2", "job-1"]


def test_too_many_requests_are_told_when_to_come_again(tmp_path: Path) -> None:
    with served_in(tmp_path, limits=Limits(rate=0.01, burst=5, failures=0.01, failure_burst=2)) as served:
        statuses = [served.ask("GET", "jobs").status for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        assert int(served.ask("GET", "jobs").headers["retry-after"]) >= 1
        token, other = served.add_token("a", "read"), served.add_token("b", "read")
        assert [served.ask("GET", "jobs", token=token).status for _ in range(6)] == [200] * 5 + [429]
        assert served.ask("GET", "jobs", token=other).status == 200  # each has a bucket of its own


def test_those_who_guess_do_not_fill_the_audit_log(tmp_path: Path) -> None:
    with served_in(tmp_path, limits=Limits(failures=0.001, failure_burst=3)) as served:
        token = served.add_token("a", "read")
        assert [served.ask("GET", "jobs", token="guess").status for _ in range(6)] == [401] * 3 + [429] * 3
        assert len(served.audit()) == 3
        assert served.ask("GET", "jobs", token=token).status == 200  # from the same address


def test_a_bucket_fills_again() -> None:
    now = 0.0
    buckets = Buckets(rate=2.0, burst=3, clock=lambda: now)
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    now = 0.5
    assert (buckets.take("a"), buckets.take("a")) == (0.0, 0.5)
    now = 1000.0
    assert [buckets.take("a") for _ in range(4)][-1] > 0
    assert buckets.take("b") == 0.0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A leader that takes a thousand bytes."""
    with served_in(tmp_path_factory.mktemp("small"), limits=Limits(body=1000, body_seconds=0.5)) as made:
        yield made


class TestBodies:
    """As long as they may be, and in time."""

    def test_a_large_body_is_refused(self, small: Served) -> None:
        answer = small.submit("job-1", tags=["x" * 2000])
        assert (answer.status, answer.error["code"]) == (413, "too-large")

    def test_a_body_that_does_not_say_how_long_it_is_is_counted(self, small: Served) -> None:
        head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        chunk = b"64\r\n" + b"x" * 100 + b"\r\n"
        answer = small.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 15)
        assert answer.startswith(b"HTTP/1.1 413")

    def test_a_body_that_says_it_is_short_is_no_longer_than_that(self, small: Served) -> None:
        head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        answer = small.raw(head + b"Content-Length: 2\r\nConnection: close\r\n\r\n" + b"{}" + b"x" * 5000)
        assert answer.startswith(b"HTTP/1.1 422")

    def test_a_body_that_never_comes_is_not_waited_for(self, small: Served) -> None:
        head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        assert small.raw(head + b"Content-Length: 100\r\n\r\n{").startswith(b"HTTP/1.1 408")


class TestWithoutTokens:
    """Whoever sits at the machine may do everything, and nobody else, and no page of another site."""

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8765", "169.254.169.254", "", "[::1", "127.0.0.1.evil"]
    )
    def test_another_name_of_this_machine_is_refused(self, shared: Served, host: str) -> None:
        assert shared.ask("GET", "jobs", Host=host).status in (400, 403)

    @pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8765", "[::1]:8765", "127.1.2.3"])
    def test_its_own_names_are_answered(self, shared: Served, host: str) -> None:
        assert shared.ask("GET", "jobs", Host=host).status == 200

    @pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
    def test_a_proxy_is_refused(self, shared: Served, header: str) -> None:
        assert shared.ask("GET", "jobs", **{header: "203.0.113.7"}).error["code"] == "proxy"

    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://[evil"},
            {"Origin": ""},
            {"Origin": "http://127.0.0.1:1"},
            {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"},
        ],
    )
    def test_a_page_of_another_site_writes_nothing(self, shared: Served, headers: dict[str, str]) -> None:
        for path, body in (("jobs", {"id": "a", "suite": "gemm"}), ("jobs/a/cancel", None)):
            answer = shared.ask("POST", path, body, **headers)
            assert (answer.status, answer.error["code"]) == (403, "other-site")

    def test_a_page_of_this_site_writes(self, shared: Served) -> None:
        answer = shared.ask("POST", "validate", {"suite": "gemm"}, Origin=shared.url, Sec_Fetch_Site="same-origin")
        assert answer.status == 200

    def test_a_form_of_another_site_has_the_wrong_type(self, shared: Served) -> None:
        body = b'{"id": "a", "suite": "gemm"}'
        assert shared.ask("POST", "jobs", body, Content_Type="text/plain").status == 415

    def test_a_leader_that_others_reach_lets_nobody_in(self, tmp_path: Path) -> None:
        with served_in(tmp_path, is_local=False) as served:  # its last token was revoked
            assert served.ask("GET", "jobs").status == 401

    def test_an_answer_tells_browsers_to_be_careful(self, shared: Served) -> None:
        headers = shared.ask("GET", "jobs").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers


def test_a_defect_tells_nothing_of_itself(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("the password is hunter2")

    monkeypatch.setattr("paceline.store.queue.JobQueue.counts", fail)
    answer = served.ask("GET", "jobs")
    assert (answer.status, answer.error["code"]) == (500, "defect")
    assert b"hunter2" not in answer.body
