"""What a leader stores: jobs with their history, followers, tokens, and the audit log.

The store has rows; what a job's document means is the service's business. Whatever belongs together is written in one
transaction, so that a leader that dies leaves either all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, Table, and_, delete, func, insert, or_, select, update

from paceline.core.errors import StoreError
from paceline.core.record import Record
from paceline.core.run import Run
from paceline.store import codec, location
from paceline.store.schema import (
    attempts,
    audit,
    cases,
    followers,
    job_events,
    job_logs,
    jobs,
    partials,
    records,
    runs,
    tokens,
)

if TYPE_CHECKING:
    from paceline.store.store import Store


JobDocument = Mapping[str, Any]  # a job as JSON; jobs are looked up by the columns that `_job_values` takes out of it


@dataclass(frozen=True)
class EventRow:
    """One thing that happened to a job."""

    at: datetime
    kind: str
    document: dict[str, Any]


@dataclass(frozen=True)
class LogRow:
    """Lines that an attempt at a job wrote."""

    attempt: int
    number: int  # in the store, as they came in from whichever follower; before that, as their follower counts them
    at: datetime
    text: str
    follower: str = ""


@dataclass(frozen=True)
class FollowerRow:
    """A follower as it was last seen."""

    id: str
    seen_at: datetime
    document: dict[str, Any]


@dataclass(frozen=True)
class TokenRow:
    """Who may do what; only its owner has the token itself."""

    name: str
    digest: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True)
class AuditRow:
    """Who did what, and with which outcome."""

    at: datetime
    who: str
    what: str
    subject: str
    outcome: str


class Conflict(StoreError):
    """Somebody else changed the job meanwhile."""


class Writing:
    """Changes that are stored together or not at all."""

    def __init__(self, store: Store, connection: Connection) -> None:
        self._store = store
        self._connection = connection

    def submit(self, job: JobDocument, event: EventRow) -> bool:
        """Store a new job; False if one of this id exists already, which stays as it is."""
        if self._connection.scalar(select(jobs.c.id).where(jobs.c.id == job["id"])) is not None:
            return False
        self._connection.execute(insert(jobs), _job_values(job))
        self._history(job["id"], event)
        return True

    def save(self, job: JobDocument, event: EventRow | None) -> None:
        """Store a changed job, whose version is one above the stored one's; Conflict if it is not."""
        earlier = and_(jobs.c.id == job["id"], jobs.c.version == job["version"] - 1)
        if self._connection.execute(update(jobs).where(earlier).values(_job_values(job))).rowcount != 1:
            raise Conflict(f"job '{job['id']}' was changed by somebody else: is a second leader using this store?")
        if event is not None:
            self._history(job["id"], event)

    def acknowledge(self, job_id: str, attempt: int, number: int) -> bool:
        """Store up to which number the attempt's reports were taken; False if that is nothing new."""
        this = and_(attempts.c.job_id == job_id, attempts.c.attempt == attempt)
        stored = self._connection.scalar(select(attempts.c.acknowledged).where(this).with_for_update())
        if stored is not None and stored >= number:
            return False
        _put(self._connection, attempts, {"job_id": job_id, "attempt": attempt}, {"acknowledged": number})
        return True

    def log(self, job_id: str, lines: LogRow) -> None:
        """Append lines to the log; the same number of the same follower again is the same lines."""
        this = {"job_id": job_id, "attempt": lines.attempt}
        reported = this | {"follower": lines.follower, "told": lines.number}
        if self._connection.scalar(select(job_logs.c.number).filter_by(**reported)) is None:
            last = self._connection.scalar(select(func.max(job_logs.c.number)).filter_by(**this)) or 0
            row = reported | {"number": last + 1, "at": lines.at, "text": lines.text}
            self._connection.execute(insert(job_logs), row)

    def begin_run(self, run: Run) -> None:
        """Store the run of an attempt, unless it was begun already."""
        if self._connection.scalar(select(runs.c.id).where(runs.c.id == run.id)) is None:
            self._store.begin_within(self._connection, run)

    def keep_samples(
        self, run_id: str, case_index: int, attempt: int, metric: str, unit: str, samples: Sequence[float]
    ) -> None:
        """Store samples of a case in flight."""
        values = {"run_id": run_id, "case_index": case_index, "attempt": attempt, "metric": metric, "unit": unit}
        values |= {"kept_at": datetime.now(UTC), "samples": codec.pack(samples)}
        self._connection.execute(insert(partials).values(values))

    def add_record(self, record: Record) -> bool:
        """Store a record; False if the same attempt at the same case has one."""
        return self._store.add_within(self._connection, record)

    def reopen_run(self, run_id: str) -> None:
        """Mark the run of an attempt, if it has begun, as running in this process."""
        values = {"status": "running", "ended_at": None, "runner": location.this_runner()}
        self._connection.execute(update(runs).where(runs.c.id == run_id).values(**values))

    def is_measured(self, run_id: str) -> bool:
        """Whether every case of a run has a record."""
        measured = select(func.count(records.c.case_index.distinct())).where(records.c.run_id == run_id)
        planned = select(func.count()).select_from(cases).where(cases.c.run_id == run_id)
        return self._connection.scalar(measured) == self._connection.scalar(planned)

    def close_run(self, run_id: str, *, is_whole: bool) -> None:
        """Mark the run of an attempt as over; of one that was cut short, keep the samples of the case in flight."""
        if self._connection.scalar(select(runs.c.id).where(runs.c.id == run_id)) is None:
            return  # it never began
        if not is_whole:
            self._store.recover_within(self._connection, run_id)
        self._store.finish_within(self._connection, run_id, "finished" if is_whole else "interrupted")

    def see_follower(self, row: FollowerRow) -> None:
        """Store what a follower is, and when it was seen."""
        _put(self._connection, followers, {"id": row.id}, {"seen_at": row.seen_at, "document": row.document})

    def put_token(self, row: TokenRow) -> None:
        """Store a token, in place of an earlier one of the same name."""
        _put(self._connection, tokens, {"name": row.name}, vars(row) | {"scopes": list(row.scopes)})

    def revoke_token(self, name: str) -> bool:
        """Delete a token; False if there is none of this name."""
        return self._connection.execute(delete(tokens).where(tokens.c.name == name)).rowcount == 1

    def note(self, row: AuditRow) -> None:
        """Add an entry to the audit log."""
        self._connection.execute(insert(audit), vars(row))

    def _history(self, job_id: str, event: EventRow) -> None:
        self._connection.execute(insert(job_events), {"job_id": job_id, **vars(event)})


