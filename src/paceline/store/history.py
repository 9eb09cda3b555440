"""Reads one metric over many runs without touching the samples, which are most of a store."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Text, cast, exists, select

from paceline.core.case import Case
from paceline.core.metric import Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.stats import Summary
from paceline.store import codec
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
    # Over many runs the same few cases and metrics come again and again: each is read once.
    known: dict[str, Any] = {}
    for row in connection.execute(_asked(metric, last, run_ids)):
        if row.id not in found:
            case = known.get(row.case_text) or known.setdefault(row.case_text, Case(**codec.loads(row.case_text)))
            found[row.id] = Record(
                run_id=row.run_id,
                case=case,
                attempt=row.attempt,
                outcome=row.outcome,
                started_at=row.started_at,
                seconds=row.seconds,
                warnings=row.warnings,
                **row.description,
            )
        told = known.get(row.metric_text) or known.setdefault(row.metric_text, Metric(**codec.loads(row.metric_text)))
        summary = Summary.model_validate(row.summary)
        measured = Measurement(metric=told, at=row.at, statistic=row.statistic, summary=summary)
        found[row.id].measurements.append(measured)
    return list(found.values())


def _asked(metric: str, last: ColumnElement[bool], run_ids: list[str]) -> Select[Any]:
    own = [getattr(records.c, name) for name in ("id", "run_id", "attempt", "outcome", "started_at", "seconds")]
    told = [getattr(measurements.c, name) for name in ("at", "statistic", "summary")]
    texts = [cast(records.c.case, Text).label("case_text"), cast(measurements.c.metric, Text).label("metric_text")]
    return (
        select(*own, records.c.warnings, records.c.description, *told, *texts)
        .join(measurements, measurements.c.record_id == records.c.id)
        .where(records.c.run_id.in_(run_ids), records.c.outcome == Outcome.OK.value, last)
        .where(measurements.c.name == metric, measurements.c.scope == "")
        .order_by(records.c.run_id, records.c.case_index, measurements.c.position)
    )
