"""Who only reads runs gets the same ones, without the libraries that write them."""

from __future__ import annotations

import math
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from paceline.core.errors import StoreError
from paceline.store import locate, open_existing, open_reader, open_store, spool
from paceline.store.location import VARIABLE
from paceline.store.reader import FileReader, Reader, is_read_only, read_only_options
from paceline.store.store import Store
from support.refused import refused
from support.store_samples import a_record, a_run, a_store, as_of_first_release


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return a_store(tmp_path / "100%?#.db")


def test_it_finds_and_reads_what_the_store_does(url: str) -> None:
    with open_store(url) as store:
        store.begin(a_run())
        store.add(a_record())
        with open_reader(url) as reader:
            assert isinstance(reader, FileReader) == url.startswith("sqlite")
            for text in ("last", "run-1", "run"):
                assert reader.find_run(text) == store.find_run(text) == "run-1"
            assert reader.find_runs("last") == ["run-1"]
            found, same = reader.load("run-1"), store.load("run-1")
            assert found.run == same.run
            assert repr(found.records) == repr(same.records)  # not ==, as it may hold what is not equal to itself
            assert found.records[0].started_at == a_record().started_at
            assert repr(reader.attempts("run-1", 0)) == repr(store.attempts("run-1", 0))
            with refused("unknown-run", suggestion="run-1"):
                reader.find_run("run-2")
            with refused("unknown-run", suggestion="run-1"):
                reader.load("run-2")


def test_a_file_is_read_without_the_database_library(path: Path) -> None:
    code = (
        "import sys; from paceline.store import open_reader; reader = open_reader(sys.argv[1]); "
        "print(reader.load(reader.find_run('last')).run.id, 'sqlalchemy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["run-1", "False"]


def test_a_reader_cannot_write(path: Path) -> None:
    refusal = r"could not clear it in the store .*readonly"
    with open_reader(path) as reader, pytest.raises(StoreError, match=refusal), reader.asking("clear it") as ask:
        ask("DELETE FROM runs", {})


def test_what_a_writer_adds_meanwhile_is_seen_by_the_next_question(path: Path) -> None:
    with open_reader(path) as reader, open_store(path) as store:
        with reader.asking("look") as ask:
            before = list(ask("SELECT count(*) FROM runs", {}))
            store.begin(a_run("run-2"))
            assert list(ask("SELECT count(*) FROM runs", {})) == before == [(1,)]
        assert reader.find_run("run-2") == "run-2"


def test_the_users_own_store_is_made_when_it_is_first_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "new.db"))
    with open_reader() as reader, refused("empty-store"):
        reader.find_run("last")
    assert (tmp_path / "new.db").is_file()


@pytest.mark.parametrize("opened", [open_reader, open_existing])
@pytest.mark.parametrize("name", ["typo.db", "no folder/typo.db"])
def test_a_store_that_is_named_must_be_there(opened: Callable[[Path], Reader], name: str, tmp_path: Path) -> None:
    with refused("missing-store", key="--store", value=str(tmp_path / name)):
        opened(tmp_path / name)
    assert not list(tmp_path.glob("**/typo*"))


def test_what_was_kept_beside_a_store_that_could_not_be_made_is_read(tmp_path: Path) -> None:
    path = tmp_path / "full.db"
    spool.keep(a_record(), locate(path).spools)
    with open_reader(path):
        assert path.is_file()


def test_an_older_store_is_migrated_first(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    open_store(path).close()
    as_of_first_release(create_engine(f"sqlite:///{path}"))
    for kind in (Store, FileReader):
        with open_reader(path) as reader:
            assert isinstance(reader, kind)
            with refused("empty-store"):
                reader.find_run("last")


def test_a_newer_store_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="has schema version 9999"):
        open_reader(path)


def test_what_was_spooled_is_imported_first(tmp_path: Path) -> None:
    path = tmp_path / "paceline.db"
    with open_store(path) as store:
        store.begin(a_run())
        spool.keep(a_record(), store.location.spools)
    with open_reader(path) as reader:
        assert isinstance(reader, Store)
        assert len(reader.load("run-1").records) == 1
    with open_reader(path) as reader:
        assert isinstance(reader, FileReader)


def test_a_file_that_is_no_store_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("this is no database, and long enough to be taken for one by nobody" * 20)
    with refused("not-a-database", key="--store", value=str(path)):
        open_reader(path)


def test_a_damaged_store_is_told_while_it_is_read(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    with open_reader(copy) as reader:
        with sqlite3.connect(copy) as other:
            other.execute("DROP TABLE measurements")
        with pytest.raises(StoreError, match=r"could not load run 'run-1' in the store .*measurements"):
            reader.load("run-1")


def test_nothing_is_left_beside_the_file(path: Path) -> None:
    with open_reader(path) as reader:
        assert math.isfinite(reader.load("run-1").records[0].seconds)
    assert [file.name for file in path.parent.iterdir() if file.is_file()] == [path.name]


@pytest.mark.parametrize(
    ("file", "folder", "is_protected"),
    [(True, True, False), (True, False, True), (False, True, True), (False, False, True)],
)
def test_a_file_may_only_be_read_unless_it_and_its_folder_may_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, file: bool, folder: bool, is_protected: bool
) -> None:
    monkeypatch.setattr("os.access", lambda one, _: file if one == path else folder)
    assert is_read_only(path) is is_protected
    assert not is_read_only(path.with_name("absent.db"))


@pytest.mark.parametrize(("log", "options"), [(None, True), (b"", True), (b"x", False)])
def test_a_file_that_may_only_be_read_cannot_change_unless_somebody_writes_to_its_log(
    path: Path, log: bytes | None, options: bool
) -> None:
    if log is not None:
        path.with_name(f"{path.name}-wal").write_bytes(log)
    assert read_only_options(path) == {"mode": "ro"} | ({"immutable": "1"} if options else {})


@pytest.mark.parametrize("opened", [open_existing, open_reader])
def test_a_file_that_cannot_be_looked_at_is_not_missing(opened: Callable[[Path], Reader], tmp_path: Path) -> None:
    path = tmp_path / "circle.db"
    path.symlink_to(path)
    with pytest.raises(StoreError, match="could not open the database"):
        opened(path)
