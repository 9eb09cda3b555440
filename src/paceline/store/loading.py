"""Reads runs and whole records, which may be many: past everything that costs more than the reading.

The questions are plain SQL that SQLite and PostgreSQL both understand, so that whoever has a connection can ask them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from paceline.core.gc_pause import no_garbage
from paceline.core.record import Measurement, PackedSamples, Record, Statistic
from paceline.core.run import RunRecords
from paceline.core.stats import Summary
from paceline.store import codec
from paceline.store.location import status_of

_AT_ONCE = 1_000  # measurements as the database has them, beside those that were read
_DOCUMENTS = {
    *("command", "tags", "environment", "runner"),
    *("case", "cause", "facts", "warnings", "conditions", "description"),
    *("at", "metric", "summary"),
}
_LAST = """attempt = (
    SELECT max(other.attempt) FROM records AS other
    WHERE other.run_id = records.run_id AND other.case_index = records.case_index
)"""


def to_measurement(
    metric: str,
    scope: str,
    at: str,
    statistic: Statistic,
    summary: str,
    derived_from: str,
    work: float | None,
    samples: bytes = b"",
) -> Measurement:
    """The measurement of the columns `codec.MEASUREMENT`, whose documents are still text, and of its samples."""
    return Measurement(
        metric=codec.metric(metric),
        scope=scope,
        at=codec.loads(at),
        statistic=statistic,
        summary=partial(codec.read, Summary, summary),
        samples=PackedSamples(samples),
        derived_from=derived_from,
        work=work,
    )


class Rows(Protocol):
    """What a database's cursor has in common with every other one."""

    def fetchone(self) -> Any:
        """The next row, if there is one."""

    def fetchmany(self, size: int, /) -> Sequence[Any]:
        """Some more rows."""

    def fetchall(self) -> Sequence[Any]:
        """All other rows."""


Ask = Callable[[str, dict[str, Any]], Rows]  # a question in SQL, and the values of the :names in it


def load_run(ask: Ask, run_id: str, *, samples: bool = True) -> RunRecords | None:
    """The run with the last attempt at each of its cases, if there is one of this id."""
    this = {"run_id": run_id}
    row = ask(f"SELECT {_columns(codec.RUN)}, {_columns(['runner'])} FROM runs WHERE id = :run_id", this).fetchone()
    if row is None:
        return None
    *fields, runner = row
    told = dict(zip(codec.RUN, fields, strict=True))
    told |= {name: codec.loads(told[name]) for name in codec.RUN if name in _DOCUMENTS}
    told |= {name: _instant(told[name]) for name in ("started_at", "ended_at") if told[name] is not None}
    told["status"] = status_of(told["status"], codec.loads(runner))
    with no_garbage():
        planned = ask(
            "SELECT CAST(document AS TEXT) FROM cases WHERE run_id = :run_id ORDER BY case_index", this
        ).fetchall()
        run = codec.to_run(told, (document for (document,) in planned))
        found = _records(ask, f"run_id = :run_id AND {_LAST}", this, samples=samples)
        return RunRecords.model_construct(run=run, records=found)


def load_all_attempts(ask: Ask, run_id: str) -> list[Record]:
    """Every attempt at every case of a run."""
    return _records(ask, "run_id = :run_id", {"run_id": run_id})


def load_attempts(ask: Ask, run_id: str, case_index: int) -> list[Record]:
    """Every attempt at one case, the first one first."""
    these = {"run_id": run_id, "case_index": case_index}
    return _records(ask, "run_id = :run_id AND case_index = :case_index", these)


def _records(ask: Ask, which: str, values: dict[str, Any], *, samples: bool = True) -> list[Record]:
    """Those that were asked for, in the order of their cases and attempts; `samples` are most of what there is."""
    columns = _columns([*codec.MEASUREMENT, *(["samples"] if samples else [])])
    of_record: dict[int, list[Measurement]] = defaultdict(list)
    measured = ask(
        f"SELECT record_id, {columns} FROM measurements "
        f"WHERE record_id IN (SELECT id FROM records WHERE {which}) ORDER BY record_id, position",
        values,
    )
    while some := measured.fetchmany(_AT_ONCE):
        for record_id, *fields in some:
            of_record[record_id].append(to_measurement(*fields))
    told = ask(
        f"SELECT id, started_at, {_columns(codec.RECORD)} FROM records WHERE {which} ORDER BY case_index, attempt",
        values,
    )
    return [
        codec.to_record(of_record[record_id], _instant(started_at), *fields)
        for record_id, started_at, *fields in told.fetchall()
    ]


def _columns(names: Iterable[str]) -> str:
    """Documents as their text, which the codec reads faster than a driver's own type for them; others as they are."""
    return ", ".join(f'CAST("{name}" AS TEXT)' if name in _DOCUMENTS else f'"{name}"' for name in names)


def _instant(value: str | datetime) -> datetime:
    """SQLite keeps it as text, in UTC; PostgreSQL knows the zone."""
    if isinstance(value, str):
        return datetime.fromisoformat(f"{value}+00:00")
    return value.astimezone(UTC)
