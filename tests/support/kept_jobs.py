"""What the store of a leader holds, a disk that fills up, and patience."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from paceline.core.errors import StoreError
from paceline.service.jobs import LEASE, Job
from paceline.store.store import Store

BEYOND_LEASE = LEASE.total_seconds() + 1


def history(store: Store, job_id: str = "job") -> list[str]:
    return [event.kind for event in store.queue.events(job_id)]


def kept(store: Store, job_id: str = "job") -> Job:
    document = store.queue.job(job_id)
    assert document is not None
    return Job.model_validate(document)


def statuses(store: Store, job_id: str = "job") -> list[str]:
    found = {row.id: row.status for row in store.runs(limit=None)}
    return [found.get(run_id, "none") for run_id in kept(store, job_id).run_ids]


@contextmanager
def full_disk(store: Store, monkeypatch: pytest.MonkeyPatch, *, after: int = 0) -> Iterator[None]:
    """So many writes go well, and every later one fails."""
    real, left = store.writing, [after]

    @contextmanager
    def writing(doing: str) -> Iterator[Any]:
        if left[0] <= 0:
            raise StoreError(f"could not {doing} in the store: database or disk is full")
        left[0] -= 1
        with real(doing) as connection:
            yield connection

    with monkeypatch.context() as patch:
        patch.setattr(store, "writing", writing)
        yield


def until(is_so: Any, patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
