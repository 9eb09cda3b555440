"""Where a store is, how it is opened and migrated, and what is refused."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import Engine, create_engine, event, inspect, text

from paceline.core.errors import InputError, StoreError
from paceline.store import codec, default_url, location, migrations, open_reader, open_store
from paceline.store.engine import _use_write_ahead_log, open_at
from paceline.store.location import locate
from paceline.store.queue import AuditRow, TokenRow
from support.postgres import PASSWORD, PostgresServer
from support.refused import refused
from support.store_samples import a_record, a_run, as_of_first_release

NOBODY = 65534


def engine_of(url: str) -> Engine:
    return create_engine(
        url.replace("postgresql://", "postgresql+psycopg://"),
        json_serializer=codec.dumps,
        json_deserializer=codec.loads,
    )


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_default_store_is_in_the_users_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_url() == f"sqlite:///{tmp_path}/data/paceline/paceline.db"
    with open_store() as store:
        store.begin(a_run())
    assert (tmp_path / "data/paceline/paceline.db").is_file()
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/.local/share/paceline/paceline.db"
    monkeypatch.setenv("PACELINE_STORE", str(tmp_path / "mine.db"))
    with open_store() as store:
        assert store.runs() == []
    assert (tmp_path / "mine.db").is_file()


@pytest.mark.parametrize("name", ["plain.db", "with space.db", "100%?#.db", "ünï.db"])
def test_a_path_and_its_url_are_the_same_store(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / name
    with open_store(path) as store:
        store.begin(a_run())
    for same in (str(path), f"sqlite:///{path}"):
        with open_store(same) as store:
            assert store.find_run("last") == "run-1"
    assert path.is_file()


def test_relative_paths_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert locate("sqlite:///x.db").path == locate("x.db").path == tmp_path / "x.db"
    assert locate("~/x.db").path == tmp_path / "home/x.db"


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("mysql://me:secret@host/db", "unknown-kind-of-store"),
        ("sqlite://x.db", "too-few-slashes"),
        ("sqlite://", "too-few-slashes"),
        ("sqlite:///", "not-a-file"),
        (":memory:", "not-a-file"),
        ("", "not-a-file"),
        ("/tmp", "is-a-directory"),
        ("postgresql://me:secret@host", "missing-database"),
        ("postgresql://me:secret@host:port/db", "not-a-url"),
        ("postgresql://me:sec/ret@host/db", "not-a-url"),
        ("postgresql://me:12/secret@host/db", "misplaced-character"),
        ("postgresql://me:12#secret@host/db", "misplaced-character"),
        ("postgresql://me@host/db?password=x@secret", "misplaced-character"),
        ("postgresql://[secret@host/db", "not-a-url"),
    ],
)
def test_a_place_that_is_no_store_is_refused_without_its_password(place: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        open_store(place)
    assert caught.value.code == code
    for shown in (str(caught.value), repr(vars(caught.value))):
        assert "secret" not in shown
        assert "ret@" not in shown


def test_the_password_is_in_no_message(postgres: PostgresServer) -> None:
    location = locate("postgresql://me:secret@127.0.0.1:1/db?password=secret")
    assert "secret" not in repr(location)
    assert "secret" in location.url
    for url in (
        location.url,
        postgres.url("postgres", password="secret"),
        postgres.url("no_such_database"),
        f"postgresql://127.0.0.1:{postgres.port}/postgres?user=tester&password=secret",
    ):
        with pytest.raises(StoreError, match="could not open the database in the store postgresql://127") as failed:
            open_store(url)
        assert "secret" not in str(failed.value)
        assert PASSWORD not in str(failed.value)
        assert failed.value.__suppress_context__


def test_the_spool_of_a_server_does_not_depend_on_the_password() -> None:
    first, second = (locate(f"postgresql://me:{word}@host/db?password={word}") for word in ("one", "two"))
    assert first.spools == second.spools
    assert locate("postgresql://me@host/other").spools != first.spools


def test_postgres_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install '\.\[postgres\]'"):
        open_store("postgresql://host/db")


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database\n" * 100)
    with refused("not-a-database", key="--store", value=str(path)):
        open_store(path)
    assert path.read_text().startswith("these are my notes")


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE bookmarks (address)")
    before = path.read_bytes()
    for opening in (open_store, open_reader):
        with refused("foreign-database", key="--store", value=str(path)):
            opening(path)
    assert path.read_bytes() == before
    assert list(tmp_path.glob("bookmarks*")) == [path]


def test_importing_the_package_imports_no_database_library() -> None:
    done = python(
        "import sys, paceline.store\n"
        "from paceline.store import open_store, default_url, RunRow\n"
        "print([name for name in ('sqlalchemy', 'psycopg', 'psutil') if name in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_every_known_version_but_the_first_has_its_step() -> None:
    assert tuple(migrations._STEPS) == location.REVISIONS[1:]


def shape(engine: Engine) -> dict[str, object]:
    """Every table with all that its definition says."""
    inspector = inspect(engine)
    shapes: dict[str, object] = {}
    for table in inspector.get_table_names():
        columns = [
            (one["name"], str(one["type"]), one["nullable"], one["default"]) for one in inspector.get_columns(table)
        ]
        indexes = [(one["name"], one["column_names"], one["unique"]) for one in inspector.get_indexes(table)]
        uniques = [(one["name"], one["column_names"]) for one in inspector.get_unique_constraints(table)]
        keys = [
            (one["constrained_columns"], one["referred_table"], one["options"])
            for one in inspector.get_foreign_keys(table)
        ]
        shapes[table] = [sorted(map(str, part)) for part in (columns, indexes, uniques, keys)]
    return shapes


def test_a_store_of_the_first_release_is_migrated_with_its_data(url: str) -> None:
    with open_store(url) as store:
        store.begin(a_run())
        store.add(a_record())
    engine = engine_of(url)
    new = shape(engine)
    as_of_first_release(engine)
    assert shape(engine) != new
    with open_store(url) as store:
        loaded = store.load("run-1")
        described = a_record(primary="compute_rate")  # the benchmark says it, for no column held it then
        assert (loaded.run, loaded.records) == (a_run(session="run-1"), [described])
        store.keep_partial("run-1", 1, 1, "step_time", "s", [1.0])
        assert len(store.recover("run-1")) == 1
    assert shape(engine) == new
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == location.SCHEMA_VERSION
    engine.dispose()


def test_a_token_that_was_revoked_in_an_earlier_version_stays_known(url: str) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with open_store(url) as store, store.queue.writing("note who did what") as writing:
        writing.put_token(TokenRow("valid", "digest", ("read",), at, None))
        for what, name, outcome in (
            ("token revoke", "by-hand", "ok"),
            ("DELETE /api/v1/tokens/over-http", "over-http", "204"),
            ("DELETE /api/v1/tokens/absent", "absent", "404"),
            ("token create", "made", "ok"),
            ("token revoke", "valid", "ok"),  # it was made again later
            ("token revoke", "by-hand", "ok"),
        ):
            writing.note(AuditRow(at, "boss", what, name, outcome))
    engine = engine_of(url)
    as_of_first_release(engine)
    engine.dispose()
    with open_store(url) as store:
        states = [(row.name, row.revoked_at) for row in store.queue.tokens()]
    assert states == [("by-hand", at), ("over-http", at), ("valid", None)]


@pytest.mark.parametrize(("version", "todo"), [("0005", "open it with Paceline 0.1.0 first"), ("9999", "upgrade")])
def test_a_store_from_before_the_first_release_or_of_a_newer_version_is_refused(
    url: str, version: str, todo: str
) -> None:
    open_store(url).close()
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))
    engine.dispose()
    with pytest.raises(StoreError, match=rf"version {version}, and this Paceline knows versions 0006 to .*: {todo}"):
        open_store(url)


def open_and_begin(url: str, together: Barrier, run_id: str) -> None:
    together.wait()
    with open_store(url) as store:
        store.begin(a_run(run_id))


def test_many_processes_may_open_a_new_store_at_once(url: str) -> None:
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(4)
    openers = [fork.Process(target=open_and_begin, args=(url, together, f"run-{number}")) for number in range(4)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(60)
    assert [opener.exitcode for opener in openers] == [0] * 4
    with open_store(url) as store:
        assert len(store.runs()) == 4


def test_sqlite_is_set_to_lose_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path / "x.db") as store, store._reads.connect() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's."""
    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="paceline-store-"))
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def protect(directory: Path) -> None:
    for path in (*directory.iterdir(), directory):
        path.chmod(path.stat().st_mode & ~0o222)


