"""What may go, what stays, and that a store which lost runs is smaller."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from paceline.core.run import RunRow
from paceline.service.job_store import Policy, Pruning
from paceline.store import open_store
from paceline.store.queue import EventRow, LogRow
from paceline.store.retention import change_run, change_tags, delete_runs, divide, shrink
from paceline.store.store import Store
from support.refused import refused
from support.store_samples import START, a_record, a_run


def a_row(run_id: str, days: int, **changes: object) -> RunRow:
    at = START - timedelta(days=days)
    fields = {"id": run_id, "name": "x", "status": "finished", "started_at": at, "ended_at": at, "cases": 1, "ok": 1}
    return RunRow.model_validate(fields | {"not_ok": 0} | changes)


def test_only_old_runs_that_nobody_needs_go() -> None:
    rows = [
        a_row("new", 10),
        a_row("old", 100),
        a_row("pinned", 100, pinned=True),
        a_row("release", 100, tags=("nightly", "release")),
        a_row("other tag", 100, tags=("nightly",)),
        a_row("running", 100, status="running", ended_at=None),
        a_row("of a job", 100),
        a_row("ended lately", 100, ended_at=START - timedelta(days=80)),
    ]
    going, spared = divide(rows, before=START - timedelta(days=90), tags=["release"], in_use={"of a job"})
    assert [row.id for row in going] == ["old", "other tag"]
    assert [(one.run.id, one.reason) for one in spared] == [
        ("pinned", "pinned"),
        ("release", "tagged release"),
        ("running", "being measured"),
        ("of a job", "being measured"),
    ]


def test_a_run_goes_with_all_that_was_measured_unless_it_was_pinned_meanwhile(store: Store) -> None:
    for run_id in ("run-1", "run-2"):
        store.begin(a_run(run_id))
        store.add(a_record(run_id))
        store.keep_partial(run_id, 1, 1, "step_time", "s", [1.0])
    change_run(store, "run-2", pinned=True)
    assert delete_runs(store, ["run-1", "run-2", "gone already"]) == ["run-1"]
    assert [row.id for row in store.runs()] == ["run-2"]
    with store.reading("count") as connection:
        for table in ("cases", "records", "partials"):
            assert set(connection.exec_driver_sql(f"SELECT run_id FROM {table}").scalars()) == {"run-2"}
        assert connection.exec_driver_sql("SELECT count(*) FROM measurements").scalar() == 3
    assert store.load("run-2").records == [a_record("run-2")]


def test_tags_are_added_once_and_removed(store: Store) -> None:
    store.begin(a_run(tags=["nightly"]))
    assert change_tags(store, "run-1", add=["release", "nightly"]) == ["nightly", "release"]
    assert store.find_runs("release") == ["run-1"]
    assert change_tags(store, "run-1", remove=["nightly"]) == ["release"]
    with refused("unknown-tag", value="nightly"):
        change_tags(store, "run-1", remove=["nightly"])


@pytest.mark.parametrize("is_old", [False, True])
def test_a_file_shrinks_when_runs_are_gone(tmp_path: Path, is_old: bool) -> None:
    """Also one that was made by a version which did not prepare for it."""
    path = tmp_path / "paceline.db"
    with open_store(path) as store:
        if is_old:
            with store.maintaining("make it an old one") as execute:
                execute("PRAGMA auto_vacuum = NONE")
                execute("VACUUM")
        for number in range(2):
            store.begin(a_run(f"run-{number}"))
            store.add(a_record(f"run-{number}", count=200_000))
        shrink(store, whole=False)
        before = path.stat().st_size
        delete_runs(store, ["run-0"])
        shrink(store, whole=False)
        assert (path.stat().st_size < 0.6 * before) is not is_old
        shrink(store)
        assert path.stat().st_size < 0.6 * before
        assert path.with_name("paceline.db-wal").stat().st_size == 0
        assert store.load("run-1").records == [a_record("run-1", count=200_000)]


def test_a_server_shrinks_without_complaint(store: Store) -> None:
    store.begin(a_run())
    delete_runs(store, ["run-1"])
    shrink(store)
    assert store.runs() == []


def test_a_leader_removes_logs_and_jobs_that_were_over_long_ago(store: Store) -> None:
    def finish(job_id: str, state: str, days: int) -> None:
        at = START - timedelta(days=days)
        job = {"id": job_id, "state": state, "priority": 0, "submitted_by": "ann", "version": 1}
        with store.queue.writing("finish") as writing:
            writing.submit(job | {"submitted_at": at.isoformat()}, EventRow(at, "ended", {}))
            writing.log(job_id, LogRow(1, 1, at, "measured\n"))

    for number in range(150):  # more than are removed at once
        finish(f"old-{number}", "succeeded", 100)
    finish("middle", "failed", 40)
    finish("new", "cancelled", 10)
    finish("waits", "queued", 100)
    pruning = Pruning(store, Policy(jobs=timedelta(days=90), logs=timedelta(days=30)))
    for _ in range(6):
        pruning.look(START)
    assert [job["id"] for job in store.queue.jobs()] == ["new", "middle", "waits"]
    assert [job_id for job_id in ("new", "middle", "waits") if store.queue.logs(job_id)] == ["new", "waits"]
    finish("later", "succeeded", 100)
    pruning.look(START + timedelta(minutes=59))
    assert store.queue.job("later") is not None
    pruning.look(START + timedelta(minutes=61))
    assert store.queue.job("later") is None


def test_what_is_to_stay_for_ever_stays(store: Store) -> None:
    at = START - timedelta(days=10_000)
    job = {"id": "old", "state": "succeeded", "priority": 0, "submitted_by": "ann", "version": 1}
    with store.queue.writing("finish") as writing:
        writing.submit(job | {"submitted_at": at.isoformat()}, EventRow(at, "ended", {}))
        writing.log("old", LogRow(1, 1, at, "measured\n"))
    Pruning(store, Policy(jobs=None, logs=None)).look(START)
    assert store.queue.logs("old")
