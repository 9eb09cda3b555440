"""Settings of wire http: wrong ones are refused, secrets stay in the environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.servers._any_http import MOST_INLINE, resolved
from paceline.servers.base import Need
from paceline.servers.url import Url, UrlSettings

LOCAL = Need(model="resnet18", allow_import=True, wire="http")
SECRET = "sesame-0123456789"


def settings(**given: Any) -> UrlSettings:
    return UrlSettings.read({"kind": "url", "url": "http://h:1/base"} | given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "predict"}, "'predict' is not a path; write it like /predict"),
        ({"path": "/a b"}, "is not a path"),
        ({"path": "/a?api_key=abc"}, "api_key in the query is a secret, and would be kept with the results"),
        ({"header": "no colon"}, "'one without a colon' is not a header; write it like 'X-Team: vision'"),
        ({"header": "X: a\nb"}, "'X' is not a header"),
        ({"header": "Content-Length: 3"}, "Content-Length is set by the load generator; leave it out"),
        ({"header": f"Authorization: Bearer {SECRET}"}, "write 'Authorization: Bearer $NAME', in single quotes"),
        ({"header": f"Authorization: Bearer $A{SECRET}-"}, "write 'Authorization: Bearer $NAME', in single quotes"),
        ({"header": [f"x-api-key: {SECRET}"]}, "write 'x-api-key: $NAME', in single quotes"),
        ({"header": {"Cookie": f"session={SECRET}; a=$B"}}, "write 'Cookie: $NAME', in single quotes"),
        ({"method": "FETCH"}, "must be one of 'GET', 'POST', 'PUT', 'PATCH' or 'DELETE'"),
        ({"expect_status": "2xx"}, "'2xx' is not a status; write 200, or 200-299"),
        ({"expect_json": "a..b"}, "'a..b' is not a JSON path"),
        ({"expect_text": "("}, "'(' is not a regular expression"),
        ({"body": "x" * (MOST_INLINE + 1)}, "belongs into a file: write @FILE"),
    ],
)
def test_a_wrong_setting_is_refused_without_showing_secrets(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as error:
        settings(**given)
    assert SECRET not in f"{error.value} {error.value.value}"


def test_variables_are_read_by_what_sends_and_kept_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("THEIR_TOKEN", SECRET)
    monkeypatch.setenv("TEAM", "vision")
    given = settings(
        path="/p?key=$THEIR_TOKEN&$filter=a",
        header=["Authorization: Bearer $THEIR_TOKEN", "Cookie: a=${THEIR_TOKEN}; b=$TEAM", "X-Team: $TEAM"],
    )
    assert SECRET not in str(given)
    headers, path, hidden = resolved(given)
    assert path == f"/p?key={SECRET}&$filter=a"
    assert headers == {"authorization": f"Bearer {SECRET}", "cookie": f"a={SECRET}; b=vision", "x-team": "vision"}
    assert set(hidden) == {SECRET, "vision"}
    server = Url(given, LOCAL, tmp_path, lambda _: None)
    server.prepare()
    endpoint = server.endpoint("http")
    assert (endpoint.method, endpoint.path) == ("GET", f"/base/p?key={SECRET}&$filter=a")
    assert endpoint.expected is not None
    assert SECRET not in endpoint.expected.problem(500, f"you said {SECRET}".encode())
    assert SECRET not in str(server.describe())


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THEIR_TOKEN", raising=False)
    for given in ({"header": "X-Token: $THEIR_TOKEN"}, {"path": "/p?token=$THEIR_TOKEN"}):
        with pytest.raises(InputError, match=r"\$THEIR_TOKEN is empty or not set"):
            Url.check(settings(**given), LOCAL)


def test_compressed_answers_cannot_be_read() -> None:
    Url.check(settings(header="Accept-Encoding: gzip"), LOCAL)
    with pytest.raises(InputError, match="leave out Accept-Encoding"):
        Url.check(settings(header="Accept-Encoding: gzip", expect_json="a"), LOCAL)


@pytest.mark.parametrize(
    ("given", "wire"), [({}, "kserve-json"), ({"path": "/p"}, "http"), ({"expect_status": 200}, "http")]
)
def test_the_wire_is_http_where_a_request_is_given(given: dict[str, Any], wire: str) -> None:
    assert Url.usual_wire(settings(**given)) == wire


def test_a_request_of_another_wire_is_refused() -> None:
    need = Need(model="resnet18", allow_import=True, wire="kserve-json")
    with pytest.raises(InputError, match="body, path: only wire http takes it, not kserve-json"):
        Url.check(settings(path="/p", body="x", model="m"), need)
    with pytest.raises(
        InputError, match="'model' is missing; a server that speaks none of the protocols has wire: http"
    ):
        Url.check(settings(), need)
    with pytest.raises(InputError, match="wire http needs an address that starts with http://"):
        Url.check(settings(url="grpc://h:1", path="/p"), LOCAL)


@pytest.mark.parametrize("given", [{}, {"path": "/p"}, {"header": "X: $HOME"}, {"from_curl": "@/etc/hostname"}])
def test_a_case_from_the_network_may_not_say_what_is_sent(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_ALLOWED_URLS", "http://h:1")
    with pytest.raises(InputError, match="only a case that was started on this machine may say what is sent"):
        Url.check(settings(**given), Need(model="resnet18", allow_import=False, wire="http"))


def test_given_settings_win_over_imported_ones() -> None:
    written = UrlSettings.written_out(
        {
            "kind": "url",
            "from_curl": "curl http://h:1/a -H 'X-A: 1' -H 'X-B: 2' -d x",
            "path": "/b",
            "header": "x-a: 3",
        }
    )
    assert "from_curl" not in written
    assert (written["url"], written["path"], written["body"]) == ("http://h:1", "/b", "x")
    assert written["header"] == ["X-B: 2", "Content-Type: application/x-www-form-urlencoded", "x-a: 3"]
