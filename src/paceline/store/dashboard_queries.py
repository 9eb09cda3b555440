"""Reads for pages that many people look at every other second: what a run came to, last lines, who ran what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Text, cast, func, select

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
    wanted = (records.c.run_id, cast(records.c.case, Text).label("case_text"), records.c.seconds)
    newest = select(*wanted).order_by(records.c.id.desc()).limit(limit)
    with store.reading("read what cases took") as connection:
        rows = list(connection.execute(newest))[::-1]
        machines: dict[str, tuple[str, ...]] = {}
        for some in _parts(sorted({row.run_id for row in rows})):
            gpus = select(runs.c.id, runs.c.environment["gpus"].label("gpus")).where(runs.c.id.in_(some))
            machines |= {row.id: _names(row.gpus) for row in connection.execute(gpus)}
    known: dict[str, Case] = {}  # of the many alike only the first is read
    for row in rows:
        if row.case_text not in known:
            known[row.case_text] = Case(**codec.loads(row.case_text))
    return [CaseDuration(known[row.case_text], machines.get(row.run_id, ()), row.seconds) for row in rows]


def _parts(ids: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(ids), _RUNS_AT_ONCE):
        yield ids[first : first + _RUNS_AT_ONCE]


def _names(gpus: Any) -> tuple[str, ...]:
    """Of those that could be measured."""
    found = gpus if isinstance(gpus, list) else []
    return tuple(gpu.get("name") or "GPU" for gpu in found if gpu.get("cuda_index") is not None)


_OF_RECORD = (
    *("run_id", "case", "attempt", "outcome", "cause", "started_at", "seconds", "facts", "warnings", "description"),
)
_OF_MEASUREMENT = ("metric", "statistic", "summary", "derived_from", "work")


def headlines(store: Store) -> list[RunRecords]:
    """All runs, the oldest first, with the last attempt at each case; planned cases and conditions are left out."""
    with store._read("read the figures of all runs") as connection:
        of_record: dict[int, list[dict[str, Any]]] = defaultdict(list)
        whole = (measurements.c.scope == "") & (cast(measurements.c.at, Text) == "{}")
        wanted = [measurements.c[name] for name in ("record_id", *_OF_MEASUREMENT)]
        order = (measurements.c.record_id, measurements.c.position)
        for row in connection.execute(select(*wanted).where(whole).order_by(*order)):
            of_record[row.record_id].append(_fields(row._mapping, _OF_MEASUREMENT))
        of_run: dict[str, list[Record]] = defaultdict(list)
        found = select(records.c.id, *(records.c[name] for name in _OF_RECORD)).where(is_last())
        for row in connection.execute(found.order_by(records.c.run_id, records.c.case_index)):
            fields = _fields(row._mapping, _OF_RECORD) | {"measurements": of_record[row.id]}
            of_run[row.run_id].append(Record.model_validate(fields))
        oldest_first = select(runs).order_by(runs.c.started_at, runs.c.id)
        return [
            RunRecords(run=_run(row._asdict(), status_of(row.status, row.runner)), records=of_run[row.id])
            for row in connection.execute(oldest_first)
        ]


def edition(store: Store) -> tuple[object, ...]:
    """What is another one after a record was kept: whatever was worked out from all of them is then out of date."""
    of_newest = [records.c[name] for name in ("id", "run_id", "case_index", "attempt", "outcome", "started_at")]
    with store.reading("look for new records") as connection:
        newest = connection.execute(select(*of_newest).order_by(records.c.id.desc()).limit(1)).one_or_none()
    return tuple(newest or ())


def _run(row: dict[str, Any], status: str) -> Run:
    return Run.model_validate({name: value for name, value in row.items() if name != "runner"} | {"status": status})


def _fields(row: Any, names: tuple[str, ...]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: row[name] for name in names}
    description: dict[str, Any] = fields.pop("description", {})
    return fields | description


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
        of_record: dict[int, list[dict[str, Any]]] = defaultdict(list)
        whole = (measurements.c.scope == "") & (cast(measurements.c.at, Text) == "{}")
        wanted = select(measurements.c.record_id, *(measurements.c[name] for name in _OF_MEASUREMENT))
        of_run = wanted.join(records, records.c.id == measurements.c.record_id).where(records.c.run_id == run_id, whole)
        for found in connection.execute(of_run.order_by(measurements.c.record_id, measurements.c.position)):
            of_record[found.record_id].append(_fields(found._mapping, _OF_MEASUREMENT))
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


def placements(store: Store, follower: str, limit: int) -> list[PastPlacement]:
    """What a follower was given lately, the latest first."""
    wanted = select(job_events).where(job_events.c.kind == "placed").order_by(job_events.c.id.desc()).limit(_PLACEMENTS)
    with store.reading(f"find what '{follower}' ran") as connection:
        found = [row for row in connection.execute(wanted) if follower in row.document.get("followers", ())]
    return [PastPlacement(row.job_id, row.at, row.document["run_id"]) for row in found[:limit]]


def run_count(store: Store) -> int:
    """How many runs there are."""
    with store.reading("count the runs") as connection:
        return connection.scalar(select(func.count()).select_from(runs)) or 0


def metrics(store: Store) -> list[str]:
    """The names of all metrics that were measured."""
    with store.reading("list the metrics") as connection:
        return sorted(history.known_metrics(connection))
