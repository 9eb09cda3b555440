"""A page in a browser that is watched: whatever it fetches or complains about fails the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def watched(opened: Any, path: Path) -> Iterator[Any]:
    """The page; nothing but itself was fetched, and nothing was complained about."""
    requests: list[str] = []
    complaints: list[str] = []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(path.as_uri())
    yield opened
    opened.close()
    assert {request.partition("#")[0] for request in requests} == {path.as_uri()}
    assert complaints == []
