"""Decides which runs may go, removes them with all that was measured, and gives their room back to the disk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, exists, func, select, update

from paceline.core.errors import InputError
from paceline.core.run import RunRow
from paceline.store.schema import job_events, job_logs, jobs, metadata, runs
from paceline.store.store import Store

PAGES_AT_ONCE = 500  # that SQLite gives back before others may write again
_AT_ONCE = 100  # jobs in one transaction
_INCREMENTAL = 2  # SQLite's number of the mode in which a file can give back pages without being written anew


@dataclass(frozen=True)
class Spared:
    """A run that stays, and why."""

    run: RunRow
    reason: str


def divide(
    rows: Iterable[RunRow], *, before: datetime, tags: Collection[str] = (), in_use: Collection[str] = ()
) -> tuple[list[RunRow], list[Spared]]:
    """Runs that ended before this moment: those that may go, and those that stay all the same."""
    going, spared = [], []
    for row in rows:
        if (row.ended_at or row.started_at) >= before:
            continue
        reason = why_it_stays(row, in_use) or next((f"tagged {tag}" for tag in row.tags if tag in tags), "")
        if reason:
            spared.append(Spared(row, reason))
        else:
            going.append(row)
    return going, spared


def why_it_stays(row: RunRow, in_use: Collection[str] = ()) -> str:
    """Why a run must not be deleted; empty if it may."""
    if row.pinned:
        return "pinned"
    return "being measured" if row.status == "running" or row.id in in_use else ""


def delete_runs(store: Store, run_ids: Sequence[str]) -> list[str]:
    """Delete runs with all that belongs to them, one after the other; those that were pinned meanwhile stay.

    Returns the ids of those that are gone.
    """
    gone = []
    for run_id in run_ids:
        with store.writing(f"delete run '{run_id}'") as connection:
            this = and_(runs.c.id == run_id, runs.c.pinned.is_(False))
            if connection.execute(delete(runs).where(this)).rowcount:
                gone.append(run_id)
    return gone


def readable(what: str, text: str) -> str:
    """What somebody says of a run, without the space around it; refused if it cannot be read and typed."""
    if not text.strip() or not text.isprintable():
        message = f"{text!r} is not a {what}: give one that can be read and typed"
        raise InputError(f"invalid-{what}", message, value=text)
    return text.strip()


def change_run(store: Store, run_id: str, **values: Any) -> None:
    """Change what people say of a run: its name, its note, whether it is pinned."""
    with store.writing(f"change run '{run_id}'") as connection:
        connection.execute(update(runs).where(runs.c.id == run_id).values(**values))


def change_tags(store: Store, run_id: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
    """Add tags to a run or remove some; returns those that it has then."""
    with store.writing(f"tag run '{run_id}'") as connection:
        this = runs.c.id == run_id
        tags: list[str] = connection.execute(select(runs.c.tags).where(this).with_for_update()).scalar_one()
        if missing := [tag for tag in remove if tag not in tags]:
            message = f"run '{run_id}' has no tag '{missing[0]}': it has {', '.join(tags) or 'none'}"
            raise InputError("unknown-tag", message, value=missing[0])
        tags = [tag for tag in dict.fromkeys((*tags, *add)) if tag not in remove]
        connection.execute(update(runs).where(this).values(tags=tags))
    return tags


def prune_jobs(store: Store, states: Sequence[str], before: datetime) -> int:
    """Delete some jobs in these states to which nothing happened since; 0 once there are none left."""
    later = exists().where(job_events.c.job_id == jobs.c.id, job_events.c.at >= before)
    old = select(jobs.c.id).where(jobs.c.state.in_(states), jobs.c.submitted_at < before, ~later).limit(_AT_ONCE)
    with store.reading("find old jobs") as connection:
        ids = list(connection.scalars(old))
    if ids:
        with store.writing("delete old jobs") as connection:
            connection.execute(delete(jobs).where(jobs.c.id.in_(ids), jobs.c.state.in_(states)))
    return len(ids)


def prune_logs(store: Store, states: Sequence[str], before: datetime) -> int:
    """Delete the logs of some jobs in these states that ended before; 0 once there are none left."""
    newest = func.max(job_logs.c.at)
    of_job = select(job_logs.c.job_id).join(jobs, jobs.c.id == job_logs.c.job_id).where(jobs.c.state.in_(states))
    with store.reading("find old logs") as connection:
        ids = list(connection.scalars(of_job.group_by(job_logs.c.job_id).having(newest < before).limit(_AT_ONCE)))
    if ids:
        with store.writing("delete old logs") as connection:
            connection.execute(delete(job_logs).where(job_logs.c.job_id.in_(ids)))
    return len(ids)


def shrink(store: Store, *, whole: bool = True) -> None:
    """Give room that is not used any more back to the disk, in steps between which others may write.

    A file of an earlier version cannot do that before it is written anew as a whole, once, while others wait; without
    `whole` it stays as large as it is. A server uses the room for later rows, and gives back what it can.
    """
    with store.maintaining("shrink the file") as execute:
        if store.location.path is None:
            for table in metadata.sorted_tables:
                execute(f"VACUUM {table.name}")
            return
        if execute("PRAGMA auto_vacuum") != [(_INCREMENTAL,)] and whole:
            execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}")
            execute("VACUUM")
        before, free = None, execute("PRAGMA freelist_count")
        while free != before and free != [(0,)]:  # as long as it helps: others may delete at the same time
            execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
            before, free = free, execute("PRAGMA freelist_count")
        execute("PRAGMA wal_checkpoint(TRUNCATE)")
