"""Reads whole records, which may be many: in two queries, and past everything that costs more than the reading."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import JSON, ColumnElement, Connection, Row, Text, cast, func, select

from paceline.core.garbage import no_garbage
from paceline.core.record import Measurement, Record
from paceline.core.run import RunRecords, RunStatus
from paceline.store import codec, liveness
from paceline.store.schema import cases, measurements, records, runs

_AT_ONCE = 1_000  # measurements as the database has them, beside those that were read


def load_run(connection: Connection, run_id: str, *, samples: bool = True) -> RunRecords | None:
    """The run with the last attempt at each of its cases, if there is one of this id."""
    row = connection.execute(select(runs).where(runs.c.id == run_id)).one_or_none()
    if row is None:
        return None
    with no_garbage():
        planned = select(_as_text(cases.c.document)).where(cases.c.run_id == run_id).order_by(cases.c.case_index)
        run = codec.to_run(row._asdict(), status_of(row), connection.scalars(planned))
        found = load_records(connection, (records.c.run_id == run_id) & is_last(), samples=samples)
        return RunRecords.model_construct(run=run, records=found)


def load_records(connection: Connection, which: ColumnElement[bool], *, samples: bool = True) -> list[Record]:
    """Those that were asked for, in the order of their cases and attempts; `samples` are most of what there is."""
    columns = [_as_text(measurements.c[name]) for name in (*codec.MEASUREMENT, *(("samples",) if samples else ()))]
    of_record: dict[int, list[Measurement]] = defaultdict(list)
    measured = (
        select(measurements.c.record_id, *columns)
        .where(measurements.c.record_id.in_(select(records.c.id).where(which)))
        .order_by(measurements.c.record_id, measurements.c.position)
    )
    cursor = connection.execute(measured).cursor  # there are very many, and no column of theirs needs converting
    assert cursor is not None
    while some := cursor.fetchmany(_AT_ONCE):
        for record_id, *fields in some:
            of_record[record_id].append(codec.to_measurement(*fields))
    told = select(records.c.id, *(_as_text(records.c[name]) for name in codec.RECORD)).where(which)
    rows = connection.execute(told.order_by(records.c.case_index, records.c.attempt))
    return [codec.to_record(of_record[record_id], *fields) for record_id, *fields in rows]


def is_last() -> ColumnElement[bool]:
    """Whether a row of `records` is the last attempt at its case."""
    other = records.alias("other")
    last = select(func.max(other.c.attempt)).where(
        other.c.run_id == records.c.run_id, other.c.case_index == records.c.case_index
    )
    return records.c.attempt == last.correlate(records).scalar_subquery()


def status_of(row: Row[Any]) -> RunStatus:
    """The status of a row of `runs`; one whose runner is gone does not run any more."""
    status: RunStatus = row.status
    return "interrupted" if status == "running" and not liveness.is_alive(row.runner) else status


def _as_text(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A document's text, which the codec reads faster than the database's own type for it does; others as they are."""
    return cast(column, Text).label(column.key) if isinstance(column.type, JSON) else column
