"""Reads one metric over many runs without touching the samples, which are most of a store."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, exists, select

from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.store.schema import measurements, records, runs

_AT_ONCE = 500  # runs in one query: a statement takes only so many values


def read(
    connection: Connection, metric: str, *, last: ColumnElement[bool], tag: str = "", limit: int | None = None
) -> list[RunRecords]:
    """The newest runs that measured the metric, the oldest first; with that metric of each case and nothing else.

    Runs come without their lists of cases, and measurements of single ranks are left out.
    """
    wanted = _newest(connection, metric, tag, limit)
    of_run: dict[str, list[Record]] = defaultdict(list)
    for start in range(0, len(wanted), _AT_ONCE):
        for record in _records(connection, metric, last, wanted[start : start + _AT_ONCE]):
            of_run[record.run_id].append(record)
    found = []
    for start in range(0, len(wanted), _AT_ONCE):
        about = select(runs).where(runs.c.id.in_(wanted[start : start + _AT_ONCE]))
        for row in connection.execute(about):
            fields = {name: value for name, value in row._asdict().items() if name != "runner"}
            found.append(RunRecords(run=Run.model_validate(fields), records=of_run[row.id]))
    return sorted(found, key=lambda records: (records.run.started_at, records.run.id))


def known_metrics(connection: Connection) -> list[str]:
    """The names of all metrics in the store."""
    return list(connection.scalars(select(measurements.c.name).distinct()))


def _newest(connection: Connection, metric: str, tag: str, limit: int | None) -> list[str]:
    measured = exists().where(
        records.c.run_id == runs.c.id,
        records.c.outcome == Outcome.OK.value,
        measurements.c.record_id == records.c.id,
        measurements.c.name == metric,
    )
    asked = select(runs.c.id, runs.c.tags).where(measured).order_by(runs.c.started_at.desc(), runs.c.id.desc())
    found = [row.id for row in connection.execute(asked if tag else asked.limit(limit)) if not tag or tag in row.tags]
    return found[:limit]


def _records(connection: Connection, metric: str, last: ColumnElement[bool], run_ids: list[str]) -> list[Record]:
    found: dict[int, Record] = {}
    for row in connection.execute(_asked(metric, last, run_ids)):
        if row.id not in found:
            found[row.id] = _record(row._asdict())
        measured = {name: getattr(row, name) for name in ("metric", "at", "statistic", "summary")}
        found[row.id].measurements.append(Measurement.model_validate(measured))
    return list(found.values())


def _asked(metric: str, last: ColumnElement[bool], run_ids: list[str]) -> Select[Any]:
    own = [getattr(records.c, name) for name in ("id", "run_id", "case", "attempt", "outcome", "started_at", "seconds")]
    told = [getattr(measurements.c, name) for name in ("metric", "at", "statistic", "summary")]
    return (
        select(*own, records.c.doubts, *told)
        .join(measurements, measurements.c.record_id == records.c.id)
        .where(records.c.run_id.in_(run_ids), records.c.outcome == Outcome.OK.value, last)
        .where(measurements.c.name == metric, measurements.c.scope == "")
        .order_by(records.c.run_id, records.c.case_index, measurements.c.position)
    )


def _record(row: dict[str, Any]) -> Record:
    names = ("run_id", "case", "attempt", "outcome", "started_at", "seconds", "doubts")
    return Record.model_validate({name: row[name] for name in names})
