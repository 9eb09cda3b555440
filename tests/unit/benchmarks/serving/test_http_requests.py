"""Requests of the user's own: filled in beforehand, refused where that is not possible, and tried once."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline.benchmarks.serving import http_requests as module
from paceline.benchmarks.serving.http_requests import HttpTemplate, facts, http_requests, try_request
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.core.errors import InputError
from paceline.load.expected import Expected
from paceline.load.request import Endpoint, Prepared
from paceline.servers._any_http import AnyHttpSettings
from paceline.servers.base import ServerFailed


def made(body: str | None, requests: dict[str, Any] | None = None, **more: Any) -> list[Prepared]:
    own = {name: more.pop(name) for name in ("path", "header", "order") if name in more}
    server = {"kind": "url", "url": "http://h:1", "body": body} | own
    given = {"server": server, "load": {"rate": 1}, "requests": requests or {}} | more
    parameters = ServeParameters.read(given)
    settings = parameters.server.whole()
    assert isinstance(settings, AnyHttpSettings)
    endpoint = Endpoint("http", "h", 1, own.get("path", "/p"), "")
    return http_requests(parameters, settings, endpoint).prepared


def test_a_body_without_placeholders_is_one_request() -> None:
    assert made('{"x": 1}') == [Prepared(b'{"x": 1}')]
    assert made(None) == [Prepared(b"")]


def test_placeholders_are_filled_in_differently_and_the_same_with_the_same_seed() -> None:
    body = '{"n": {{index}}, "r": [{{random}}, {{ random }}], "t": "{{text}}"}'
    first, again, other = (
        [json.loads(one.body) for one in made(body, {"distinct": 5, "prompt_tokens": 3}, seed=seed)]
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert [one["n"] for one in first] == [0, 1, 2, 3, 4]
    assert len({value for one in first for value in one["r"]}) == 10
    assert all(len(one["t"].split()) == 3 for one in first)


def test_a_path_is_filled_in_too() -> None:
    requests = made(None, {"distinct": 2, "prompt_tokens": 2}, path="/items/{{index}}?q={{text}}")
    assert [one.path.partition("?")[0] for one in requests] == ["/items/0", "/items/1"]
    assert re.fullmatch(r"/items/0\?q=\w+%20\w+", requests[0].path)


@pytest.mark.parametrize(
    ("shape", "sizes", "kind"), [("2x3", [2, 3], float), ("1x4:int64:7", [1, 4], int), ("3:bool", [3], bool)]
)
def test_an_input_is_random_numbers_in_its_shape(shape: str, sizes: list[int], kind: type) -> None:
    value = json.loads(made('{"x": {{input}}}', {"distinct": 1}, input=shape)[0].body)["x"]
    for size in sizes:
        assert len(value) == size
        value = value[0]
    assert type(value) is kind


def test_lines_of_a_file_are_the_requests(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"a": 1}\n\n"two"\n[3]\n')
    assert [one.body for one in made("{{input}}", {"dataset": lines})] == [b'{"a": 1}', b'"two"', b"[3]"]
    assert made('{"x": {{input}}}', {"dataset": lines})[1].body == b'{"x": "two"}'


def test_a_file_may_hold_any_bytes(tmp_path: Path) -> None:
    picture = tmp_path / "cat.jpg"
    picture.write_bytes(b"\xff\xd8{{\x00")
    assert made(f"@{picture}", header="Content-Type: image/jpeg")[0].body == b"\xff\xd8{{\x00"


@pytest.mark.parametrize(
    ("body", "requests", "said"),
    [
        ("@none.json", {}, "body = '@none.json': the file cannot be read: No such file"),
        ('{"x": {{indx}}}', {}, "unknown placeholder in server.body '{{indx}}': did you mean '{{index}}'?"),
        ("{{input}}", {}, "name the file with --requests.dataset lines.jsonl, or the shape with --input 1x3x224x224"),
        ("{x: 1}", {}, "server.body is not JSON when its placeholders are filled in"),
        ('{"t": {{text}}}', {}, "server.body is not JSON when its placeholders are filled in"),
        ("{}", {"dataset": "LINES"}, "write {{input}} where its lines go, or --server.body '{{input}}'"),
        ("{{input}}", {"dataset": "none.jsonl"}, "dataset none.jsonl: cannot be read"),
        ("{{input}}", {"dataset": "EMPTY"}, "it has no lines; write one request in JSON on each"),
        ("{{input}}", {"dataset": "BROKEN"}, "line 2: the line is not JSON"),
    ],
)
def test_what_cannot_be_filled_in_is_refused(
    tmp_path: Path, body: str, requests: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"LINES": "1\n", "EMPTY": "\n", "BROKEN": "1\n{a}\n"}.items():
        Path(name).write_text(text)
    with pytest.raises(InputError, match=re.escape(said)):
        made(body, requests)


def test_the_record_names_the_request_and_not_its_content() -> None:
    settings = AnyHttpSettings.read({"path": "/p", "header": ["X-Token: $TOKEN"], "body": "secret", "expect_json": "a"})
    one, other = (facts(settings, [Prepared(body)]) for body in (b"secret", b"other"))
    assert one | {"body_digest": ""} == {
        "method": "POST",
        "path": "/p",
        "headers": ["x-token"],
        "body_digest": "",
        "good_answer": "status 200-299; JSON with a",
    }
    assert one["body_digest"].startswith("sha256:") and one["body_digest"] != other["body_digest"]
    assert "secret" not in str(one)


def test_the_template_is_checked_without_making_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    given = {"kind": "url", "url": "http://h:1", "body": '{"x": {{input}}}'}
    parameters = ServeParameters.read(
        {"server": given, "load": {"rate": 1}, "input": "1000", "requests": {"distinct": 4096}}
    )
    settings = parameters.server.whole()
    assert isinstance(settings, AnyHttpSettings)
    assert HttpTemplate.of(parameters, settings).count == 4096
    with pytest.raises(InputError, match="the requests take more than 1 MiB"):
        http_requests(parameters, settings, Endpoint("http", "h", 1, "/p", ""))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "expected JSON with label, got 200: {}"),
        (b"HTTP/1.0 404 No\r\n\r\nno such page", "expected status 200-299, got 404: no such page"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "the connection ended before the whole answer had come"),
        (b"SSH-2.0-OpenSSH\r\n", "no answer in HTTP"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"label":1}', ""),
    ],
)
def test_a_first_request_shows_what_came_and_what_was_expected(answer: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            handle, _ = listener.accept()
            with handle:
                handle.recv(65536)
                handle.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = listener.getsockname()
        endpoint = Endpoint("http", host, port, "/p?key=sesame", "", expected=Expected(json=("label",)))
        if not said:
            try_request(endpoint, Prepared(b"{}"), 10.0)
        else:
            with pytest.raises(ServerFailed, match=re.escape(said)) as error:
                try_request(endpoint, Prepared(b"{}"), 10.0)
            first, *example = str(error.value).split("\n")
            assert first.startswith(f"{host}:{port} did not answer as expected: ")
            assert example == [
                "  sent:   POST /p, 2 bytes  (--server.method, --server.path, --server.body)",
                "  status: 200-299  (--server.expect-status)",
                "  JSON:   label  (--server.expect-json)",
                "  text:   anything  (--server.expect-text)",
            ]
        thread.join()
