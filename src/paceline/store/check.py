"""Looks for damage in a store, says which runs and cases it has cost, and saves the rest in a new one."""

from __future__ import annotations

import math
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, text
from sqlalchemy.exc import SQLAlchemyError

from paceline.core.errors import InputError, StoreError
from paceline.core.record import Record
from paceline.store import codec
from paceline.store.backup import back_up, read_only
from paceline.store.engine import open_at
from paceline.store.location import Location, locate
from paceline.store.reader import Ask, is_read_only, load_records, load_runs
from paceline.store.schema import cases, measurements, metadata, records, runs
from paceline.store.store import Store, ask, reason, store_error

_MOST_PROBLEMS = 20  # that a database names of itself: after the first ones the others say little
_MOST_NUMBERS = 1_000_000  # of rows that are tried one by one
_UNREADABLE = (sqlite3.Error, UnicodeError)  # SQLite may quote a damaged text in its message
# Locks of others, or no room for what SQLite writes beside the file.
_NO_DAMAGE = ("SQLITE_BUSY", "SQLITE_CANTOPEN", "SQLITE_FULL", "SQLITE_IOERR_SHM")
_CLOSE = 1e-9  # how well a mean comes out again

Row = dict[str, Any]


@dataclass
class Findings:
    """What is damaged, what that has cost, and what can be read."""

    damage: list[str] = field(default_factory=list)  # of the database itself, in its own words
    lost: list[str] = field(default_factory=list)  # runs, cases and what else is gone
    runs: int = 0
    records: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.damage and not self.lost


def check(location: Location, save: Path | None = None) -> Findings:
    """Read everything as the product does; what can be read of a damaged store is copied out to learn what is lost."""
    if location.path is None:
        with open_at(location) as store, store.reading("check") as connection:
            findings = _findings(partial(ask, connection), _damage_of_server(connection))
            if findings.is_whole:
                return _saved(store, save, findings)
            return _salvage(_ServerRows(store), findings, save)
    if not location.path.is_file():
        message = f"there is no store '{location.shown}': check the path"
        raise InputError("missing-store", message, key="--store", value=location.shown)
    with closing(_open_file(location.path)) as file:
        file.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")  # a flipped bit may be no text
        _require_readable(file, location)
        findings = _findings(file.execute, _damage_of_file(file))
        if not findings.is_whole:
            return _salvage(_FileRows(file), findings, save)
    with open_at(location) as store:
        return _saved(store, save, findings)


def _open_file(path: Path) -> sqlite3.Connection:
    """The file as it is; others may be writing to it."""
    return read_only(path) if is_read_only(path) else sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)


def _require_readable(file: sqlite3.Connection, location: Location) -> None:
    """A store that somebody has locked, or that SQLite finds no room to read in, says nothing about its damage."""
    try:
        file.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorname", "").startswith(_NO_DAMAGE):
            raise store_error("check", location, error) from error
    except _UNREADABLE:
        pass  # this is damage, which is told as such


def _saved(store: Store, save: Path | None, findings: Findings) -> Findings:
    if save is not None:
        back_up(store, save)
    return findings


def _findings(ask: Ask, damage: list[str]) -> Findings:
    findings = Findings(damage)
    try:
        for run_id in [row[0] for row in ask("SELECT id FROM runs", {})]:
            faults = list(_faults(ask, run_id))
            findings.lost += [fault.shown for fault in faults]
            findings.runs += not any(fault.record_id is None for fault in faults)
        findings.records = next(iter(ask("SELECT count(*) FROM records", {})))[0] - len(findings.lost)
    except (*_UNREADABLE, SQLAlchemyError) as error:
        findings.damage.append(reason(error))
    return findings


def _damage_of_file(file: sqlite3.Connection) -> list[str]:
    try:
        found = [str(row[0]) for row in file.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})")]
        strays = Counter(str(row[0]) for row in file.execute("PRAGMA foreign_key_check"))
        return [line for line in found if line != "ok"] + [f"{strays[name]} strays in {name}" for name in strays]
    except _UNREADABLE as error:
        return [str(error)]


def _damage_of_server(connection: Connection) -> list[str]:
    damage = []
    for table in metadata.sorted_tables:
        try:
            with connection.begin_nested():
                for _ in connection.execute(select(table).execution_options(yield_per=100)):
                    pass
        except SQLAlchemyError as error:
            damage.append(f"{table.name}: {reason(error)}")
    return damage


# What the product itself cannot read


@dataclass(frozen=True)
class _Fault:
    """A run, or one of its records, that is there and cannot be understood."""

    run_id: str
    record_id: int | None
    shown: str


