"""Reads for pages that many people look at every other second: what a run came to, last lines, who ran what."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Text, cast, func, select

from paceline.core.case import Case
from paceline.core.record import Measurement, Record
from paceline.core.run import RunRecords
from paceline.store import history
from paceline.store.headlines import _OF_MEASUREMENT, _OF_RECORD, _fields, _run
from paceline.store.liveness import status_of
from paceline.store.queue import LogRow, log_row
from paceline.store.schema import cases, is_last, job_events, job_logs, measurements, records, runs
from paceline.store.store import Store

_PLACEMENTS = 5_000  # the latest, among which those of a follower are looked for


@dataclass(frozen=True)
class Placement:
    """One time that a follower was given a job."""

    job_id: str
    at: datetime
    run_id: str


def glance(store: Store, run_id: str) -> RunRecords | None:
    """A run with its cases and the last attempt at each, without samples, points of sweeps and conditions."""
    with store.reading(f"look at run '{run_id}'") as connection:
        row = connection.execute(select(runs).where(runs.c.id == run_id)).one_or_none()
        if row is None:
            return None
        of_record: dict[int, list[Measurement]] = defaultdict(list)
        whole = (measurements.c.scope == "") & (cast(measurements.c.at, Text) == "{}")
        wanted = select(measurements.c.record_id, *(measurements.c[name] for name in _OF_MEASUREMENT))
        of_run = wanted.join(records, records.c.id == measurements.c.record_id).where(records.c.run_id == run_id, whole)
        for found in connection.execute(of_run.order_by(measurements.c.record_id, measurements.c.position)):
            measured = Measurement.model_validate(_fields(found._mapping, _OF_MEASUREMENT))
            of_record[found.record_id].append(measured)
        mine = select(records.c.id, *(records.c[name] for name in _OF_RECORD)).where(
            records.c.run_id == run_id, is_last()
        )
        told = [
            Record.model_validate(_fields(found._mapping, _OF_RECORD) | {"measurements": of_record[found.id]})
            for found in connection.execute(mine.order_by(records.c.case_index))
        ]
        planned = select(cases.c.document).where(cases.c.run_id == run_id).order_by(cases.c.case_index)
        run = _run(row._asdict(), status_of(row.status, row.runner))
        run.cases = [Case.model_validate(document) for document in connection.scalars(planned)]
        return RunRecords(run=run, records=told)


def last_lines(store: Store, job_id: str, limit: int) -> list[LogRow]:
    """The last pieces of a job's log, the oldest first."""
    wanted = (
        select(job_logs)
        .where(job_logs.c.job_id == job_id)
        .order_by(job_logs.c.attempt.desc(), job_logs.c.number.desc())
        .limit(limit)
    )
    with store.reading(f"load the end of the log of job '{job_id}'") as connection:
        found = connection.execute(wanted).all()
    return [log_row(row) for row in reversed(found)]


def placements(store: Store, follower: str, limit: int) -> list[Placement]:
    """What a follower was given lately, the latest first."""
    wanted = select(job_events).where(job_events.c.kind == "placed").order_by(job_events.c.id.desc()).limit(_PLACEMENTS)
    with store.reading(f"find what '{follower}' ran") as connection:
        found = [row for row in connection.execute(wanted) if follower in row.document.get("followers", ())]
    return [Placement(row.job_id, row.at, row.document["run_id"]) for row in found[:limit]]


def run_count(store: Store) -> int:
    """How many runs there are."""
    with store.reading("count the runs") as connection:
        return connection.scalar(select(func.count()).select_from(runs)) or 0


def metrics(store: Store) -> list[str]:
    """The names of all metrics that were measured."""
    with store.reading("list the metrics") as connection:
        return sorted(history.known_metrics(connection))
