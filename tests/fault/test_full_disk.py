"""When the disk is full the run goes on, records wait in a spool, and the store takes them when there is room."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paceline.core.record import Outcome
from paceline.store import open_store
from support.cli import Sandbox, ended, events

FILLER = 400_000  # bytes in the database's log before the run
ROOMS = (37_080, 45_320)  # bytes that it may still grow: enough to begin a run, not to keep six records
CASES = 6


@contextmanager
def log_that_only_grows(store: Path) -> Iterator[int]:
    """SQLite cannot shrink its log while somebody reads: its size, which a limit can then stop from growing."""
    open_store(store).close()
    with sqlite3.connect(store, isolation_level=None) as keeper:
        keeper.execute("PRAGMA wal_autocheckpoint = 0")
        keeper.execute("CREATE TABLE filler (bytes BLOB)")
        keeper.execute("INSERT INTO filler VALUES (zeroblob(?))", [FILLER])
        keeper.execute("BEGIN")
        keeper.execute("SELECT count(*) FROM filler").fetchall()
        yield store.with_name(f"{store.name}-wal").stat().st_size
        keeper.execute("ROLLBACK")
    keeper.close()


def limit_files(size: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@pytest.mark.parametrize("room", ROOMS)  # with and without room for the few bytes that say how the run ended
def test_a_full_disk_loses_no_record(sandbox: Sandbox, room: int) -> None:
    suite = sandbox.suite({"benchmark": "nap", "duration": "20ms", "repeat": CASES})
    with log_that_only_grows(sandbox.store) as size:
        done = sandbox.run("run", suite, "--no-report", "--json", preexec_fn=limit_files(size + room))
    said = events(done.stdout)
    spool = sandbox.store.with_name(f"{sandbox.store.name}.spool.jsonl")
    troubles = [event["message"] for event in said if event["event"] == "trouble"]

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert [record.outcome for record in ended(said)] == [Outcome.OK] * CASES
    assert troubles
    assert all(str(spool) in trouble for trouble in troubles if "keep the record" in trouble)
    assert any(str(spool) in trouble for trouble in troubles)  # samples in flight may be refused before it
    waiting = len(spool.read_text(encoding="utf-8").splitlines())
    assert 0 < waiting <= CASES
    assert said[-1]["event"] == "run_ended"
    assert said[-1]["ok"] is False

    stored = sandbox.load()
    assert [record.case.index for record in stored.records] == list(range(CASES))
    assert all(record.outcome is Outcome.OK and record.measurement("step_time") for record in stored.records)
    assert not spool.exists()
    assert sandbox.left_behind() == []


def test_what_waits_in_the_spool_is_shown_at_the_end(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "nap", "duration": "20ms", "repeat": CASES})
    with log_that_only_grows(sandbox.store) as size:
        done = sandbox.run("run", suite, "--no-report", preexec_fn=limit_files(size + ROOMS[1]))
    assert done.returncode == 1
    assert "the record is safe in" in done.stdout + done.stderr
    assert f"All {CASES} cases measured" in done.stdout


def test_a_disk_that_is_full_before_the_run_begins_ends_it_with_one_message(sandbox: Sandbox) -> None:
    with log_that_only_grows(sandbox.store) as size:
        done = sandbox.run("run", "nap", "--no-report", preexec_fn=limit_files(size))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(sandbox.store) in done.stderr
    assert sandbox.left_behind() == []
