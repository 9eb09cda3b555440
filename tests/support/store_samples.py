"""Runs and records to keep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from paceline.core.case import Case
from paceline.core.metric import Better, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import Run
from paceline.store import open_store

START = datetime(2024, 2, 29, 23, 59, 59, 123457, tzinfo=UTC)
STEP_TIME = Metric(name="step_time", unit="s", better=Better.LOWER)
RATE = Metric(name="throughput", unit="samples/s", better=Better.HIGHER)


def a_case(index: int = 0) -> Case:
    return Case(index=index, benchmark="gemm", parameters={"size": 64 + index, "ratio": 0.1}, title=f"gemm {index}")


def a_run(run_id: str = "run-1", cases: int = 2, minutes: int = 0, **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "id": run_id,
        "name": "node-check",
        "started_at": START + timedelta(minutes=minutes),
        "version": "1.0",
        "command": ["paceline", "run", "ünï"],
        "environment": {"cpu": {"cores": 2}, "load": 0.1, "missing": None},
        "cases": [a_case(index) for index in range(cases)],
    }
    return Run(**fields | changes)


def a_record(run_id: str = "run-1", index: int = 0, attempt: int = 1, count: int = 5, **changes: Any) -> Record:
    times = Measurement.of_samples(STEP_TIME, [0.1 + 0.001 * sample for sample in range(count)])
    fields: dict[str, Any] = {
        "run_id": run_id,
        "case": a_case(index),
        "attempt": attempt,
        "outcome": Outcome.OK,
        "started_at": START,
        "seconds": 1.5,
        "measurements": [
            times,
            Measurement.of_samples(STEP_TIME, [0.2, 0.3], scope="rank 1"),
            Measurement.of_rate(RATE, 32, times),
        ],
        "facts": {"parameters": 10**20, "nested": {"list": [1, 2.5, None, True]}},
        "warnings": [RecordWarning(kind="short", message="few samples", remedy="run longer")],
        "conditions": {"load": [0.5, 0.25]},
        "primary": "step_time",
    }
    return Record(**fields | changes)


def a_failed_record(run_id: str = "run-1", index: int = 0, attempt: int = 1) -> Record:
    cause = Cause(kind=CauseKind.ERROR, message="it raised", detail="Traceback\n  ...")
    return a_record(run_id, index, attempt, outcome=Outcome.FAILED, cause=cause, measurements=[])


def a_store(path: Path) -> Path:
    """A file that holds one run of one record."""
    with open_store(path) as store:
        store.begin(a_run())
        store.add(a_record())
    return path


def as_of_first_release(engine: Engine) -> None:
    """Turn a store into what version 0.1.0 would have written."""
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE quarantine"))
        connection.execute(text("DROP INDEX ix_runs_machine"))
        for column in ("session", "machine", "pinned", "note"):
            connection.execute(text(f"ALTER TABLE runs DROP COLUMN {column}"))
        for column in ("quotas", "revoked_at"):
            connection.execute(text(f"ALTER TABLE tokens DROP COLUMN {column}"))
        connection.execute(text("ALTER TABLE records DROP COLUMN description"))
        connection.execute(text("ALTER TABLE records RENAME COLUMN warnings TO doubts"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0006'"))
