"""What `paceline logs` prints: attempts apart, and of several machines, who wrote each line."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli import _client, logs


class Told:
    """A leader with one job and one page of its log."""

    def __init__(self, nodes: int) -> None:
        self._job = {"needs": {"nodes": nodes}}
        self._lines = [
            {"attempt": 1, "number": 1, "follower": "bravo", "text": "begins\nand goes on\n"},
            {"attempt": 1, "number": 2, "follower": "alpha", "text": "begins\n"},
            {"attempt": 2, "number": 1, "follower": "alpha", "text": "again\n"},
        ]

    def job(self, text: str) -> str:
        return text

    def get(self, path: str, **query: Any) -> Any:
        if not path.endswith("/logs"):
            return self._job
        return {"lines": self._lines, "next": "2.1", "is_over": True}


@pytest.mark.parametrize(
    ("nodes", "printed"),
    [
        (1, ["begins", "and goes on", "begins", "-- attempt 2 --", "again"]),
        (2, ["bravo | begins", "bravo | and goes on", "alpha | begins", "-- attempt 2 --", "alpha | again"]),
    ],
)
def test_lines_of_several_machines_say_whose_they_are(
    monkeypatch: pytest.MonkeyPatch, nodes: int, printed: list[str]
) -> None:
    monkeypatch.setattr(_client, "open_client", lambda *_: Told(nodes))
    done = CliRunner().invoke(logs.command, ["job"])
    assert (done.exit_code, done.output.splitlines()) == (0, printed)