# Root may write everywhere, so it becomes somebody else, after the imports that this somebody may not read.
AS_A_USER = f"""
import os, sys
import psutil
import sqlalchemy.dialects.sqlite
import paceline.store.engine
from paceline.store import open_store
if os.getuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
"""


def test_a_store_that_may_only_be_read_is_read(open_directory: Path) -> None:
    path = open_directory / "100% #.db"
    with open_store(path) as store:
        store.begin(a_run())
    path.chmod(0o644)  # as somebody does who shares it
    protect(open_directory)
    script = AS_A_USER + (
        "store = open_store(sys.argv[1]); print(store.find_run('last'), len(store.load('run-1').run.cases))\n"
        "try: store.finish('run-1', 'finished')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = python(script, str(path))
    assert done.stdout.startswith("run-1 2\nStoreError could not finish run 'run-1'"), done.stderr
    assert "open it where you may write" in done.stdout


def test_a_store_that_may_only_be_read_cannot_be_migrated(open_directory: Path) -> None:
    path = open_directory / "old.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('0006')")
    connection.close()
    protect(open_directory)
    script = AS_A_USER + "open_store(sys.argv[1])"
    done = python(script, str(path))
    assert "copy it to another directory" in done.stderr


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"could not make the directory .*PACELINE_STORE"):
        open_at(locate(tmp_path / "file" / "sub" / "x.db"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5433/db", "postgresql://host:5433/db"),
        ("postgres://host/db?sslmode=require", "postgresql://host/db"),
        ("postgresql+psycopg:///db", "postgresql:///db"),
    ],
)
def test_a_server_is_shown_by_its_address_and_database(url: str, shown: str) -> None:
    assert locate(url).shown == shown
    assert locate(url).url == f"postgresql+psycopg://{url.partition('://')[2]}"


