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
            {"attempt": 2, "number": 1, "follower": "alpha", "text": "again\x1b]0;mine\x07\n"},
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
        (1, ["begins", "and goes on", "begins", "-- attempt 2 --", r"again\x1b]0;mine\x07"]),
        (
            2,
            [
                "bravo | begins",
                "bravo | and goes on",
                "alpha | begins",
                "-- attempt 2 --",
                r"alpha | again\x1b]0;mine\x07",
            ],
        ),
    ],
)
def test_lines_of_several_machines_say_whose_they_are(
    monkeypatch: pytest.MonkeyPatch, nodes: int, printed: list[str]
) -> None:
    monkeypatch.setattr(_client, "open_client", lambda *_: Told(nodes))
    done = CliRunner().invoke(logs.command, ["job"])
    assert (done.exit_code, done.output.splitlines()) == (0, printed)


class Silent(Told):
    """A leader whose job has written nothing."""

    def __init__(self, state: str, waits_for: str) -> None:
        super().__init__(1)
        self._job |= {"id": "abc123", "state": state, "waits_for": waits_for}
        self._is_over = state == "cancelled"

    def get(self, path: str, **query: Any) -> Any:
        return {"lines": [], "next": "0.0", "is_over": self._is_over} if path.endswith("/logs") else self._job


@pytest.mark.parametrize(
    ("state", "waits_for", "said"),
    [
        (
            "queued",
            "no machine has a GPU",
            "Job abc123 is queued: no machine has a GPU; it has written nothing yet; "
            "wait for its lines with: paceline logs abc123 --follow",
        ),
        (
            "running",
            "",
            "Job abc123 is running; it has written nothing yet; wait for its lines with: paceline logs abc123 --follow",
        ),
        ("cancelled", "", "Job abc123, cancelled, wrote nothing."),
    ],
)
def test_a_job_without_lines_says_why(monkeypatch: pytest.MonkeyPatch, state: str, waits_for: str, said: str) -> None:
    monkeypatch.setattr(_client, "open_client", lambda *_: Silent(state, waits_for))
    done = CliRunner().invoke(logs.command, ["last"])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"{said}\n")