def _faults(ask: Ask, run_id: str) -> Iterator[_Fault]:
    this = {"run_id": run_id}
    try:
        load_runs(ask, "id = :run_id", this)
        for (document,) in ask("SELECT CAST(document AS TEXT) FROM cases WHERE run_id = :run_id", this):
            codec.case(document)
    except Exception as error:  # whatever a flipped bit makes of a document
        yield _Fault(run_id, None, f"run '{run_id}': {_why(error)}")
        return
    stored = list(ask("SELECT id, case_index, attempt FROM records WHERE run_id = :run_id", this))
    with suppress(Exception):
        records = load_records(ask, "run_id = :run_id", this)
        as_written = sorted(record.case.index for record in records) == sorted(index for _, index, _ in stored)
        if as_written and all(not _contradiction(record) for record in records):
            return
    for record_id, case_index, attempt in stored:
        named = {case_index}
        try:
            (record,) = load_records(ask, "id = :id", {"id": record_id})
            named.add(record.case.index)
            why = _contradiction(record) if len(named) == 1 else "it is stored under the number of another case"
        except Exception as error:
            why = _why(error)
        for index in sorted(named) if why else ():
            yield _Fault(run_id, record_id, f"run '{run_id}', case {index}, attempt {attempt}: {why}")


def _contradiction(record: Record) -> str:
    """Why the parts of a record cannot all be as they were written; empty if they can."""
    for one in record.measurements:
        summary, samples = one.summary, one.sample_array()
        if not samples.size or one.derived_from:
            continue
        pairs = ((summary.minimum, samples.min()), (summary.maximum, samples.max()), (summary.mean, samples.mean()))
        if summary.count == samples.size and any(
            not math.isclose(told, float(found), rel_tol=_CLOSE) for told, found in pairs if math.isfinite(told)
        ):
            return f"the samples of {one.metric.name} do not give its summary"
    return ""


def _why(error: Exception) -> str:
    return f"cannot be read ({' '.join(reason(error).split())[:200]})"


# Copying out what is left


class _Rows(ABC):
    """Rows of a damaged store, as far as they can be read."""

    def __init__(self) -> None:
        self.unread: Counter[str] = Counter()  # rows, or places of rows, by table
        self.missing: set[str] = set()  # tables of which nothing can be read

    @abstractmethod
    def rows(self, table: Table) -> Iterator[Row]:
        """Every row that can be read."""

    @abstractmethod
    def keys(self, table: Table) -> list[Row]:
        """What indexes say of rows, whether these can be read or not."""

    @abstractmethod
    def put(self, connection: Connection, table: Table, row: Row) -> None:
        """Store a row elsewhere, as it is."""


def _salvage(source: _Rows, findings: Findings, save: Path | None) -> Findings:
    findings.lost = []
    with tempfile.TemporaryDirectory(prefix="paceline-check-") as scratch:
        if save is not None and save.exists():
            raise InputError("not-empty", f"'{save}' holds data already: name another file", value=str(save))
        with open_at(locate(save or Path(scratch) / "saved.db")) as store:
            for table in metadata.sorted_tables:
                findings.lost += _copy(source, table, store)
            findings.lost += _drop_unreadable(store)
            with store.asking("count") as counted:
                findings.runs, findings.records = next(
                    iter(counted("SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM records)", {}))
                )
    return findings


def _copy(source: _Rows, table: Table, store: Store) -> list[str]:
    """Copy a table; returns what of it is lost."""
    lost: Counter[str] = Counter()
    arrived: set[tuple[Any, ...]] = set()
    names: list[str] = []
    with store.writing(f"save {table.name}") as connection:
        for row in source.rows(table):
            names = names or [column.name for column in table.primary_key]
            try:
                with connection.begin_nested():
                    if table is records:
                        _plan(connection, row)
                    source.put(connection, table, row)
                    arrived.add(tuple(row[name] for name in names))
            except (SQLAlchemyError, sqlite3.Error, ValueError, KeyError) as error:
                lost[f"{_label(table, row, connection)}: not taken ({_why(error)})"] += 1
        for key in source.keys(table):
            if tuple(key.get(column.name) for column in table.primary_key) not in arrived:
                lost[_label(table, key, connection)] += 1
    if table.name in source.missing:
        lost[f"all rows of {table.name}: its definition cannot be read"] += 1
    if not lost and source.unread[table.name]:
        lost[f"up to {source.unread[table.name]} rows of {table.name}"] += 1
    return [label if count == 1 else f"{label} ({count} times)" for label, count in lost.items()]


def _plan(connection: Connection, record: Row) -> None:
    """Plan the case of a record, which has it too, where the plan was lost."""
    this = {"run_id": record["run_id"], "case_index": record["case_index"]}
    if connection.execute(select(cases.c.run_id).filter_by(**this)).first() is None:
        document = record["case"]
        document = codec.loads(document) if isinstance(document, str) else document
        connection.execute(insert(cases), this | {"document": document})


def _label(table: Table, row: Row, connection: Connection) -> str:
    if table is runs:
        return f"run '{row['id']}'"
    if table is measurements:
        of = select(records.c.run_id, records.c.case_index).where(records.c.id == row.get("record_id"))
        found = connection.execute(of).first()
        return f"run '{found[0]}', case {found[1]}: a measurement" if found else "a measurement of a lost record"
    if "case_index" in row:
        attempt = f", attempt {row['attempt']}" if "attempt" in row else ""
        return f"run '{row['run_id']}', case {row['case_index']}{attempt}: its {table.name.removesuffix('s')}"
    return f"{table.name} {' '.join(str(row[name]) for name in ('job_id', 'id', 'name') if name in row)}".strip()


