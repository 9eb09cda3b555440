"""A curl line says what is sent as curl would send it, or why it cannot be taken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.servers._any_http import read_curl

FORM = ["Content-Type: application/x-www-form-urlencoded"]


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("curl localhost:8000", {"url": "http://localhost:8000", "path": "/"}),
        ("curl 'https://h/a?b=1#c'", {"url": "https://h", "path": "/a?b=1"}),
        ("curl -d a=1 -d b=2 h", {"url": "http://h", "path": "/", "body": "a=1&b=2", "header": FORM}),
        (
            """curl -sS -XPOST http://h/p -H 'Content-Type: application/json' --data-raw='{"x": "a b"}' -o /dev/null""",
            {
                "url": "http://h",
                "path": "/p",
                "method": "POST",
                "body": '{"x": "a b"}',
                "header": ["Content-Type: application/json"],
            },
        ),
        (
            "curl --json '{}' -X PUT --url http://h -A me -b 's=$S' -H 'Accept-Encoding: gzip' --compressed",
            {
                "url": "http://h",
                "path": "/",
                "method": "PUT",
                "body": "{}",
                "header": ["User-Agent: me", "Cookie: s=$S", "Content-Type: application/json"],
            },
        ),
        (
            "curl http://h --data-binary @cat.jpg -H 'Content-Type: image/jpeg'",
            {"url": "http://h", "path": "/", "body": "@cat.jpg", "header": ["Content-Type: image/jpeg"]},
        ),
    ],
)
def test_a_line_is_read_as_curl_reads_it(line: str, settings: dict[str, Any], tmp_path: Path) -> None:
    assert read_curl(line) == settings
    file = tmp_path / "request.sh"
    file.write_text("# the request\n$ " + line.replace(" -H", " \\\n  -H") + "\n")
    assert read_curl(f"@{file}") == settings


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "it does not begin with curl"),
        ("wget http://h", "it does not begin with curl"),
        ("curl", "it has 0 addresses, and must have one"),
        ("curl http://a http://b", "it has 2 addresses, and must have one"),
        ("curl http://h -H", "'-H' has no value"),
        ("curl 'http://h", "no closing quotation"),
        ("curl http://me:sesame@h", "its address holds a password"),
        ("curl http://h -u me:sesame", "'-u' is not taken: put user:password in base64 into a variable"),
        ("curl http://h -F a=@b", "'-F' is not taken"),
        ("curl -sL http://h", "'-L' is not taken: redirects are not followed"),
        ("curl --insecure https://h", "'-k' is not taken: certificates are always checked"),
        ("curl http://h --hedaer 'a: b'", "'--hedaer' is not an option that is known here; did you mean '--header'?"),
        ("curl http://h -d $'a'", "$'...' is a form of one shell"),
        ("curl http://h -d a -d @b", "several bodies of which one is a file"),
        ("@missing.sh", "the file cannot be read"),
    ],
)
def test_a_line_that_cannot_be_taken_is_refused_with_an_example(line: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as error:
        read_curl(line)
    assert "sesame" not in str(error.value)
    if not line.startswith("@"):
        assert "expected is a line like\n  curl -X POST http://" in str(error.value)
