"""Queries for pages that many people look at every other second: results of a run, last lines, who ran what."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Text, cast, func, select

from paceline.core.case import Case
from paceline.core.record import Record
from paceline.core.run import Run, RunRecords
from paceline.store import codec, history
from paceline.store.location import status_of
from paceline.store.queue import LogRow, log_row
from paceline.store.schema import cases, is_last, job_events, job_logs, measurements, records, runs
from paceline.store.store import Store

_RUNS_AT_ONCE = 500  # whose machines are asked for in one query


@dataclass(frozen=True)
class CaseDuration:
    """One case that has ended."""

    case: Case
    gpus: tuple[str, ...]  # of the machine, by name
    seconds: float


def latest(store: Store, limit: int) -> list[CaseDuration]:
    """The latest, the oldest of them first."""
    columns = (records.c.run_id, cast(records.c.case, Text).label("case_text"), records.c.seconds)
    newest = select(*columns).order_by(records.c.id.desc()).limit(limit)
    with store.reading("read what cases took") as connection:
        rows = list(connection.execute(newest))[::-1]
        run_ids = sorted({row.run_id for row in rows})
        machines: dict[str, tuple[str, ...]] = {}
        for first in range(0, len(run_ids), _RUNS_AT_ONCE):
            some = runs.c.id.in_(run_ids[first : first + _RUNS_AT_ONCE])
            for row in connection.execute(select(runs.c.id, runs.c.environment["gpus"].label("gpus")).where(some)):
                gpus = row.gpus if isinstance(row.gpus, list) else []
                measurable = [gpu for gpu in gpus if gpu.get("cuda_index") is not None]
                machines[row.id] = tuple(gpu.get("name") or "GPU" for gpu in measurable)
    # Many cases are alike; each is parsed once.
    parsed = {text: Case(**codec.loads(text)) for text in {row.case_text for row in rows}}
    return [CaseDuration(parsed[row.case_text], machines.get(row.run_id, ()), row.seconds) for row in rows]


_OF_RECORD = ("run_id", "case", "attempt", "outcome", "cause", "started_at", "seconds", "facts", "warnings")
_OF_MEASUREMENT = ("metric", "statistic", "summary", "derived_from", "work")


def headlines(store: Store) -> list[RunRecords]:
    """All runs, the oldest first, with the last attempt at each case; planned cases and conditions are left out."""
    with store.reading("read the figures of all runs") as connection:
        of_run = _last_records(connection)
        oldest_first = select(runs).order_by(runs.c.started_at, runs.c.id)
        return [RunRecords(run=_run(row), records=of_run[row.id]) for row in connection.execute(oldest_first)]


def _last_records(connection: Connection, run_id: str | None = None) -> dict[str, list[Record]]:
    """The last attempt at each case, of one run or of all, by run; without samples, points of sweeps and conditions."""
    whole = (measurements.c.scope == "") & (cast(measurements.c.at, Text) == "{}")
    measured = select(measurements.c.record_id, *(measurements.c[name] for name in _OF_MEASUREMENT)).where(whole)
    attempts = select(records.c.id, records.c.description, *(records.c[name] for name in _OF_RECORD)).where(is_last())
    if run_id is not None:
        measured = measured.join(records, records.c.id == measurements.c.record_id).where(records.c.run_id == run_id)
        attempts = attempts.where(records.c.run_id == run_id)
    of_record: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in connection.execute(measured.order_by(measurements.c.record_id, measurements.c.position)):
        of_record[row.record_id].append({name: row._mapping[name] for name in _OF_MEASUREMENT})
    of_run: dict[str, list[Record]] = defaultdict(list)
    for row in connection.execute(attempts.order_by(records.c.run_id, records.c.case_index)):
        fields = {name: row._mapping[name] for name in _OF_RECORD} | row.description
        of_run[row.run_id].append(Record.model_validate(fields | {"measurements": of_record[row.id]}))
    return of_run


def edition(store: Store) -> tuple[object, ...]:
    """A value that changes with every record that is stored: what was computed from all of them is then out of date."""
    of_newest = [records.c[name] for name in ("id", "run_id", "case_index", "attempt", "outcome", "started_at")]
    with store.reading("look for new records") as connection:
        newest = connection.execute(select(*of_newest).order_by(records.c.id.desc()).limit(1)).one_or_none()
    return tuple(newest or ())


def _run(row: Row[Any]) -> Run:
    fields = row._asdict()
    return Run.model_validate(fields | {"status": status_of(fields["status"], fields.pop("runner"))})


_PLACEMENTS = 5_000  # the latest, among which those of a follower are looked for


@dataclass(frozen=True)
class PastPlacement:
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
        planned = select(cases.c.document).where(cases.c.run_id == run_id).order_by(cases.c.case_index)
        run = _run(row)
        run.cases = [Case.model_validate(document) for document in connection.scalars(planned)]
        return RunRecords(run=run, records=_last_records(connection, run_id)[run_id])


def last_lines(store: Store, job_id: str, limit: int) -> list[LogRow]:
    """The last pieces of a job's log, the oldest first."""
    last_first = (job_logs.c.attempt.desc(), job_logs.c.number.desc())
    query = select(job_logs).where(job_logs.c.job_id == job_id).order_by(*last_first).limit(limit)
    with store.reading(f"load the end of the log of job '{job_id}'") as connection:
        return [log_row(row) for row in reversed(connection.execute(query).all())]


def placements(store: Store, follower: str, limit: int) -> list[PastPlacement]:
    """What a follower was given lately, the latest first."""
    query = select(job_events).where(job_events.c.kind == "placed").order_by(job_events.c.id.desc()).limit(_PLACEMENTS)
    with store.reading(f"find what '{follower}' ran") as connection:
        rows = [row for row in connection.execute(query) if follower in row.document.get("followers", ())]
    return [PastPlacement(row.job_id, row.at, row.document["run_id"]) for row in rows[:limit]]


def run_count(store: Store) -> int:
    """How many runs there are."""
    with store.reading("count the runs") as connection:
        return connection.scalar(select(func.count()).select_from(runs)) or 0


def metrics(store: Store) -> list[str]:
    """The names of all metrics that were measured."""
    with store.reading("list the metrics") as connection:
        return sorted(history.known_metrics(connection))