def _drop_unreadable(store: Store) -> list[str]:
    """Leave out of the new store what was copied and cannot be understood."""
    with store.reading("check") as connection:
        asking = partial(ask, connection)
        ids = [row[0] for row in asking("SELECT id FROM runs", {})]
        faults = [fault for run_id in ids for fault in _faults(asking, run_id)]
    for fault in faults:
        with store.writing("leave out what cannot be read") as connection:
            this = runs.c.id == fault.run_id if fault.record_id is None else records.c.id == fault.record_id
            connection.execute(delete(runs if fault.record_id is None else records).where(this))
    return [fault.shown for fault in faults]


class _FileRows(_Rows):
    """Of a SQLite file: forwards to the first damaged page, backwards to the last, and one by one in between."""

    def __init__(self, file: sqlite3.Connection) -> None:
        super().__init__()
        self._file = file
        # SQLite then uses those tables whose definitions it could read, from the second statement on.
        for statement in ("PRAGMA writable_schema = ON", "SELECT 1 FROM sqlite_master"):
            list(self._read(statement))

    def rows(self, table: Table) -> Iterator[Row]:
        there = {row[1] for row in self._read(f"PRAGMA table_info({table.name})")}
        names = [column.name for column in table.columns if column.name in there]
        if not names:
            self.missing.add(table.name)
            return
        query = f"SELECT rowid, {', '.join(map(_quoted, names))} FROM {table.name}"
        first, last, end = -1, -1, None
        for number, *values in self._read(f"{query} ORDER BY rowid"):
            last = number
            yield dict(zip(names, values, strict=True))
        for number, *values in self._read(f"{query} WHERE rowid > {last} ORDER BY rowid DESC"):
            first = end = number
            yield dict(zip(names, values, strict=True))
        numbers = {number for number in self._numbers(table) if number > last and (end is None or number < first)}
        numbers.update(range(last + 1, min(first, last + _MOST_NUMBERS)) if end is not None else ())
        for number in sorted(numbers):
            try:
                for _, *values in self._file.execute(f"{query} WHERE rowid = {number}"):
                    yield dict(zip(names, values, strict=True))
            except _UNREADABLE:
                self.unread[table.name] += 1

    def keys(self, table: Table) -> list[Row]:
        found: dict[int, Row] = {}
        for _, index, *_ in self._read(f"PRAGMA index_list({table.name})"):
            names = [row[2] for row in self._read(f"PRAGMA index_info({_quoted(index)})") if row[2]]
            numbered = [column.name for column in table.primary_key if column.name not in names]  # it is the rowid
            columns = ", ".join(["rowid", *map(_quoted, [*names, *numbered])])
            for number, *values in self._read(f"SELECT {columns} FROM {table.name} INDEXED BY {_quoted(index)}"):
                found.setdefault(number, {}).update(zip([*names, *numbered], values, strict=True))
        whole = {column.name for column in table.primary_key}
        return [key for key in found.values() if whole <= key.keys()]

    def _numbers(self, table: Table) -> Iterator[int]:
        for _, index, *_ in self._read(f"PRAGMA index_list({table.name})"):
            for (number,) in self._read(f"SELECT rowid FROM {table.name} INDEXED BY {_quoted(index)}"):
                yield number

    def _read(self, query: str) -> Iterator[Any]:
        """Rows up to the first that cannot be read."""
        with suppress(*_UNREADABLE):
            yield from self._file.execute(query)

    def put(self, connection: Connection, table: Table, row: Row) -> None:
        driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
        places = ", ".join("?" * len(row))
        columns = ", ".join(map(_quoted, row))
        taken = driver.execute(f"INSERT OR IGNORE INTO {table.name} ({columns}) VALUES ({places})", [*row.values()])
        taken.close()


def _quoted(name: str) -> str:
    return f'"{name}"'


class _ServerRows(_Rows):
    """Of PostgreSQL: block by block, and within a damaged block row by row."""

    _MOST_IN_BLOCK = 292  # rows of the least size in a block of 8 KiB

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def rows(self, table: Table) -> Iterator[Row]:
        size = text(f"SELECT pg_relation_size('{table.name}') / current_setting('block_size')::int")
        with self._store.reading("check") as connection:
            blocks = int(connection.scalar(size) or 0)
        for block in range(blocks):
            whole = f"ctid >= '({block},0)' AND ctid < '({block + 1},0)'"
            try:
                yield from self._fetch(table, whole)
            except StoreError:
                for item in range(1, self._MOST_IN_BLOCK):
                    try:
                        yield from self._fetch(table, f"ctid = '({block},{item})'")
                    except StoreError:
                        self.unread[table.name] += 1

    def _fetch(self, table: Table, which: str) -> Iterable[Row]:
        with self._store.reading("check") as connection:
            return [dict(row) for row in connection.execute(select(table).where(text(which))).mappings()]

    def keys(self, table: Table) -> list[Row]:
        return []

    def put(self, connection: Connection, table: Table, row: Row) -> None:
        connection.execute(insert(table), row)
