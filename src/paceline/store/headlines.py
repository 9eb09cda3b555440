"""The figures of whole cases over all runs: what a question about every run needs, read without samples and points."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import Text, cast, select

from paceline.core.record import Measurement, Record
from paceline.core.run import Run, RunRecords
from paceline.store.liveness import status_of
from paceline.store.schema import is_last, measurements, records, runs
from paceline.store.store import Store

_OF_RECORD = (
    *("run_id", "case", "attempt", "outcome", "cause", "started_at", "seconds", "facts", "doubts", "description"),
)
_OF_MEASUREMENT = ("metric", "statistic", "summary", "derived_from", "work")


def headlines(store: Store) -> list[RunRecords]:
    """All runs, the oldest first, with the last attempt at each case; planned cases and conditions are left out."""
    with store._read("read the figures of all runs") as connection:
        of_record: dict[int, list[Measurement]] = defaultdict(list)
        whole = (measurements.c.scope == "") & (cast(measurements.c.at, Text) == "{}")
        wanted = [measurements.c[name] for name in ("record_id", *_OF_MEASUREMENT)]
        order = (measurements.c.record_id, measurements.c.position)
        for row in connection.execute(select(*wanted).where(whole).order_by(*order)):
            of_record[row.record_id].append(Measurement.model_validate(_fields(row._mapping, _OF_MEASUREMENT)))
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
