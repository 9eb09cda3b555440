"""Full disks, lost servers and killed processes lose no record."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import resource
import sqlite3
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from paceline.core.errors import StoreError
from paceline.core.record import Record
from paceline.store import open_store, spool
from paceline.store.codec import to_line
from paceline.store.store import Store
from support.postgres import PostgresServer
from support.refused import refused
from support.store_samples import a_record, a_run

BIG = 50_000  # samples


def fill_disk(store: Store) -> None:
    """Let SQLite's file grow no further, as a full disk would."""
    with store._writes.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


def free_disk(store: Store) -> None:
    with store._writes.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "paceline.db"


def test_a_full_disk_sends_the_record_to_the_spool_and_the_next_opening_imports_it(path: Path) -> None:
    big = a_record(index=1, count=BIG)
    with open_store(path) as store:
        store.begin(a_run())
        store.add(a_record())
        fill_disk(store)
        with pytest.raises(StoreError) as failed:
            store.add(big)
        kept = path.with_name("paceline.db.spool.jsonl")
        assert f"the record is safe in {kept}" in str(failed.value)
        assert f"paceline results --import {kept}" in str(failed.value)
        assert "free some space" in str(failed.value)
        with pytest.raises(StoreError, match="full; free some space"):
            store.keep_partial("run-1", 1, 1, "step_time", "s", [1.0] * BIG)
        with pytest.raises(StoreError, match="full"):
            store.begin(a_run("run-2", cases=5000))
        assert store.load("run-1").records == [a_record()]
        free_disk(store)
        store.begin(a_run("run-2"))
    with open_store(path) as store:
        assert store.load("run-1").records == [a_record(), big]
    assert not kept.exists()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def run_out_of_file_size(path: Path) -> None:
    with open_store(path) as store:
        store.begin(a_run(cases=50))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
        kept = 0
        with pytest.raises(StoreError, match=r"the record is safe in .*spool\.jsonl"):
            while kept < 50:
                store.add(a_record(index=kept, count=10_000))
                kept += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert len(store.load("run-1").records) == kept
        store.add(a_record(index=kept + 1, count=10_000))
    with open_store(path) as store:
        assert store.load("run-1").records == [a_record(index=index, count=10_000) for index in range(kept + 2)]


def test_a_write_that_the_system_refuses_leaves_the_store_whole(path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=run_out_of_file_size, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_while_the_disk_is_still_full_the_store_opens_and_the_spool_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(path) as store:
        store.begin(a_run())
    kept = spool.keep(a_record(count=BIG), store.location.spools)
    real = Store.add_within

    def insert_on_full_disk(self: Store, connection: object, record: Record) -> bool:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # type: ignore[attr-defined]
        return real(self, connection, record)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "add_within", insert_on_full_disk)
    with open_store(path) as store:
        assert store.load("run-1").records == []
        assert "full" in caplog.text
        assert kept.exists()
        with pytest.raises(StoreError, match="full"):
            store.import_spool(kept)


def test_when_the_disk_takes_no_spool_either_the_temporary_directory_does(path: Path) -> None:
    with open_store(path) as store:
        store.begin(a_run())
        beside, temporary = store.location.spools
        beside.mkdir()
        fill_disk(store)
        with pytest.raises(StoreError, match=temporary.name):
            store.add(a_record(count=BIG))
        temporary.rename(temporary.with_suffix(".aside"))
        temporary.mkdir()
        with pytest.raises(StoreError, match="could not be kept anywhere"):
            store.add(a_record(count=BIG))
        temporary.rmdir()
        temporary.with_suffix(".aside").rename(temporary)
    with open_store(path) as store:
        assert store.load("run-1").records == [a_record(count=BIG)]
    assert not temporary.exists()


