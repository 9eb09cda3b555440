"""Queries for pages that many people look at every other second: results of a run, last lines, who ran what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Text, cast, func, select

from paceline.core.case import Case
from paceline.core.gc_pause import no_garbage
from paceline.core.run import RunRecords
from paceline.store import codec, reader
from paceline.store.queue import LogRow, select_rows
from paceline.store.schema import job_events, job_logs, records, runs
from paceline.store.store import Store


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
        theirs = runs.c.id.in_(select(newest.subquery().c.run_id))
        machines: dict[str, tuple[str, ...]] = {}
        for row in connection.execute(select(runs.c.id, runs.c.environment["gpus"].label("gpus")).where(theirs)):
            gpus = row.gpus if isinstance(row.gpus, list) else []
            measurable = [gpu for gpu in gpus if gpu.get("cuda_index") is not None]
            machines[row.id] = tuple(gpu.get("name") or "GPU" for gpu in measurable)
    return [CaseDuration(codec.case(row.case_text), machines.get(row.run_id, ()), row.seconds) for row in rows]


def headlines(store: Store) -> list[RunRecords]:
    """All runs, the oldest first, with the last attempt at each case; without planned cases and points of sweeps."""
    with store.asking("read the figures of all runs") as ask, no_garbage():
        found = reader.load_records(ask, reader.LAST_ATTEMPT, {}, samples=False, measured=reader.WHOLE_CASE)
        return reader.with_records(reader.load_runs(ask), found)


def glance(store: Store, run_id: str) -> RunRecords | None:
    """A run with its cases and the last attempt at each, without samples and points of sweeps."""
    with store.asking(f"look at run '{run_id}'") as ask:
        return reader.load_run(ask, run_id, samples=False, measured=reader.WHOLE_CASE)


def edition(store: Store) -> tuple[object, ...]:
    """A value that changes with every record that is stored: what was computed from all of them is then out of date."""
    of_newest = [records.c[name] for name in ("id", "run_id", "case_index", "attempt", "outcome", "started_at")]
    with store.reading("look for new records") as connection:
        newest = connection.execute(select(*of_newest).order_by(records.c.id.desc()).limit(1)).one_or_none()
    return tuple(newest or ())


_PLACEMENTS = 5_000  # the latest, among which those of a follower are looked for


@dataclass(frozen=True)
class PastPlacement:
    """One time that a follower was given a job."""

    job_id: str
    at: datetime
    run_id: str


def last_lines(store: Store, job_id: str, limit: int) -> list[LogRow]:
    """The last pieces of a job's log, the oldest first."""
    last_first = (job_logs.c.attempt.desc(), job_logs.c.number.desc())
    query = select_rows(job_logs, LogRow).where(job_logs.c.job_id == job_id).order_by(*last_first).limit(limit)
    with store.reading(f"load the end of the log of job '{job_id}'") as connection:
        return [LogRow(*row) for row in reversed(connection.execute(query).all())]


def placements(store: Store, follower: str, limit: int) -> list[PastPlacement]:
    """What a follower was given lately, the latest first."""
    query = select(job_events).where(job_events.c.kind == "placed").order_by(job_events.c.id.desc()).limit(_PLACEMENTS)
    with store.reading(f"find what '{follower}' ran") as connection:
        rows = [row for row in connection.execute(query) if follower in row.document.get("followers", ())]
    return [PastPlacement(row.job_id, row.at, row.document["run_id"]) for row in rows[:limit]]


def pin_and_note(store: Store, run_id: str) -> tuple[bool, str]:
    """Whether a run is pinned, and what somebody noted of it."""
    with store.reading(f"look at run '{run_id}'") as connection:
        row = connection.execute(select(runs.c.pinned, runs.c.note).where(runs.c.id == run_id)).one_or_none()
    return (bool(row.pinned), row.note or "") if row is not None else (False, "")


def run_count(store: Store) -> int:
    """How many runs there are."""
    with store.reading("count the runs") as connection:
        return connection.scalar(select(func.count()).select_from(runs)) or 0


def metrics(store: Store) -> list[str]:
    """The names of all metrics that were measured."""
    with store.asking("list the metrics") as ask:
        return reader.metric_names(ask)
