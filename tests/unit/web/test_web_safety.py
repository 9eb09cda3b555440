"""Nobody else's words become part of a page, nobody else's site sends a form, and nobody unknown sees anything."""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import timedelta
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import pytest

from paceline.service.api import tokens
from paceline.service.api.guard import COOKIE
from paceline.service.engines.base import FollowerState
from support.scripted_followers import START, a_job

HOSTILE = "</title><script>alert(1)</script>'\"&<img src=x onerror=alert(2)>\u202e"
GEMM = {"name": HOSTILE, "cases": [{"benchmark": "gemm", "size": 64}]}
PATHS = ["/", "/submit", "/runs", "/compare", "/trends", "/leaderboard", "/machines", "/jobs/mine"]


class Parsed(HTMLParser):
    """What of a page could load or run something."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elsewhere: list[str] = []
        self.handlers: list[str] = []
        self.scripts: list[str] = []
        self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_script = tag == "script"
        for name, value in attrs:
            if name.startswith("on"):
                self.handlers.append(name)
            if name in ("src", "href", "action") and not (value or "").startswith(("/", "#", "?", "data:image")):
                self.elsewhere.append(f"{tag} {name}={value}")
        self.elsewhere += [tag] * (tag in ("img", "iframe", "object", "embed", "base"))

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts.append(data)
            self._is_script = False


def hostile(visited: Any) -> None:
    visited.engine.followers = lambda: [
        FollowerState(id=HOSTILE, host=HOSTILE, labels=(HOSTILE,), seen_at=START, machine={"host": HOSTILE, "x": [1]})
    ]
    visited.engine.present = [HOSTILE]
    visited.leader.step()
    for name in ("mine", "next"):
        job = a_job(name, suite=GEMM, tags=(HOSTILE,), submitted_by=HOSTILE)
        visited.leader.submit(job.model_copy(update={"name": HOSTILE}))
    visited.leader.step()
    attempt = visited.engine.attempt("mine")
    attempt.begin()
    attempt.record()
    attempt.tell("log", text=HOSTILE)
    visited.leader.step()


def test_hostile_words_stay_words(visited: Any) -> None:
    hostile(visited)
    run_id = visited.leader.job("mine").run_id
    machine = "/machines/" + HOSTILE.replace("/", "%2F").replace("?", "%3F").replace("#", "%23").replace("&", "%26")
    pages = [*PATHS, f"/runs/{run_id}", "/jobs/next", machine, f"/jobs/{HOSTILE.replace('/', '')}"]
    told = [visited.get(path).text for path in pages]
    for path, text in zip(pages, told, strict=True):
        assert "<script>alert" not in text and "<img" not in text, path
        assert "\u202e" not in text, path
    assert sum("&lt;script&gt;alert(1)" in text for text in told) >= 5
    assert visited.json("/")["machines"][0]["running"][0]["name"] == HOSTILE  # programs get it as it is


def test_a_page_may_load_and_run_nothing_but_its_own(visited: Any) -> None:
    hostile(visited)
    for path in [*PATHS, f"/runs/{visited.leader.job('mine').run_id}", "/login", "/nowhere/else"]:
        answer = visited.get(path)
        policy = answer.headers.get("content-security-policy", "")
        if answer.headers["content-type"].startswith("application/json"):
            continue
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy, path
        assert "unsafe-eval" not in policy and "script-src 'unsafe" not in policy
        parsed = Parsed(answer.text)
        assert parsed.elsewhere == parsed.handlers == [], path
        allowed = [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in parsed.scripts]
        assert sorted(re.findall(r"'sha256-[^']+'", policy)) == sorted(allowed), path


def test_a_form_of_another_site_is_refused(visited: Any) -> None:
    form = visited.form() | {"suite": "quick"}
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        assert visited.send("/submit", form, **headers).status_code == 403
    for token in ("", "0" * 64):
        refused = visited.send("/submit", form | {"token": token})
        assert refused.status_code == 403 and "older than this leader" in refused.text
    assert not visited.store.queue.counts()
    assert visited.send("/submit", form, origin="http://127.0.0.1").status_code == 303


def test_a_form_that_is_none_is_refused(visited: Any) -> None:
    for body, status in ((b"\xff\xfe", 400), (b"a=" + b"x" * 300_000, 413), (b"a&" * 2000, 400)):
        sent = visited.client.post(
            "/submit", content=body, headers={"content-type": "application/x-www-form-urlencoded"}
        )
        assert sent.status_code == status


def add_token(visited: Any, scope: str, **more: Any) -> str:
    token, row = tokens.make(f"{scope}er", tokens.Scope.of(scope), more.get("lasts", timedelta(days=1)))
    with visited.store.queue.writing("keep a token") as writing:
        writing.put_token(row)
    visited.client.app.state.context.tokens._looked_at = None
    return token


def test_with_tokens_one_logs_in_first(visited: Any) -> None:
    visited.leader.submit(a_job("mine", suite=GEMM))
    token = add_token(visited, "submit")
    for path in PATHS:
        sent = visited.get(path, follow_redirects=False)
        assert (sent.status_code, sent.headers["location"].partition("?")[0]) == (303, "/login"), path
        assert HOSTILE not in sent.text
    assert 'href="/runs"' not in visited.page("/login")
    wrong = visited.send("/login", {"secret": token + "x", "next": "/runs"})
    assert wrong.status_code == 403 and "not known here" in wrong.text and token not in wrong.text
    right = visited.send("/login", {"secret": token, "next": "/runs"})
    assert (right.status_code, right.headers["location"]) == (303, "/runs")
    cookie = right.headers["set-cookie"]
    assert COOKIE in cookie and "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert "submiter" in visited.page("/runs")
    assert visited.leader.job(visited.submit(kind="suite", suite="quick")).submitted_by == "submiter"
    out = visited.send("/logout", visited.form("/submit"))
    assert out.headers["location"] == "/login"
    assert visited.get("/runs", follow_redirects=False).status_code == 303


def test_who_may_only_look_cannot_submit(visited: Any) -> None:
    visited.send("/login", {"secret": add_token(visited, "read")})
    assert "may look, but not submit" in visited.page("/submit")
    assert visited.send("/submit", visited.form() | {"suite": "quick"}).status_code == 403
    assert not visited.store.queue.counts()


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_logging_in_leads_nowhere_else(visited: Any, path: str) -> None:
    token = add_token(visited, "read")
    assert visited.send("/login", {"secret": token, "next": path}).headers["location"] == "/"


def test_an_expired_token_is_none(visited: Any) -> None:
    token = add_token(visited, "read", lasts=timedelta(seconds=-1))
    assert visited.send("/login", {"secret": token}).status_code == 403


def test_only_who_submitted_a_job_is_offered_to_cancel_it_and_can(visited: Any) -> None:
    visited.leader.submit(a_job("theirs", submitted_by="somebody"))
    visited.send("/login", {"secret": add_token(visited, "submit")})
    mine = visited.submit(kind="suite", suite="quick")
    assert "Cancel the job" in visited.page(f"/jobs/{mine}")
    assert "Cancel the job" not in visited.page("/jobs/theirs")
    form = visited.form("/submit")
    assert visited.send("/jobs/theirs/cancel", form).status_code == 403
    assert not visited.leader.job("theirs").state.is_final
    assert visited.send(f"/jobs/{mine}/cancel", form).status_code == 303


def test_every_page_says_when_what_it_shows_is_old(visited: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    visited.leader.submit(a_job("mine"))
    assert not any(" old.</b>" in visited.page(path) for path in PATHS)
    monkeypatch.setattr(type(visited.leader), "age", property(lambda _: 75.0))
    for path in PATHS:
        assert "<b>This page is 75 s old.</b>" in visited.page(path), path
        assert "<b>This page is 75 s old.</b>" in visited.page(f"{path}?part=live"), path