class JobQueue:
    """The jobs of a leader; `Store.queue` gives it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextmanager
    def writing(self, doing: str) -> Iterator[Writing]:
        """One transaction; `doing` is for the message if it fails, as in "submit a job"."""
        with self._store.writing(doing) as connection:
            yield Writing(self._store, connection)

    def job(self, job_id: str) -> JobDocument | None:
        """One job."""
        with self._store.reading(f"load job '{job_id}'") as connection:
            document: JobDocument | None = connection.scalar(select(jobs.c.document).where(jobs.c.id == job_id))
        return document

    def jobs(
        self, states: Sequence[str] = (), *, limit: int | None = 100, before: tuple[datetime, str] | None = None
    ) -> list[JobDocument]:
        """Jobs, the newest first; `before` is where an earlier page ended."""
        query = select(jobs.c.document).order_by(jobs.c.submitted_at.desc(), jobs.c.id.desc()).limit(limit)
        if states:
            query = query.where(jobs.c.state.in_(states))
        if before is not None:
            at, job_id = before
            earlier = and_(jobs.c.submitted_at == at, jobs.c.id < job_id)
            query = query.where(or_(jobs.c.submitted_at < at, earlier))
        with self._store.reading("list jobs") as connection:
            return list(connection.scalars(query))

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        with self._store.reading("count jobs") as connection:
            counted = select(jobs.c.state, func.count().label("jobs")).group_by(jobs.c.state)
            return {row.state: row.jobs for row in connection.execute(counted)}

    def events(self, job_id: str) -> list[EventRow]:
        """All that happened to a job, the first thing first."""
        query = select_rows(job_events, EventRow).where(job_events.c.job_id == job_id).order_by(job_events.c.id)
        with self._store.reading(f"load the history of job '{job_id}'") as connection:
            return [EventRow(*row) for row in connection.execute(query)]

    def acknowledged(self, job_id: str, attempt: int) -> int:
        """Up to which number an attempt's reports were taken; 0 if none was."""
        this = select(attempts.c.acknowledged).where(attempts.c.job_id == job_id, attempts.c.attempt == attempt)
        with self._store.reading(f"load attempt {attempt} at job '{job_id}'") as connection:
            return connection.scalar(this) or 0

    def logs(self, job_id: str, after: tuple[int, int] = (0, 0), limit: int = 1000) -> list[LogRow]:
        """Lines after those of an attempt and number, in order."""
        attempt, number = after
        later = and_(job_logs.c.attempt == attempt, job_logs.c.number > number)
        later = or_(job_logs.c.attempt > attempt, later)
        query = select_rows(job_logs, LogRow).where(job_logs.c.job_id == job_id, later).limit(limit)
        with self._store.reading(f"load the log of job '{job_id}'") as connection:
            return [LogRow(*row) for row in connection.execute(query.order_by(job_logs.c.attempt, job_logs.c.number))]

    def followers(self) -> list[FollowerRow]:
        """Every follower that was ever seen."""
        with self._store.reading("list followers") as connection:
            query = select_rows(followers, FollowerRow).order_by(followers.c.id)
            return [FollowerRow(*row) for row in connection.execute(query)]

    def tokens(self) -> list[TokenRow]:
        """All tokens, as digests."""
        with self._store.reading("list tokens") as connection:
            rows = connection.execute(select(tokens).order_by(tokens.c.name))
            return [TokenRow(row.name, row.digest, tuple(row.scopes), row.created_at, row.expires_at) for row in rows]

    def audited(self, limit: int = 100) -> list[AuditRow]:
        """Who did what, the newest first."""
        with self._store.reading("read the audit log") as connection:
            query = select_rows(audit, AuditRow).order_by(audit.c.id.desc()).limit(limit)
            return [AuditRow(*row) for row in connection.execute(query)]


def _job_values(job: JobDocument) -> dict[str, Any]:
    plain = {name: job[name] for name in ("id", "state", "priority", "submitted_by", "version")}
    return plain | {"submitted_at": datetime.fromisoformat(job["submitted_at"]), "document": dict(job)}


def select_rows(table: Table, kind: type[EventRow | LogRow | FollowerRow | AuditRow]) -> Select[Any]:
    """The columns of a table that make such a row, in its order."""
    return select(*(table.c[field.name] for field in fields(kind)))


def _put(connection: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Insert a row, or change the existing one."""
    this = and_(*(table.c[name] == value for name, value in key.items()))
    if connection.execute(update(table).where(this).values(**values)).rowcount == 0:
        connection.execute(insert(table), {**key, **values})
