"""What is done on a disk that fails, what was acknowledged of it, and whether that is still there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from paceline.core.errors import InputError, StoreError
from paceline.service.engines.base import Assignment
from paceline.service.follower.spool import Spool, SpoolFailed
from paceline.store import open_store
from paceline.store.location import locate
from paceline.store.queue import EventRow
from paceline.store.store import Store
from support.store_samples import a_record, a_run

RECORDS = 4
SAMPLES = 1000  # of a record: several pages
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

Acknowledge = Callable[[str], None]
_Value = TypeVar("_Value")


def twice(action: Callable[[], _Value]) -> _Value:
    """As somebody does who sees an error and tries again."""
    try:
        return action()
    except (StoreError, InputError):
        return action()


def store_of(folder: Path) -> Path:
    return folder / "new" / "folder" / "paceline.db"


def use_store(url: str, acknowledge: Acknowledge) -> None:
    """Open a store, begin a run, add records and jobs, finish the run, and open the store again."""
    with twice(lambda: open_store(url)) as store:
        with suppress(StoreError):  # the first may have been stored although it failed
            twice(lambda: store.begin(a_run(cases=RECORDS)))
        acknowledge("run")
        for index in range(RECORDS):
            with suppress(StoreError):
                store.keep_partial("run-1", index, 1, "step_time", "s", [0.5] * 100)
            add(store, index, acknowledge)
            with suppress(StoreError):
                submit(store, f"job-{index}")
                acknowledge(f"job {index}")
        with suppress(StoreError):
            store.finish("run-1")
            acknowledge("finish")
    with twice(lambda: open_store(url)) as store:
        add(store, 0, acknowledge)


def use_spool(folder: Path, acknowledge: Acknowledge) -> None:
    """Add records that the database has no room for, and import them, with a line among them that stays."""
    path = store_of(folder)
    with twice(lambda: open_store(path)) as store:
        with suppress(StoreError):
            twice(lambda: store.begin(a_run(cases=RECORDS)))
        acknowledge("run")
        with store._writes.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        for index in range(RECORDS):
            add(store, index, acknowledge)
        for spool in locate(path).spools:
            if spool.exists():
                with suppress(OSError), spool.open("ab") as file:  # this line is nobody's but the test's
                    file.write(b'{"run_id": "half a line\n')
    with twice(lambda: open_store(path)):
        pass


def add(store: Store, index: int, acknowledge: Acknowledge) -> None:
    try:
        store.add(a_record(index=index, count=SAMPLES))
    except StoreError as error:
        if "the record is safe in" not in str(error):
            return
    acknowledge(f"record {index}")


def a_job_document(job_id: str) -> dict[str, object]:
    fields = {"id": job_id, "state": "queued", "priority": 0, "submitted_by": "ann", "version": 1}
    return fields | {"submitted_at": NOW.isoformat()}


def submit(store: Store, job_id: str) -> None:
    with store.queue.writing("submit a job") as writing:
        writing.submit(a_job_document(job_id), EventRow(NOW, "submitted", {"by": "ann"}))


def use_follower(folder: Path, acknowledge: Acknowledge) -> None:
    """What a follower writes of an attempt."""
    assignment = Assignment.model_validate(
        {"job_id": "job-1", "attempt": 1, "run_id": "run-1", "suite": {}, "lease_seconds": 30.0}
    )
    spool = None
    for _ in range(2):
        with suppress(OSError):
            spool = Spool.make(folder / "new" / "attempt", assignment)
            break
    if spool is None:
        return
    acknowledge("assignment")
    for index in range(2 * RECORDS):
        with suppress(SpoolFailed):
            spool.append("log", text=f"line {index} {'x' * 3000}\n")
            acknowledge(f"item {index}")
        with suppress(OSError):
            spool.process = {"host": "here", "pid": index, "started": 1.0}


def missing_of_store(url: str, acknowledged: list[str]) -> list[str]:
    """What was acknowledged and is not there, or is not what was written."""
    with open_store(url) as store:
        if "run" not in acknowledged:
            return []
        loaded = store.load("run-1")
        records = {record.case.index: record for record in loaded.records}
        lost = []
        for word in dict.fromkeys(acknowledged):
            kind, _, number = word.partition(" ")
            index = int(number or 0)
            is_there = {
                "run": lambda: len(loaded.run.cases) == RECORDS,
                "record": lambda index=index: records.get(index) == a_record(index=index, count=SAMPLES),
                "job": lambda index=index: store.queue.job(f"job-{index}") == a_job_document(f"job-{index}"),
                "finish": lambda: loaded.run.status == "finished",
            }[kind]()
            lost += [] if is_there else [word]
        return lost


def damage_of_file(path: Path) -> list[str]:
    """What SQLite itself finds wrong with a file."""
    connection = sqlite3.connect(path)
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
        return [one for one in found if one != "ok"] + [
            str(row) for row in connection.execute("PRAGMA foreign_key_check")
        ]
    finally:
        connection.close()


def missing_of_follower(folder: Path, acknowledged: list[str]) -> list[str]:
    """The same of a follower's attempt; what was written without being acknowledged may be there, once."""
    spool = Spool(folder / "new" / "attempt")
    if "assignment" in acknowledged and spool.assignment is None:
        return ["assignment"]
    items = spool.items()
    words = [(item.text or "").split()[1] for item in items]
    lost = [word for word in acknowledged if word.startswith("item") and word.split()[1] not in words]
    if [item.number for item in items] != list(range(1, len(items) + 1)):
        lost.append("numbers of items")
    return lost
