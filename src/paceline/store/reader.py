"""Reads runs from a store, and does no more: what most verbs need of it.

A SQLite file is read by the standard library alone: SQLAlchemy takes longer to import than most runs take to read. So
the queries are plain SQL that SQLite and PostgreSQL both understand. Records may be many, and are read past everything
that costs more than the reading.
"""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from paceline.core.case import Case
from paceline.core.errors import InputError, PacelineError, StoreError, unknown
from paceline.core.files import close_to_others
from paceline.core.gc_pause import no_garbage
from paceline.core.grouping import group_by
from paceline.core.record import Measurement, PackedSamples, Record
from paceline.core.run import Run, RunRecords, RunRow, machine_key
from paceline.core.stats import Summary
from paceline.core.text import clean_all
from paceline.store import codec, spool
from paceline.store.location import SCHEMA_VERSION, VERSION_TABLE, Location, status_of

BUSY_SECONDS = 30
SAMPLE_BYTES = 8
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
SAVE_THE_REST = "restore a backup, or save what is left with `paceline store check --save FILE`"
MOST_WORDS = 300  # of what a library says, which may repeat a whole document
WHOLE_CASE = """scope = '' AND CAST("at" AS TEXT) = '{}'"""  # neither one rank nor one point of a sweep
LAST_ATTEMPT = """attempt = (
    SELECT max(other.attempt) FROM records AS other
    WHERE other.run_id = records.run_id AND other.case_index = records.case_index
)"""
_NEWEST_FIRST = "ORDER BY started_at DESC, id DESC"
_RUNS_AT_ONCE = 500  # a statement takes only so many values
_EARLIER_RUNS, _EARLIER_RECORDS = 30, 20_000  # that are read to see how far runs scatter
_DOCUMENTS = {
    *("command", "tags", "environment", "runner"),
    *("case", "cause", "facts", "warnings", "conditions", "description"),
    *("at", "metric", "summary"),
}


@contextmanager
def naming_damage(doing: str, location: Location | None = None) -> Iterator[None]:
    """One clear error for whatever a value that the database holds, and that nobody can have stored, leads to."""
    try:
        yield
    except PacelineError:
        raise
    except UNREADABLE as error:
        where = f" in the store {location.shown}" if location else ""
        words = " ".join(str(error).split())[:MOST_WORDS]
        raise StoreError(f"could not {doing}{where}: what is stored is damaged ({words}); {SAVE_THE_REST}") from error


# A query in SQL, and the values of the :names in it; its rows are fetched one by one, as there may be very many.
Ask = Callable[[str, dict[str, Any]], Iterable[Any]]


def load_runs(ask: Ask, which: str = "1 = 1", values: dict[str, Any] | None = None) -> list[Run]:
    """Runs without their cases, the oldest first."""
    names = (*codec.RUN, "runner")
    query = f"SELECT {_columns(names)} FROM runs WHERE {which} ORDER BY started_at, id"
    return [Run.model_validate(_run_fields(names, row)) for row in ask(query, values or {})]


