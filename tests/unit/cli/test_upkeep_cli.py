"""What changes stored runs, and what backs up, restores and checks a store, as a user types it."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.baseline import command as baseline
from paceline.cli.leader import command as leader
from paceline.cli.results import command as results
from paceline.cli.store import command as store_command
from paceline.core.errors import PacelineError
from paceline.store import open_store
from support.refused import refused
from support.store_samples import a_record, a_run

NOW = datetime.now(UTC)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of four runs, 1, 50, 100 and 200 days old."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    made = tmp_path / "paceline.db"
    with open_store(made) as store:
        for days, tags in ((1, []), (50, []), (100, ["release"]), (200, ["nightly"])):
            store.begin(a_run(f"run-{days}", started_at=NOW - timedelta(days=days), tags=tags))
            for index in range(2):
                store.add(a_record(f"run-{days}", index, count=4000))
            with store.writing("end") as connection:
                at = (NOW - timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S.%f")
                words = f"UPDATE runs SET status = 'finished', ended_at = '{at}' WHERE id = 'run-{days}'"
                connection.exec_driver_sql(words)
    return made


def type_in(*words: str) -> Result:
    verb = {"results": results, "store": store_command, "baseline": baseline}[words[0]]
    done = CliRunner().invoke(verb, words[1:], standalone_mode=True)
    if isinstance(done.exception, PacelineError):
        raise done.exception
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def ids(path: Path) -> list[str]:
    with open_store(path) as store:
        return [row.id for row in store.runs(limit=None)]


def test_a_dry_run_says_what_would_go_and_pruning_does_it(path: Path, tmp_path: Path) -> None:
    report = tmp_path / "data" / "paceline" / "reports" / "run-200.html"
    report.parent.mkdir(parents=True)
    report.touch()
    trace = tmp_path / "data" / "paceline" / "traces" / "run-200" / "trace.json"
    trace.parent.mkdir(parents=True)
    trace.touch()
    words = ("results", "prune", "--older", "90d", "--keep-tags", "release, other", "--store", str(path))
    said = type_in(*words, "--dry-run").output
    assert "run-100 stays: tagged release" in said
    assert "would delete run-200" in said
    assert "1 run would go; nothing was deleted." in said
    assert len(ids(path)) == 4
    before = path.stat().st_size
    said = type_in(*words).output
    assert "1 of 1 run deleted; the store has " in said
    assert ids(path) == ["run-1", "run-50", "run-100"]
    assert path.stat().st_size < before
    assert not report.exists()
    assert not trace.parent.exists()
    assert "There is nothing to delete." in type_in(*words).output


def test_a_pinned_run_is_not_deleted(path: Path) -> None:
    at = ("--store", str(path))
    assert type_in("results", "pin", "run-50", *at).output == "run-50: pinned\n"
    with refused("run-in-use", value="run-50"):
        type_in("results", "delete", "run-1", "run-50", *at)
    assert len(ids(path)) == 4
    assert "run-50 stays: pinned" in type_in("results", "prune", "--older", "0s", *at).output
    assert ids(path) == ["run-50"]
    type_in("results", "pin", "run-50", "--remove", *at)
    assert "1 of 1 run deleted" in type_in("results", "delete", "run-5", *at).output
    assert ids(path) == []


def test_notes_tags_and_names_are_listed(path: Path) -> None:
    at = ("--store", str(path))
    type_in("results", "note", "run-1", "after the new driver", *at)
    type_in("results", "pin", "run-1", *at)
    assert type_in("results", "tag", "run-1", "a", "b", *at).output == "run-1: a, b\n"
    assert type_in("results", "tag", "run-1", "a", "--remove", *at).output == "run-1: b\n"
    type_in("results", "rename", "run-1", "driver test", *at)
    listed = type_in("results", *at).output
    assert "pinned: after the new driver" in listed
    assert "driver test" in listed
    (row, *_) = json.loads(type_in("results", "--json", *at).output)
    assert (row["name"], row["tags"], row["pinned"], row["note"]) == (
        "driver test",
        ["b"],
        True,
        "after the new driver",
    )
    type_in("results", *at, "note", "run-1", "")
    (row, *_) = json.loads(type_in("results", "--json", *at).output)
    assert row["note"] == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["prune", "--older", "soon"], "not-a-duration"),
        (["prune", "--older", "7"], "not-a-duration"),  # of days, most people mean
        (["prune", "--older", "1d", "--keep-tags", "other,relaese"], "unknown-tag"),
        (["--tag", "relaese"], "unknown-tag"),
        (["rename", "run-1", "a\x1b[31m"], "invalid-name"),
        (["tag", "run-1", " "], "invalid-tag"),
        (["note", "run-1", "a\nb"], "invalid-note"),
        (["pin", "typo"], "unknown-run"),
        (["delete", "run"], "ambiguous-run"),
    ],
)
def test_what_cannot_be_done_is_refused(path: Path, words: list[str], code: str) -> None:
    with refused(code):
        type_in("results", *words, "--store", str(path))
    assert len(ids(path)) == 4


def test_a_tag_that_is_like_none_is_no_mistake(path: Path) -> None:
    assert "No run is like that" in type_in("results", "--tag", "xyz", "--store", str(path)).output
    assert type_in("results", "--tag", "relaese", "--json", "--store", str(path)).output == "[]\n"


def test_a_leader_does_not_check_without_a_pause() -> None:
    with refused("no-pause", key="--idle-check", value="0s"):
        CliRunner().invoke(leader, ["--idle-check", "0s"], standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize("flag", ["--keep-jobs", "--keep-logs"])
def test_a_leader_is_told_in_which_unit_old_jobs_and_logs_are_deleted(flag: str) -> None:
    with refused("not-a-duration", key=flag, value="90"):
        CliRunner().invoke(leader, [flag, "90"], standalone_mode=False, catch_exceptions=False)


def test_runs_of_a_baseline_stay(path: Path, tmp_path: Path) -> None:
    made = tmp_path / "baseline.json"
    type_in("baseline", "run-50", "release", "-o", str(made), "--store", str(path))
    said = type_in("results", "prune", "--older", "10d", "--store", str(path)).output
    assert "run-50 stays: pinned" in said
    assert ids(path) == ["run-1", "run-50", "run-100"]


def test_a_backup_is_restored_and_a_store_is_checked(path: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy.db", tmp_path / "other.db"
    assert "is backed up in" in type_in("store", "backup", str(copy), "--store", str(path)).output
    assert "is restored from" in type_in("store", "restore", str(copy), "--store", str(other)).output
    assert ids(other) == ids(path)
    with refused("not-empty"):
        type_in("store", "restore", str(copy), "--store", str(other))
    assert (
        "What was there before is in"
        in type_in("store", "restore", str(copy), "--store", str(other), "--replace").output
    )
    whole = type_in("store", "check", "--store", str(path))
    assert (whole.exit_code, whole.output) == (0, f"{path} is whole: 4 runs with 8 records can be read.\n")
    with sqlite3.connect(other) as connection:
        connection.execute("UPDATE records SET facts = '{' WHERE run_id = 'run-1' AND case_index = 1")
    connection.close()
    saved = tmp_path / "saved.db"
    damaged = type_in("store", "check", "--store", str(other), "--save", str(saved))
    assert damaged.exit_code == 1
    assert "lost: run 'run-1', case 1, attempt 1: cannot be read" in damaged.output
    assert f"They are saved in {saved}." in damaged.output
    found = json.loads(type_in("store", "check", "--store", str(other), "--json").output)
    assert (found["runs"], found["records"], len(found["lost"])) == (4, 7, 1)
    assert ids(saved) == ids(path)
