"""Reads one metric over many runs without touching the samples, which are most of a store."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, Text, cast, exists, select

from paceline.core.case import Case
from paceline.core.metric import Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords
from paceline.core.stats import Summary
from paceline.store import codec
from paceline.store.schema import is_last, measurements, records, runs

_AT_ONCE = 500  # runs in one query: a statement takes only so many values


def read(connection: Connection, metric: str, *, tag: str = "", limit: int | None = None) -> list[RunRecords]:
    """The newest runs that measured the metric, the oldest first; with that metric of each case and nothing else.

    Runs come without their lists of cases, and measurements of single ranks are left out.
    """
    measured = exists().where(
        records.c.run_id == runs.c.id,
        records.c.outcome == Outcome.OK.value,
        measurements.c.record_id == records.c.id,
        measurements.c.name == metric,
    )
    newest = select(runs.c.id, runs.c.tags).where(measured).order_by(runs.c.started_at.desc(), runs.c.id.desc())
    rows = connection.execute(newest if tag else newest.limit(limit))
    run_ids = [row.id for row in rows if not tag or tag in row.tags][:limit]
    matches = []
    for start in range(0, len(run_ids), _AT_ONCE):
        some = run_ids[start : start + _AT_ONCE]
        of_run: dict[str, list[Record]] = defaultdict(list)
        for record in _records(connection, metric, some):
            of_run[record.run_id].append(record)
        for row in connection.execute(select(runs).where(runs.c.id.in_(some))):
            fields = {name: value for name, value in row._asdict().items() if name != "runner"}
            matches.append(RunRecords(run=Run.model_validate(fields), records=of_run[row.id]))
    return sorted(matches, key=lambda records: (records.run.started_at, records.run.id))


def known_metrics(connection: Connection) -> list[str]:
    """The names of all metrics in the store."""
    return list(connection.scalars(select(measurements.c.name).distinct()))


def _records(connection: Connection, metric: str, run_ids: list[str]) -> list[Record]:
    columns = [records.c[name] for name in ("id", "run_id", "attempt", "outcome", "started_at", "seconds")]
    columns += [records.c.warnings, records.c.description]
    columns += [measurements.c[name] for name in ("at", "statistic", "summary")]
    texts = [cast(records.c.case, Text).label("case_text"), cast(measurements.c.metric, Text).label("metric_text")]
    query = (
        select(*columns, *texts)
        .join(measurements, measurements.c.record_id == records.c.id)
        .where(records.c.run_id.in_(run_ids), records.c.outcome == Outcome.OK.value, is_last())
        .where(measurements.c.name == metric, measurements.c.scope == "")
        .order_by(records.c.run_id, records.c.case_index, measurements.c.position)
    )
    of_id: dict[int, Record] = {}
    # Over many runs the same few cases and metrics come again and again: each is read once.
    parsed: dict[str, Any] = {}
    for row in connection.execute(query):
        if row.id not in of_id:
            case = parsed.get(row.case_text) or parsed.setdefault(row.case_text, Case(**codec.loads(row.case_text)))
            of_id[row.id] = Record(
                run_id=row.run_id,
                case=case,
                attempt=row.attempt,
                outcome=row.outcome,
                started_at=row.started_at,
                seconds=row.seconds,
                warnings=row.warnings,
                **row.description,
            )
        text = row.metric_text
        parsed_metric = parsed.get(text) or parsed.setdefault(text, Metric(**codec.loads(text)))
        summary = Summary.model_validate(row.summary)
        measurement = Measurement(metric=parsed_metric, at=row.at, statistic=row.statistic, summary=summary)
        of_id[row.id].measurements.append(measurement)
    return list(of_id.values())