def _run_fields(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """The columns of a run by name; its runner, if it is still there, decides on the status."""
    fields = dict(zip(names, row, strict=True))
    fields |= {name: codec.loads(fields[name]) for name in names if name in _DOCUMENTS}
    fields |= {name: _instant(fields[name]) for name in ("started_at", "ended_at") if fields[name] is not None}
    return fields | {"status": status_of(fields["status"], fields.pop("runner"))}


def load_run(ask: Ask, run_id: str, *, samples: bool, measured: str = "1 = 1") -> RunRecords | None:
    """The run with the last attempt at each of its cases, if there is one of this id."""
    this = {"run_id": run_id}
    runs = load_runs(ask, "id = :run_id", this)
    if not runs:
        return None
    with no_garbage():
        planned = ask("SELECT CAST(document AS TEXT) FROM cases WHERE run_id = :run_id ORDER BY case_index", this)
        runs[0].cases = [codec.case(document) for (document,) in planned]
        last = f"run_id = :run_id AND {LAST_ATTEMPT}"
        records = load_records(ask, last, this, samples=samples, measured=measured)
        return RunRecords.model_construct(run=runs[0], records=records)


def load_records(
    ask: Ask, which: str, values: dict[str, Any], *, samples: bool = True, measured: str = "1 = 1"
) -> list[Record]:
    """Records in the order of their cases and attempts, with some of their measurements.

    `which` and `measured` are conditions for records and for measurements; samples are most of what there is.
    """
    columns = _columns([*codec.MEASUREMENT, *(["samples"] if samples else [])])
    of_record: dict[int, list[Measurement]] = defaultdict(list)
    rows = ask(
        f"SELECT record_id, {columns} FROM measurements "
        f"WHERE record_id IN (SELECT id FROM records WHERE {which}) AND {measured} ORDER BY record_id, position",
        values,
    )
    for record_id, metric, scope, at, statistic, summary, derived_from, work, *packed in rows:
        if packed and len(packed[0]) % SAMPLE_BYTES:
            raise ValueError(f"the samples of record {record_id} are cut off")
        measurement = Measurement(
            metric=codec.metric(metric),
            scope=scope,
            at=codec.loads(at),
            statistic=statistic,
            summary=partial(_summary, record_id, summary),
            samples=PackedSamples(*packed),
            derived_from=derived_from,
            work=work,
        )
        of_record[record_id].append(measurement)
    rows = ask(
        f"SELECT id, started_at, {_columns(codec.RECORD)} FROM records WHERE {which} ORDER BY case_index, attempt",
        values,
    )
    return [
        codec.to_record(of_record[record_id], _instant(started_at), dict(zip(codec.RECORD, fields, strict=True)))
        for record_id, started_at, *fields in rows
    ]


def with_records(runs: Iterable[Run], records: Iterable[Record]) -> list[RunRecords]:
    """Each run with those of the records that are its own."""
    of_run = group_by(records, lambda record: record.run_id)
    return [RunRecords.model_construct(run=run, records=of_run.get(run.id, [])) for run in runs]


def _summary(record_id: int, text: str) -> Summary:
    with naming_damage(f"read a summary of record {record_id}"):
        return codec.read(Summary, text)


def metric_names(ask: Ask) -> list[str]:
    """The names of all metrics in the store."""
    return sorted(name for (name,) in ask("SELECT DISTINCT name FROM measurements", {}))


def _columns(names: Iterable[str]) -> str:
    """Documents as their text, which the codec reads faster than a driver's own type for them; others as they are."""
    return ", ".join(f'CAST("{name}" AS TEXT)' if name in _DOCUMENTS else f'"{name}"' for name in names)


def _instant(value: str | datetime) -> datetime:
    """SQLite keeps it as text, in UTC; PostgreSQL knows the zone."""
    if isinstance(value, str):
        return datetime.fromisoformat(f"{value}+00:00")
    return value.astimezone(UTC)


class Reader(ABC):
    """A store that can be read; `paceline.store.open_reader` makes one."""

    def __init__(self, location: Location) -> None:
        self.location = location

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Give back the connections."""

    @abstractmethod
    def asking(self, doing: str) -> AbstractContextManager[Ask]:
        """Queries that are all answered as of one moment."""

    def load(self, run_id: str, *, samples: bool = True) -> RunRecords:
        """The run with the last attempt at each of its cases; without `samples` where summaries say enough."""
        with self.asking(f"load run '{run_id}'") as ask:
            records = load_run(ask, run_id, samples=samples)
            if records is None:
                raise unknown("run", run_id, _all_ids(ask))
            return records

    def runs(self, limit: int | None = 20) -> list[RunRow]:
        """The latest runs, the newest first."""
        names = ("id", "name", "status", "started_at", "ended_at", "tags", "runner", "pinned", "note")
        newest = _NEWEST_FIRST if limit is None else f"{_NEWEST_FIRST} LIMIT {limit}"
        done = f"SELECT count(*) FROM records WHERE run_id = runs.id AND {LAST_ATTEMPT} AND outcome"
        query = (
            f"SELECT {_columns(names)}, (SELECT count(*) FROM cases WHERE run_id = runs.id), ({done} = 'ok'), "
            f"({done} <> 'ok') FROM (SELECT * FROM runs {newest}) AS runs {_NEWEST_FIRST}"
        )
        with self.asking("list the runs") as ask:
            rows = [_run_fields((*names, "cases", "ok", "not_ok"), row) for row in ask(query, {})]
            return [RunRow.model_validate(row) for row in rows]

    def durations(self, limit: int) -> list[tuple[Case, float]]:
        """The seconds of the latest cases that succeeded, the oldest of them first."""
        newest = f"WHERE outcome = 'ok' ORDER BY id DESC LIMIT {limit}"
        with self.asking("read what cases took") as ask:
            rows = list(ask(f'SELECT CAST("case" AS TEXT), seconds FROM records {newest}', {}))
            return [(codec.case(text), seconds) for text, seconds in reversed(rows)]

    def run_list(self, limit: int) -> list[Run]:
        """The latest runs with their environments, without their cases; the oldest of them first."""
        with self.asking("list the runs") as ask, no_garbage():
            return load_runs(ask, f"id IN (SELECT id FROM runs {_NEWEST_FIRST} LIMIT {limit})")

    def lost_runs(self) -> list[tuple[str, datetime]]:
        """The runs of jobs whose follower died or was cut off, and when."""
        which = "kind IN ('placed', 'lost') ORDER BY id"
        lost, placed = [], {}
        with self.asking("look for lost followers") as ask:
            rows = ask(f'SELECT job_id, kind, "at", CAST(document AS TEXT) FROM job_events WHERE {which}', {})
            for job_id, kind, at, document in rows:
                if kind == "placed":
                    placed[job_id] = str(codec.loads(document).get("run_id", ""))
                elif job_id in placed:
                    lost.append((placed[job_id], _instant(at)))
        return lost

    def glances(self, run_ids: Sequence[str], *, planned: bool = False) -> dict[str, RunRecords]:
        """These runs without samples, with the last attempt at each case and its whole figures.

        Their planned cases come with them only if they are asked for.
        """
        some, names = _named("run", run_ids)
        with self.asking("look at runs") as ask, no_garbage():
            which = f"run_id IN ({names}) AND {LAST_ATTEMPT}"
            records = load_records(ask, which, some, samples=False, measured=WHOLE_CASE)
            runs = load_runs(ask, f"id IN ({names})", some)
            if planned:
                cases = defaultdict(list)
                documents = f"SELECT run_id, CAST(document AS TEXT) FROM cases WHERE run_id IN ({names})"
                for run_id, document in ask(f"{documents} ORDER BY case_index", some):
                    cases[run_id].append(codec.case(document))
                for run in runs:
                    run.cases = cases[run.id]
            return {one.run.id: one for one in with_records(runs, records)}

    def attempts(self, run_id: str, case_index: int) -> list[Record]:
        """Every attempt at one case, the first one first."""
        with self.asking(f"load case {case_index} of run '{run_id}'") as ask:
            these = {"run_id": run_id, "case_index": case_index}
            return load_records(ask, "run_id = :run_id AND case_index = :case_index", these)

    def history(self, metric: str, *, tag: str = "", limit: int | None = None) -> list[RunRecords]:
        """The newest runs that measured a metric, the oldest first, with that metric alone and without samples.

        Runs come without their lists of cases, and measurements of single ranks are left out.
        """
        with self.asking(f"read the history of '{metric}'") as ask, no_garbage():
            # Without a tag, which only Python finds in a document, the database stops at the limit.
            newest = _NEWEST_FIRST if tag or limit is None else f"{_NEWEST_FIRST} LIMIT {limit}"
            rows = ask(
                "SELECT id, CAST(tags AS TEXT) FROM runs WHERE EXISTS (SELECT 1 FROM records, measurements WHERE "
                "records.run_id = runs.id AND records.outcome = 'ok' AND measurements.record_id = records.id "
                f"AND measurements.name = :metric) {newest}",
                {"metric": metric},
            )
            run_ids = [run_id for run_id, tags in rows if not tag or tag in codec.loads(tags)][:limit]
            if not run_ids and not tag:
                raise unknown("metric", metric, metric_names(ask))
            measured = "name = :metric AND scope = ''"
            runs: list[Run] = []
            records: list[Record] = []
            for start in range(0, len(run_ids), _RUNS_AT_ONCE):
                some, names = _named("run", run_ids[start : start + _RUNS_AT_ONCE])
                runs += load_runs(ask, f"id IN ({names})", some)
                which = (
                    f"run_id IN ({names}) AND outcome = 'ok' AND {LAST_ATTEMPT} "
                    f"AND EXISTS (SELECT 1 FROM measurements AS one WHERE one.record_id = records.id AND {measured})"
                )
                records += load_records(ask, which, some | {"metric": metric}, samples=False, measured=measured)
            return with_records(sorted(runs, key=lambda run: (run.started_at, run.id)), records)

    def earlier(self, runs: Sequence[Run], metrics: Sequence[str]) -> list[RunRecords]:
        """Other runs of the machines of these, the newest ones, with these metrics alone and without samples."""
        machines = sorted({machine_key(run.environment) for run in runs} - {""})
        if not machines or not metrics:
            return []
        theirs, where = _named("machine", machines)
        these, which = _named("run", [run.id for run in runs])
        names, measured = _named("metric", metrics)
        with self.asking("read earlier runs") as ask, no_garbage():
            rows = ask(
                "SELECT id, (SELECT count(*) FROM records WHERE run_id = runs.id) FROM runs "
                f"WHERE machine IN ({where}) AND id NOT IN ({which}) {_NEWEST_FIRST} LIMIT {_EARLIER_RUNS}",
                theirs | these,
            )
            counts = dict(rows)
            totals = accumulate(counts.values())
            ids = [run_id for run_id, total in zip(counts, totals, strict=True) if total <= _EARLIER_RECORDS]
            if not ids:
                return []
            some, chosen = _named("run", ids)
            good = f"run_id IN ({chosen}) AND outcome = 'ok' AND {LAST_ATTEMPT}"
            records = load_records(ask, good, some | names, samples=False, measured=f"name IN ({measured})")
            return with_records(load_runs(ask, f"id IN ({chosen})", some), records)

    def find_run(self, text: str) -> str:
        """The id of the run that a person means by `last`, an id, the beginning of one, or a tag that no other has."""
        with self.asking("find a run") as ask:
            return self._find_run(ask, text)

    def find_runs(self, text: str) -> list[str]:
        """The ids of the runs that a person means: all that carry this tag, the oldest first, or the one run."""
        with self.asking("find runs") as ask:
            rows = ask("SELECT id, CAST(tags AS TEXT) FROM runs ORDER BY started_at, id", {})
            tagged = [run_id for run_id, tags in rows if text in codec.loads(tags)]
            return tagged or [self._find_run(ask, text)]

    def _find_run(self, ask: Ask, text: str) -> str:
        if text == "last":
            newest = [run_id for (run_id,) in ask(f"SELECT id FROM runs {_NEWEST_FIRST} LIMIT 1", {})]
            if not newest:
                message = f"no last run: the store {self.location.shown} is empty; `paceline run` fills it"
                raise InputError("empty-store", message, value=self.location.shown)
            return str(newest[0])
        rows = ask(f"SELECT id, CAST(tags AS TEXT) FROM runs {_NEWEST_FIRST}", {})
        tags: dict[str, list[str]] = {run_id: codec.loads(document) for run_id, document in rows}
        matches, what = [run_id for run_id in tags if text and run_id.startswith(text)], "beginning"
        if not matches:
            matches, what = [run_id for run_id, its in tags.items() if text in its], "tag"
        if text in matches or len(matches) == 1:
            return text if text in matches else matches[0]
        if not matches:
            raise unknown("run", text, {*tags, *chain.from_iterable(tags.values())})
        more = f" and {len(matches) - 10} more" if len(matches) > 10 else ""
        listed = f"{', '.join(matches[:10])}{more}"
        message = f"'{text}' is the {what} of {len(matches)} runs: {listed}; type more of the id of yours"
        raise InputError("ambiguous-run", message, value=text)


def _named(name: str, values: Sequence[str]) -> tuple[dict[str, str], str]:
    """Values of a query by name, and the names as a query lists them."""
    named = {f"{name}{place}": value for place, value in enumerate(values)}
    return named, ", ".join(f":{one}" for one in named)


def _all_ids(ask: Ask) -> list[str]:
    """Every run, the newest first."""
    return [run_id for (run_id,) in ask(f"SELECT id FROM runs {_NEWEST_FIRST}", {})]


class FileReader(Reader):
    """A SQLite file at the newest schema version. Threads may not share it."""

    def __init__(self, location: Location, connection: sqlite3.Connection) -> None:
        super().__init__(location)
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def asking(self, doing: str) -> Iterator[Ask]:
        def ask(query: str, values: dict[str, Any]) -> sqlite3.Cursor:
            return self._connection.execute(query, clean_all(values))

        try:
            self._connection.execute("BEGIN")
            try:
                with naming_damage(doing, self.location):
                    yield ask
            finally:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            from paceline.store.store import store_error

            raise store_error(doing, self.location, error) from error


def open_file(location: Location) -> FileReader | None:
    """The store, if it is a file that can be read as it is: nothing to be made, migrated or imported first.

    The code that does those things reports best what is wrong with a file that cannot be read.
    """
    if location.path is None or any(spool.is_ours(path) for path in location.spools):
        return None
    options = read_only_options(location.path) if is_read_only(location.path) else {"mode": "rw"}
    close_files_to_others(location.path)
    try:
        connection = sqlite3.connect(
            f"{location.path.as_uri()}?{urlencode(options)}", timeout=BUSY_SECONDS, isolation_level=None, uri=True
        )
    except sqlite3.Error:
        return None
    with suppress(sqlite3.Error, UnicodeDecodeError):  # the latter where the schema itself is damaged
        connection.execute("PRAGMA query_only = ON")
        if connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(SCHEMA_VERSION,)]:
            return FileReader(location, connection)
    connection.close()
    return None


def close_files_to_others(path: Path) -> None:
    """Let only its user read a store, whatever made it earlier allowed."""
    for file in (path, *(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))):
        with suppress(OSError):
            close_to_others(file)


def is_read_only(path: Path) -> bool:
    """Whether there is a file that may only be read."""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def read_only_options(path: Path) -> dict[str, str]:
    """How SQLite opens such a file."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        return {"mode": "ro"}
    # Reading a WAL database writes to a shared-memory file next to it, unless nobody else can be writing.
    return {"mode": "ro", "immutable": "1"}
