"""What cases took lately, on which kind of machine: all that a prediction needs, read without a sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, cast, select

from paceline.core.case import Case
from paceline.store import codec
from paceline.store.schema import records, runs
from paceline.store.store import Store

_RUNS_AT_ONCE = 500  # whose machines are asked for in one query


@dataclass(frozen=True)
class Duration:
    """One case that has ended."""

    case: Case
    gpus: tuple[str, ...]  # of the machine, by name
    seconds: float


def latest(store: Store, limit: int) -> list[Duration]:
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
    return [Duration(known[row.case_text], machines.get(row.run_id, ()), row.seconds) for row in rows]


def _parts(ids: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(ids), _RUNS_AT_ONCE):
        yield ids[first : first + _RUNS_AT_ONCE]


def _names(gpus: Any) -> tuple[str, ...]:
    """Of those that could be measured."""
    found = gpus if isinstance(gpus, list) else []
    return tuple(gpu.get("name") or "GPU" for gpu in found if gpu.get("cuda_index") is not None)