def test_a_spool_is_named_by_all_that_identifies_its_store(tmp_path: Path) -> None:
    urls = ("me@host/db", "me@host/db?sslmode=require", "you@host/db", "me@host:5433/db")
    spools = [locate(f"postgresql://{url}").spools for url in urls]
    assert len(set(spools)) == 4
    digest = hashlib.sha256(b"me@host/db?").hexdigest()[:16]
    beside, temporary = spools[0]
    assert beside == tmp_path / "data" / "paceline" / f"postgresql-{digest}.spool.jsonl"
    assert temporary == tmp_path / "temporary" / f"paceline-{os.getuid()}-{digest}.spool.jsonl"


def test_a_path_that_looks_like_a_url_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate(Path("mysql://x.db")).path == tmp_path / "mysql:" / "x.db"


def test_who_writes_to_a_file_waits_for_its_turn_at_once_and_who_reads_does_not(tmp_path: Path) -> None:
    asked: list[str] = []
    with open_store(tmp_path / "x.db") as store:
        event.listen(store._reads, "before_cursor_execute", lambda *words: asked.append(words[2]))
        event.listen(store._writes, "before_cursor_execute", lambda *words: asked.append(words[2]))
        store.begin(a_run())
        store.has("run-1")
    assert [words for words in dict.fromkeys(asked) if words.startswith("BEGIN")] == [
        "BEGIN IMMEDIATE",
        "BEGIN DEFERRED",
    ]


class Locked:
    """A file that others have open for so many more attempts, and the time that passes meanwhile."""

    def __init__(self, attempts: float, message: str = "database is locked") -> None:
        self.left = attempts
        self.message = message
        self.attempts = 0
        self.now = 100.0
        self.naps: list[float] = []

    def execute(self, statement: str) -> list[tuple[str]]:
        if statement.startswith("SELECT"):
            return [("alembic_version",), ("runs",)]
        self.attempts += 1
        if self.attempts <= self.left:
            raise sqlite3.OperationalError(self.message)
        return []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += 15.0


@pytest.mark.parametrize(
    ("file", "attempts", "opens"),
    [
        (Locked(0), 1, True),
        (Locked(2), 3, True),
        (Locked(10), 4, False),  # the last one after more than 30 seconds
        (Locked(10, "disk I/O error"), 1, False),
    ],
)
def test_a_file_that_others_open_for_the_first_time_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Locked, attempts: int, opens: bool
) -> None:
    monkeypatch.setattr("paceline.store.engine.time", file)
    with nullcontext() if opens else pytest.raises(sqlite3.OperationalError, match=file.message):
        _use_write_ahead_log(cast(sqlite3.Connection, file), tmp_path)
    assert file.attempts == attempts
    assert file.naps == [0.02] * (attempts - 1)
