"""The store: every change is one transaction, and what was acknowledged survives the loss of the process."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, insert, select, text, update
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)

from paceline.core.benchmark import described
from paceline.core.case import Case
from paceline.core.environment import Environment
from paceline.core.errors import InputError, StoreError, unknown
from paceline.core.metric import Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, PackedSamples, Record
from paceline.core.run import Run, RunRecords, RunStatus, machine_key, session_of
from paceline.store import codec, location, spool
from paceline.store.location import Location
from paceline.store.queue import JobQueue, Writing
from paceline.store.reader import MOST_WORDS, SAVE_THE_REST, Ask, Reader, load_runs, naming_damage
from paceline.store.schema import cases, measurements, partials, records, runs

# What a database's message contains, and what to do about it.
_REMEDIES = {
    "full": "free some space on that disk, then try again",
    "no space": "free some space on that disk, then try again",
    "disk i/o error": "check that disk's free space and health, then try again",
    "locked": "another process keeps it locked; wait for it or end it, then try again",
    "readonly": "open it where you may write, or copy it there",
    "unable to open": "check that the directory exists and that you may write there",
    "not a database": "give the path of a Paceline store, or of a file that does not exist yet",
    "malformed": SAVE_THE_REST,
    "could not decode": SAVE_THE_REST,
    "codec can't decode": SAVE_THE_REST,
}


class NeverBegun(StoreError):
    """A record or a change is of a run that the store does not have."""


class Store(Reader):
    """An open store; `paceline.store.open_store` makes one. Threads may share it, forked processes may not."""

    def __init__(self, location: Location, *, reads: Engine, writes: Engine) -> None:
        super().__init__(location)
        self._reads = reads
        self._writes = writes

    def close(self) -> None:
        self._writes.dispose()

    @property
    def queue(self) -> JobQueue:
        """The jobs of a leader."""
        return JobQueue(self)

    def begin(self, run: Run) -> None:
        """Store a new run with its planned cases; this process is its runner."""
        with self.writing(f"begin run '{run.id}'") as connection:
            self.begin_within(connection, run)

    def plan(self, run_id: str, more: Sequence[Case]) -> None:
        """Add cases to a run of which nobody knew at its beginning how many it would have."""
        with self.writing(f"plan cases of run '{run_id}'") as connection:
            self._lock(connection, run_id)
            connection.execute(insert(cases), [codec.case_row(run_id, case) for case in more])

    def finish(self, run_id: str, status: RunStatus = "finished") -> None:
        """Set how the run ended, and that it did now."""
        with self.writing(f"finish run '{run_id}'") as connection:
            self.finish_within(connection, run_id, status)

    def reopen(self, run_id: str) -> None:
        """Mark the run as running, with this process as its runner."""
        with self.writing(f"reopen run '{run_id}'") as connection:
            self._lock(connection, run_id)
            Writing(self, connection).reopen_run(run_id)

    def add(self, record: Record) -> None:
        """Store a record in place of its partial samples; the same attempt at the same case is stored once.

        When the database cannot take it, the record goes to the spool and StoreError names the file.
        """
        doing = f"keep the record of case {record.case.index} of run '{record.run_id}'"
        try:
            with self._writes.begin() as connection:
                self.add_within(connection, record)
        except SQLAlchemyError as error:
            if _is_the_records_fault(error):
                raise store_error(doing, self.location, error) from error
            path = spool.keep(record, self.location.spools)
            raise StoreError(
                f"could not {doing} in the store {self.location.shown}: {reason(error)}; the record is safe in {path} "
                f"and is imported when the store is next opened, or by `paceline results --import {path}`; "
                f"{remedy(error, self.location)}"
            ) from error

    def keep_partial(
        self, run_id: str, case_index: int, attempt: int, metric: str, unit: str, samples: Sequence[float]
    ) -> None:
        """Append samples of the case in flight, so that they outlive a runner that dies."""
        if not len(samples):
            return
        with self.queue.writing(f"keep samples of case {case_index} of run '{run_id}'") as writing:
            writing.keep_samples(run_id, case_index, attempt, metric, unit, samples)

    def recover(self, run_id: str) -> list[Record]:
        """Turn what a runner that died left of its cases in flight into records, and return those."""
        with self.writing(f"recover run '{run_id}'") as connection:
            return self.recover_within(connection, run_id)

    def import_spool(self, path: Path) -> tuple[int, list[str]]:
        """Take over spooled records; how many, and why the others stay in the file."""

        def add(record: Record) -> None:
            try:
                with self._writes.begin() as connection:
                    if not record.is_described:  # spooled by a version that did not describe records
                        record = described(record, self._lock(connection, record.run_id))
                    self.add_within(connection, record)
            except SQLAlchemyError as error:
                if _is_the_records_fault(error):
                    raise store_error("import a record", self.location, error) from error
                raise

        try:
            return spool.import_records(path, add)
        except FileNotFoundError:
            message = f"there is no spool file '{path}': name the one that the error message named"
            raise InputError("missing-file", message, value=str(path)) from None
        except OSError as error:
            raise StoreError(f"could not import the spool file '{path}': {error.strerror}") from error
        except SQLAlchemyError as error:
            raise store_error(f"import '{path}'", self.location, error) from error

    def import_run(self, loaded: RunRecords) -> None:
        """Store a run that another tool measured, all of it or nothing; one that is here already is refused."""
        run = loaded.run
        if self.has(run.id):
            message = f"run '{run.id}' was imported already; `paceline report {run.id}` shows it"
            raise InputError("imported-already", message, value=run.id)
        with self.writing(f"import run '{run.id}'") as connection:
            self.begin_within(connection, run)
            for record in loaded.records:
                self.add_within(connection, record)

    def has(self, run_id: str) -> bool:
        """Whether there is a run of this id."""
        with self.reading(f"look for run '{run_id}'") as connection:
            return connection.scalar(select(runs.c.id).where(runs.c.id == run_id)) is not None

    def is_alive(self, run_id: str) -> bool:
        """Whether the process that runs the run still exists, as far as this host can know."""
        with self.reading(f"look for the runner of run '{run_id}'") as connection:
            runner = connection.scalar(select(runs.c.runner).where(runs.c.id == run_id))
            if runner is None:
                raise unknown("run", run_id, connection.scalars(select(runs.c.id)))
        return location.is_alive(runner)

    def begin_within(self, connection: Connection, run: Run) -> None:
        """Store a new run as part of a larger change; it then knows its session."""
        run.session = run.session or self._session(connection, run)
        connection.execute(insert(runs), codec.run_row(run, location.this_runner()))
        if run.cases:
            connection.execute(insert(cases), [codec.case_row(run.id, case) for case in run.cases])

    def _session(self, connection: Connection, run: Run) -> str:
        # Several may run at once, and an earlier one may have ended last.
        newest = "id IN (SELECT id FROM runs WHERE machine = :machine ORDER BY started_at DESC LIMIT 20)"
        on_machine = load_runs(partial(ask, connection), newest, {"machine": machine_key(run.environment)})
        return session_of(run, reversed(on_machine))

    def finish_within(self, connection: Connection, run_id: str, status: RunStatus) -> None:
        """Set how the run ended as part of a larger change."""
        self._lock(connection, run_id)
        connection.execute(update(runs).where(runs.c.id == run_id).values(status=status, ended_at=datetime.now(UTC)))

    def add_within(self, connection: Connection, record: Record) -> bool:
        """Insert a record unless its attempt has one; an interrupted one gives way to what really happened."""
        self._lock(connection, record.run_id)
        attempt = {"run_id": record.run_id, "case_index": record.case.index, "attempt": record.attempt}
        connection.execute(delete(partials).filter_by(**attempt))
        stored = connection.execute(select(records.c.id, records.c.cause).filter_by(**attempt)).one_or_none()
        if stored is not None:
            is_interrupted = stored.cause is not None and stored.cause["kind"] == CauseKind.INTERRUPTED.value
            if not record.is_final or not is_interrupted:
                return False
            connection.execute(delete(records).where(records.c.id == stored.id))
        inserted = connection.execute(insert(records).returning(records.c.id), codec.record_row(record))
        rows = codec.measurement_rows(inserted.scalar_one(), record)
        if rows:
            connection.execute(insert(measurements), rows)
        return True

    def recover_within(self, connection: Connection, run_id: str) -> list[Record]:
        """Turn samples of cases in flight into records as part of a larger change."""
        environment = self._lock(connection, run_id)
        of_run = partials.c.run_id == run_id
        of_case = (cases.c.run_id == partials.c.run_id) & (cases.c.case_index == partials.c.case_index)
        query = select(partials, cases.c.document).join(cases, of_case).where(of_run).order_by(partials.c.id)
        attempts: dict[tuple[int, int], list[Row[Any]]] = defaultdict(list)
        for row in connection.execute(query).all():
            attempts[row.case_index, row.attempt].append(row)
        recovered = [described(_interrupted_record(rows), environment) for rows in attempts.values()]
        recovered = [record for record in recovered if self.add_within(connection, record)]
        connection.execute(delete(partials).where(of_run))
        return recovered

    @contextmanager
    def asking(self, doing: str) -> Iterator[Ask]:
        with self.reading(doing) as connection:
            yield partial(ask, connection)

    @contextmanager
    def writing(self, doing: str) -> Iterator[Connection]:
        """A transaction that changes something."""
        with self._failing_as_store_error(doing), self._writes.begin() as connection:
            yield connection

    @contextmanager
    def reading(self, doing: str) -> Iterator[Connection]:
        """A transaction that only reads."""
        with (
            self._failing_as_store_error(doing),
            self._reads.connect() as connection,
            naming_damage(doing, self.location),
        ):
            yield connection

    @contextmanager
    def maintaining(self, doing: str) -> Iterator[Callable[[str], list[Any]]]:
        """Statements that are each a transaction of their own."""
        if self.location.path is None:
            with self._failing_as_store_error(doing), self._writes.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                yield lambda statement: [connection.execute(text(statement)).rowcount]
        else:
            with self.driver(doing) as driver:
                yield lambda statement: driver.execute(statement).fetchall()

    @contextmanager
    def driver(self, doing: str) -> Iterator[sqlite3.Connection]:
        """SQLite's own connection, for what only it can do."""
        with self._failing_as_store_error(doing):
            pooled = self._writes.raw_connection()
        try:
            driver: sqlite3.Connection = pooled.driver_connection  # type: ignore[assignment]
            yield driver
        except sqlite3.Error as error:
            raise store_error(doing, self.location, error) from error
        finally:
            pooled.close()

    @contextmanager
    def _failing_as_store_error(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:  # some come past SQLAlchemy
            raise store_error(doing, self.location, error) from error

    def _lock(self, connection: Connection, run_id: str) -> Environment:
        """Let one writer at a time change a run, of which SQLite lets in only one anyway; returns its environment."""
        row = connection.execute(select(runs.c.environment).where(runs.c.id == run_id).with_for_update()).one_or_none()
        if row is None:
            raise NeverBegun(f"run '{run_id}' is not in the store {self.location.shown}: it was never begun there")
        return Environment.read(row.environment)


def ask(connection: Connection, question: str, values: dict[str, Any]) -> Iterator[Any]:
    """The rows of a query by the driver's own cursor: there may be very many."""
    cursor = connection.execute(text(question), values).cursor
    assert cursor is not None
    return iter(cursor.fetchone, None)


def _is_the_records_fault(error: SQLAlchemyError) -> bool:
    """Whether the same record would be refused again, however healthy the database is."""
    if isinstance(error, DBAPIError):
        return isinstance(error, IntegrityError | DataError)
    return isinstance(error, StatementError)


def is_the_contents_fault(error: Exception) -> bool:
    """Whether something could not be stored because of what it is, as far as can be known: others may be stored.

    A database that is gone, locked or full refuses everything; a second leader is no fault of a report.
    """
    if isinstance(error, StoreError) and not isinstance(error, NeverBegun):
        cause = error.__cause__
        return isinstance(cause, SQLAlchemyError) and is_the_contents_fault(cause)
    return not isinstance(error, OSError | MemoryError | OperationalError | InterfaceError)


def _interrupted_record(rows: Sequence[Row[Any]]) -> Record:
    """The record of an attempt from the samples it left, in the order they were stored."""
    first, last = rows[0], rows[-1]
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        samples[row.metric, row.unit] += PackedSamples(row.samples)()
    count = sum(map(len, samples.values()))
    message = f"the runner ended while this case was being measured; its {count} samples are kept"
    return Record(
        run_id=first.run_id,
        case=Case.model_validate(first.document),
        attempt=first.attempt,
        outcome=Outcome.FAILED,
        cause=Cause(kind=CauseKind.INTERRUPTED, message=message),
        started_at=first.kept_at,
        seconds=(last.kept_at - first.kept_at).total_seconds(),
        measurements=[
            Measurement.of_samples(Metric(name=name, unit=unit), values) for (name, unit), values in samples.items()
        ],
    )


def reason(error: Exception) -> str:
    """The database's own message in one line, without statements or parameters."""
    message = str(error.orig) if isinstance(error, StatementError) and error.orig else str(error)
    return " ".join(message.split())[:MOST_WORDS] or type(error).__name__


def refusal(error: Exception) -> str:
    """Why the store refuses what it was given, first in words and then in the database's own."""
    if isinstance(error, IntegrityError):
        return f"it contradicts what the store holds already ({reason(error)})"
    return reason(error)


def remedy(error: Exception, location: Location) -> str:
    """What to do about it."""
    if isinstance(error, IntegrityError):
        return "this contradicts what the store holds already; use another run id, or cases that the run planned"
    is_refusal = isinstance(error, SQLAlchemyError) and not isinstance(error, DBAPIError)
    if is_refusal or isinstance(error, DataError):
        return "change the value that it refuses"
    message = reason(error).lower()
    default = "check that the file is intact" if location.path else "check that the server runs and lets you in"
    return next((advice for sign, advice in _REMEDIES.items() if sign in message), default)


def opening_error(location: Location, error: Exception) -> StoreError | InputError:
    """The error to raise when the store could not be opened: a file of another kind was not meant to be one."""
    failed = store_error("open the database", location, error)
    if location.path and "not a database" in reason(error).lower():
        return InputError("not-a-database", str(failed), key="--store", value=location.shown)
    return failed


def store_error(doing: str, location: Location, error: Exception) -> StoreError:
    """The error to raise when the store at this location could not do something."""
    return StoreError(f"could not {doing} in the store {location.shown}: {reason(error)}; {remedy(error, location)}")
