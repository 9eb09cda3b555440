"""What `paceline quarantine` and `paceline jobs` print of what could not be stored."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli import _client, jobs, quarantine

ENTRY = {
    "id": 3,
    "job_id": "job",
    "attempt": 1,
    "follower": "alpha",
    "number": 7,
    "kind": "record",
    "reason": "it has\n\x1b[2Jno run",
    "at": "2030-01-01T00:00:00Z",
}


class Answering:
    """A leader with one item in quarantine, and no job to list."""

    def __init__(self) -> None:
        self.posted: list[str] = []

    def get(self, path: str, **query: Any) -> Any:
        answers = {
            "/jobs": {
                "jobs": [],
                "next": None,
                "counts": {},
                "quarantined": 1,
                "refused": {"bra\x1bvo": "it shows no token"},
            },
            "/quarantine": {"entries": [ENTRY]},
            "/quarantine/3": {"entry": ENTRY, "item": {"kind": "record"}},
        }
        return answers[path]

    def post(self, path: str) -> Any:
        self.posted.append(path)
        return ENTRY


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Answering:
    made = Answering()
    monkeypatch.setattr(_client, "open_client", lambda leader, token_file: made)
    return made


def printed(command: Any, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_a_list_gives_the_reason_in_one_line_and_what_to_do(leader: Answering) -> None:
    first, last = printed(quarantine.command).splitlines()
    assert first == r"3: record of job job, attempt 1, from alpha: it has \x1b[2Jno run"
    assert "--retry" in last
    assert "--drop" in last


def test_an_item_is_shown_retried_or_dropped(leader: Answering) -> None:
    assert '"kind": "record"' in printed(quarantine.command, "3")
    assert printed(quarantine.command, "3", "--retry") == "Item 3 of job job is stored\n"
    assert printed(quarantine.command, "3", "--drop") == "Item 3 of job job is dropped\n"
    assert leader.posted == ["/quarantine/3/retry", "/quarantine/3/drop"]
    for wrong in (["--drop"], ["3", "--drop", "--retry"]):
        printed(quarantine.command, *wrong, code=2)
    assert len(leader.posted) == 2


def test_jobs_say_which_followers_are_refused(leader: Answering) -> None:
    assert r"follower bra\x1bvo is refused: it shows no token" in printed(jobs.command).splitlines()


def test_jobs_say_that_something_is_in_quarantine(leader: Answering) -> None:
    assert "1 item that followers reported could not be stored: `paceline quarantine`" in printed(jobs.command)
