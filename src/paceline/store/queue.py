"""What a leader stores: jobs with their history, followers, tokens, and the audit log.

The store has rows; what a job's document means is the service's business. Whatever belongs together is written in one
transaction, so that a leader that dies leaves either all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields
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
    quarantine,
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
class QuarantineRow:
    """An item of a report that could not be stored."""

    job_id: str
    attempt: int
    follower: str
    number: int  # of the item, as its follower counts them
    kind: str
    reason: str
    at: datetime
    id: int = 0  # in the store


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
    quotas: Mapping[str, float] = field(default_factory=dict)
    revoked_at: datetime | None = None


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

    def part(self) -> AbstractContextManager[object]:
        """A part that can fail by itself: what it changed is undone, the rest of the transaction stays."""
        return self._connection.begin_nested()

    def quarantine(self, row: QuarantineRow, document: Mapping[str, Any]) -> None:
        """Put an item aside; the same item again is the same row."""
        names = ("job_id", "attempt", "follower", "number")
        values = {"kind": row.kind, "reason": row.reason, "at": row.at, "document": document}
        _put(self._connection, quarantine, {name: getattr(row, name) for name in names}, values)

    def release(self, quarantine_id: int) -> bool:
        """Delete an item from quarantine; False if there is none of this number."""
        return self._connection.execute(delete(quarantine).where(quarantine.c.id == quarantine_id)).rowcount == 1

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
        values = vars(row) | {"scopes": list(row.scopes), "quotas": dict(row.quotas)}
        _put(self._connection, tokens, {"name": row.name}, values)

    def revoke_token(self, name: str) -> bool:
        """Let a token count no more; False if there is none of this name that does."""
        return self._change_token(name, revoked_at=datetime.now(UTC))

    def limit_token(self, name: str, quotas: Mapping[str, float]) -> bool:
        """Set what the jobs of a token may use; False if there is none of this name."""
        return self._change_token(name, quotas=dict(quotas))

    def note(self, row: AuditRow) -> None:
        """Add an entry to the audit log."""
        self._connection.execute(insert(audit), vars(row))

    def prune_audit(self, before: datetime, most: int) -> None:
        """Delete entries of the audit log from before a time, and all but the newest so many."""
        newest = self._connection.scalar(select(func.max(audit.c.id))) or 0
        self._connection.execute(delete(audit).where(or_(audit.c.at < before, audit.c.id <= newest - most)))

    def _change_token(self, name: str, **values: Any) -> bool:
        this = and_(tokens.c.name == name, tokens.c.revoked_at.is_(None))
        return self._connection.execute(update(tokens).where(this).values(**values)).rowcount == 1

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

    def counts(self, of: str | None = None) -> dict[str, int]:
        """How many jobs are in each state; those that somebody submitted, or all."""
        with self._store.reading("count jobs") as connection:
            counted = select(jobs.c.state, func.count().label("jobs")).group_by(jobs.c.state)
            if of is not None:
                counted = counted.where(jobs.c.submitted_by == of)
            return {row.state: row.jobs for row in connection.execute(counted)}

    def events(self, job_id: str) -> list[EventRow]:
        """All that happened to a job, the first thing first."""
        query = select_rows(job_events, EventRow).where(job_events.c.job_id == job_id).order_by(job_events.c.id)
        with self._store.reading(f"load the history of job '{job_id}'") as connection:
            return [EventRow(*row) for row in connection.execute(query)]

    def placements(self, owner: str, since: datetime) -> list[tuple[str, EventRow]]:
        """When jobs of somebody were given machines, and when they gave them back, the first first."""
        query = select(job_events.c.job_id, job_events.c.at, job_events.c.kind, job_events.c.document)
        query = query.join(jobs, jobs.c.id == job_events.c.job_id).order_by(job_events.c.id)
        query = query.where(jobs.c.submitted_by == owner, job_events.c.at >= since)
        query = query.where(job_events.c.kind.in_(("placed", "ended", "lost")))
        with self._store.reading(f"load what the jobs of '{owner}' used") as connection:
            return [(job_id, EventRow(*row)) for job_id, *row in connection.execute(query)]

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

    def quarantined(self, job_id: str | None = None, limit: int = 1000) -> list[QuarantineRow]:
        """What could not be stored, of one job or of all, the newest first."""
        query = select_rows(quarantine, QuarantineRow).order_by(quarantine.c.id.desc()).limit(limit)
        with self._store.reading("list the quarantine") as connection:
            of_job = query if job_id is None else query.where(quarantine.c.job_id == job_id)
            return [QuarantineRow(*row) for row in connection.execute(of_job)]

    def quarantined_item(self, quarantine_id: int) -> tuple[QuarantineRow, dict[str, Any]] | None:
        """One row of the quarantine, with the item itself."""
        query = select_rows(quarantine, QuarantineRow).add_columns(quarantine.c.document)
        with self._store.reading(f"load item {quarantine_id} of the quarantine") as connection:
            row = connection.execute(query.where(quarantine.c.id == quarantine_id)).one_or_none()
        return None if row is None else (QuarantineRow(*row[:-1]), row[-1])

    def quarantine_count(self) -> int:
        """How many items are in quarantine."""
        with self._store.reading("count the quarantine") as connection:
            return connection.scalar(select(func.count()).select_from(quarantine)) or 0

    def followers(self) -> list[FollowerRow]:
        """Every follower that was ever seen."""
        with self._store.reading("list followers") as connection:
            query = select_rows(followers, FollowerRow).order_by(followers.c.id)
            return [FollowerRow(*row) for row in connection.execute(query)]

    def tokens(self) -> list[TokenRow]:
        """All tokens that there ever were, as digests."""
        with self._store.reading("list tokens") as connection:
            rows = connection.execute(select_rows(tokens, TokenRow).order_by(tokens.c.name))
            return [TokenRow(**row | {"scopes": tuple(row["scopes"])}) for row in map(dict, rows.mappings())]

    def audited(self, limit: int = 100) -> list[AuditRow]:
        """Who did what, the newest first."""
        with self._store.reading("read the audit log") as connection:
            query = select_rows(audit, AuditRow).order_by(audit.c.id.desc()).limit(limit)
            return [AuditRow(*row) for row in connection.execute(query)]


def _job_values(job: JobDocument) -> dict[str, Any]:
    plain = {name: job[name] for name in ("id", "state", "priority", "submitted_by", "version")}
    return plain | {"submitted_at": datetime.fromisoformat(job["submitted_at"]), "document": dict(job)}


RowKind = type[EventRow | LogRow | QuarantineRow | FollowerRow | TokenRow | AuditRow]


def select_rows(table: Table, kind: RowKind) -> Select[Any]:
    """The columns of a table that make such a row, in its order."""
    return select(*(table.c[field.name] for field in fields(kind)))


def _put(connection: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Insert a row, or change the existing one."""
    this = and_(*(table.c[name] == value for name, value in key.items()))
    if connection.execute(update(table).where(this).values(**values)).rowcount == 0:
        connection.execute(insert(table), {**key, **values})
