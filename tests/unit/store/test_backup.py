"""A backup has all of one moment, whoever writes meanwhile, and is restored only where nothing is in the way."""

from __future__ import annotations

import sqlite3
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from paceline.core.errors import StoreError
from paceline.store import open_store
from paceline.store.backup import back_up, restore
from paceline.store.location import locate
from paceline.store.queue import AuditRow, EventRow
from paceline.store.retention import change_run
from paceline.store.store import Store
from support.refused import refused
from support.store_samples import a_failed_record, a_record, a_run

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


def fill(store: Store) -> None:
    store.begin(a_run())
    store.add(a_record())
    store.add(a_failed_record(index=1))
    store.keep_partial("run-1", 1, 2, "step_time", "s", [1.0, 2.0])
    change_run(store, "run-1", pinned=True, note="the first")
    with store.queue.writing("fill") as writing:
        job = {"id": "job-1", "state": "queued", "priority": 0, "submitted_by": "ann", "version": 1}
        writing.submit(job | {"submitted_at": NOW.isoformat()}, EventRow(NOW, "submitted", {}))
        writing.note(AuditRow(NOW, "ann", "submit", "job-1", "taken"))


def assert_filled(url: str | Path) -> None:
    with open_store(url) as store:
        loaded = store.load("run-1")
        assert loaded.records == [a_record(), a_failed_record(index=1)]
        (row,) = store.runs()
        assert (row.pinned, row.note) == (True, "the first")
        assert [event.at for event in store.queue.events("job-1")] == [NOW]
        assert [row.what for row in store.queue.audited()] == ["submit"]
        store.begin(a_run("run-2"))
        store.add(a_record("run-2"))  # numbered after those that came with the backup
        (recovered,) = store.recover("run-1")
        assert recovered.measurements[0].samples == [1.0, 2.0]


def test_a_backup_is_a_store_for_its_user_alone(store: Store, tmp_path: Path) -> None:
    fill(store)
    copy = tmp_path / "copies" / "monday.db"
    back_up(store, copy)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [path.name for path in copy.parent.iterdir()] == ["monday.db"]
    assert_filled(copy)


def test_a_backup_is_restored_into_an_empty_place(store: Store, url: str, tmp_path: Path) -> None:
    fill(store)
    copy = tmp_path / "monday.db"
    back_up(store, copy)
    elsewhere = tmp_path / "new" / "restored.db"
    assert restore(copy, locate(elsewhere)) is None
    assert_filled(elsewhere)
    assert [path.name for path in elsewhere.parent.iterdir()] == ["restored.db"]


def test_a_backup_of_a_file_is_restored_into_a_server(url: str, tmp_path: Path) -> None:
    with open_store(tmp_path / "source.db") as store:
        fill(store)
        back_up(store, tmp_path / "monday.db")
    if url.startswith("sqlite"):
        url = f"sqlite:///{tmp_path}/target.db"
    restore(tmp_path / "monday.db", locate(url))
    assert_filled(url)
    with refused("not-empty"):
        restore(tmp_path / "monday.db", locate(url))
    restore(tmp_path / "monday.db", locate(url), replace=True)
    assert_filled(url)


def test_a_store_that_is_replaced_is_moved_aside(tmp_path: Path) -> None:
    with open_store(tmp_path / "source.db") as store:
        fill(store)
        back_up(store, tmp_path / "monday.db")
        with refused("not-empty"):
            back_up(store, tmp_path / "monday.db")
        back_up(store, tmp_path / "monday.db", replace=True)
    with open_store(tmp_path / "old.db") as old:
        old.begin(a_run("older"))
        with refused("store-in-use"):
            restore(tmp_path / "monday.db", locate(tmp_path / "old.db"), replace=True)
    moved = restore(tmp_path / "monday.db", locate(tmp_path / "old.db"), replace=True)
    assert moved is not None
    with open_store(moved) as before:
        assert before.find_run("last") == "older"
    assert_filled(tmp_path / "old.db")


def test_a_backup_while_others_write_has_what_was_acknowledged_before_it(store: Store, tmp_path: Path) -> None:
    store.begin(a_run(cases=400))
    is_over, written = threading.Event(), [0]

    def write() -> None:
        for index in range(400):
            store.add(a_record(index=index))
            written[0] = index + 1
            if is_over.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    counts = []
    try:
        for number in range(3):
            before = written[0]
            back_up(store, tmp_path / f"{number}.db")
            counts.append((before, number))
    finally:
        is_over.set()
        writer.join()
    for before, number in counts:
        with open_store(tmp_path / f"{number}.db") as copy:
            loaded = copy.load("run-1")
            assert len(loaded.records) >= before
            assert loaded.records == [a_record(index=index) for index in range(len(loaded.records))]


def test_a_backup_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))  # which root never meets

    (tmp_path / "monday.db").touch()
    monkeypatch.setattr(Path, "open", refuse)
    with refused("unreadable-file", value=str(tmp_path / "monday.db")):
        restore(tmp_path / "monday.db", locate(tmp_path / "new.db"))


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    with refused("missing-file"):
        restore(tmp_path / "typo.db", locate(tmp_path / "new.db"))
    for text in ("", "this is text, and long enough to be looked at\n" * 100):
        (tmp_path / "text.db").write_text(text)
        with refused("not-a-backup"):
            restore(tmp_path / "text.db", locate(tmp_path / "new.db"))
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\0" + bytes(5000))
    with pytest.raises(StoreError, match=r"is damaged: file is not a database"):
        restore(tmp_path / "torn.db", locate(tmp_path / "new.db"))
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE accounts (id)")
    connection.close()
    with refused("foreign-database"):
        restore(tmp_path / "other.db", locate(tmp_path / "new.db"))
    assert not (tmp_path / "new.db").exists()