def test_a_lost_server_sends_the_record_to_the_spool(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.new_database()
    with open_store(url) as store:
        store.begin(a_run())
        postgres.stop()
        try:
            with pytest.raises(StoreError, match="check that the server runs") as failed:
                store.add(a_record())
        finally:
            postgres.start()
        assert str(tmp_path / "data" / "paceline") in str(failed.value)
        store.add(a_record(index=1))
    with open_store(url) as store:
        assert store.load("run-1").records == [a_record(), a_record(index=1)]
        assert not any(path.exists() for path in store.location.spools)


def test_importing_takes_what_it_can_and_says_what_stays(store: Store, tmp_path: Path) -> None:
    store.begin(a_run())
    kept = tmp_path / "some.jsonl"
    spool.keep(a_record(), [kept])
    with kept.open("a") as file:
        file.write("\n" + to_line(a_record("elsewhere")) + "\n" + to_line(a_record(index=9)) + '\n{"run_id": "ru')
    spool.keep(a_record(index=1), [kept])
    taken, refusals = store.import_spool(kept)
    assert taken == 2
    assert [said.split(": ")[0] for said in refusals] == [f"{kept}, line {number}" for number in (2, 3, 4)]
    assert "never begun" in refusals[0]
    assert "it is not a spooled record" in refusals[2]
    assert all(len(said.splitlines()) == 1 for said in refusals)
    assert store.load("run-1").records == [a_record(), a_record(index=1)]
    store.begin(a_run("elsewhere"))
    assert store.import_spool(kept)[0] == 1
    assert len(kept.read_text().splitlines()) == 2
    with refused("missing-file", value=str(tmp_path / "typo.jsonl")):
        store.import_spool(tmp_path / "typo.jsonl")


def test_a_spool_that_cannot_be_written_whole_is_left_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "some.jsonl"
    spool.keep(a_record(), [kept])
    before = kept.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fail)
        with pytest.raises(StoreError, match="No space left on device"):
            spool.keep(a_record(index=1), [kept])
    assert kept.read_bytes() == before


def test_a_record_spooled_during_an_import_is_not_lost(tmp_path: Path) -> None:
    kept = tmp_path / "some.jsonl"
    spool.keep(a_record(), [kept])
    late = threading.Thread(target=spool.keep, args=(a_record(index=1), [kept]))

    def add(_: Record) -> None:
        late.start()
        late.join(0.2)
        assert late.is_alive()

    assert spool.import_records(kept, add) == (1, [])
    late.join(10)
    found: list[Record] = []
    spool.import_records(kept, found.append)
    assert found == [a_record(index=1)]


def test_a_spool_that_somebody_else_planted_is_ignored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(path) as store:
        store.begin(a_run())
        planted = store.location.spools[1]
    target = planted.with_name("elsewhere")
    target.write_text(to_line(a_record()) + "\n")
    planted.symlink_to(target)
    with open_store(path) as store:
        assert store.load("run-1").records == []
    with pytest.raises(StoreError):
        spool.keep(a_record(), [planted])
    planted.unlink()
    target.rename(planted)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert not spool.is_ours(planted)


def write_records(path: Path, run_id: str, acknowledge: Connection) -> None:
    with open_store(path) as store:
        store.begin(a_run(run_id, cases=500))
        for index in range(500):
            store.keep_partial(run_id, index, 1, "step_time", "s", [0.5] * 100)
            store.add(a_record(run_id, index, count=1000))
            acknowledge.send_bytes(index.to_bytes(4, "little"))


def killed_writer(path: Path, run_id: str, seconds: float, *, at_once: bool) -> int:
    """How many records a process acknowledged that was killed a while after its start, or else after its first one."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    writer = fork.Process(target=write_records, args=(path, run_id, sender))
    writer.start()
    sender.close()
    if not at_once:
        assert receiver.poll(60)
    time.sleep(seconds)
    writer.kill()
    writer.join()
    acknowledged = 0
    with contextlib.suppress(EOFError):
        while receiver.recv_bytes():
            acknowledged += 1
    receiver.close()
    return acknowledged


def test_a_killed_writer_loses_no_acknowledged_record_and_leaves_no_half_one(path: Path) -> None:
    chance = random.Random(7)
    total = 0
    for kill in range(15):
        run_id = f"run-{kill}"
        acknowledged = killed_writer(path, run_id, chance.uniform(0.0, 0.15), at_once=kill % 3 == 0)
        total += acknowledged
        with open_store(path) as store:
            begun = run_id in {row.id for row in store.runs()}
            assert begun or not acknowledged
            if begun:
                loaded = store.load(run_id)
                assert len(loaded.records) in (acknowledged, acknowledged + 1)
                for index, record in enumerate(loaded.records):
                    assert record == a_record(run_id, index, count=1000)
                assert loaded.run.status == "interrupted"
                assert len(store.recover(run_id)) <= 1
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()
    assert total >= 10
