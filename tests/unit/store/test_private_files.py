"""What Paceline writes for itself can be read by its user alone, also what an earlier version left open to others."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.core.files import private_directory, write_atomic
from paceline.service.engines.base import Assignment, Meeting
from paceline.service.follower.spool import Spool
from paceline.store import open_reader, open_store
from support.store_samples import a_record, a_run


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in sorted(folder.rglob("*"))}


def test_a_new_store_is_for_its_user_alone(tmp_path: Path) -> None:
    with open_store(tmp_path / "new" / "folder" / "paceline.db") as store:
        store.begin(a_run())
        assert modes(tmp_path / "new") == {
            "folder": "0o700",
            "paceline.db": "0o600",
            "paceline.db-shm": "0o600",
            "paceline.db-wal": "0o600",
        }


def test_the_data_directory_is_closed_and_a_directory_of_the_user_is_not(tmp_path: Path) -> None:
    for name in ("data/paceline", "shared"):
        (tmp_path / name).mkdir(parents=True, mode=0o755)
    open_store().close()
    open_store(tmp_path / "shared" / "paceline.db").close()
    assert stat.S_IMODE((tmp_path / "data" / "paceline").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755


@pytest.mark.parametrize("opening", [open_store, open_reader])
def test_a_store_that_was_open_to_others_is_closed_when_it_is_opened(tmp_path: Path, opening: type) -> None:
    path = tmp_path / "paceline.db"
    with open_store(path) as store:
        store.begin(a_run())
        store.add(a_record())
    path.chmod(0o644)
    opening(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_followers_files_and_the_secret_of_a_gang_are_for_its_user_alone(tmp_path: Path) -> None:
    assignment = Assignment(job_id="job-1", attempt=1, run_id="run-1", suite={})
    folder = tmp_path / "followers" / "job-1.1"
    folder.mkdir(parents=True, mode=0o755)  # an earlier version made it
    spool = Spool.make(folder, assignment)
    spool.append("log", text="measured\n")
    spool.meeting = Meeting(address="127.0.0.1", port=1, secret="the word")
    spool.process = {"pid": 1}
    with spool.exclusively() as is_alone:
        assert is_alone
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert set(modes(folder).values()) == {"0o600"}
    assert {"assignment.json", "items.jsonl", "meeting.json", "process", "lease", "speaker"} == set(modes(folder))


def test_what_a_user_asked_for_has_the_modes_that_the_user_set(tmp_path: Path) -> None:
    assert stat.S_IMODE(write_atomic(tmp_path / "report.html", "x").stat().st_mode) == 0o644
    assert stat.S_IMODE(write_atomic(tmp_path / "secret", "x", private=True).stat().st_mode) == 0o600
    assert stat.S_IMODE(private_directory(tmp_path / "a" / "b").parent.stat().st_mode) == 0o700
