"""One metric over runs, without the samples."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from paceline.core.record import Measurement
from paceline.store.store import Store
from support.refused import refused
from support.store_samples import STEP_TIME, a_failed_record, a_record, a_run


def fill(store: Store, count: int) -> None:
    for place in range(count):
        run_id = f"run-{place}"
        store.begin(a_run(run_id, minutes=place, tags=["odd"] if place % 2 else []))
        store.add(a_record(run_id, 0))
        store.add(a_record(run_id, 1))
        store.finish(run_id)


def test_the_metric_of_every_run_in_the_order_of_time(store: Store) -> None:
    fill(store, 3)
    found = store.history("step_time")
    assert [records.run.id for records in found] == ["run-0", "run-1", "run-2"]
    loaded = store.load("run-0")
    for mine, whole in zip(found[0].records, loaded.records, strict=True):
        (told,) = mine.measurements
        same = whole.measurement("step_time")
        assert same is not None
        assert (told.metric, told.value, told.interval, told.statistic) == (
            same.metric,
            same.value,
            same.interval,
            same.statistic,
        )
        assert told.samples == []
        assert (mine.case, mine.warnings, mine.outcome) == (whole.case, whole.warnings, whole.outcome)
    assert found[0].run.environment == loaded.run.environment
    assert found[0].run.started_at == loaded.run.started_at


def test_the_newest_runs_and_those_with_a_tag(store: Store) -> None:
    fill(store, 5)
    assert [records.run.id for records in store.history("step_time", limit=2)] == ["run-3", "run-4"]
    assert [records.run.id for records in store.history("step_time", tag="odd")] == ["run-1", "run-3"]
    assert [records.run.id for records in store.history("step_time", tag="odd", limit=1)] == ["run-3"]
    assert store.history("step_time", tag="none") == []


def test_only_what_succeeded_at_the_last_attempt(store: Store) -> None:
    store.begin(a_run("run-1"))
    store.add(a_record("run-1", 0, attempt=1))
    better = [Measurement.of_samples(STEP_TIME, [0.5, 0.5])]
    store.add(a_record("run-1", 0, attempt=2, measurements=better))
    store.add(a_record("run-1", 1, attempt=1))
    store.add(a_failed_record("run-1", 1, attempt=2))
    store.finish("run-1")
    (records,) = store.history("step_time")
    (record,) = records.records
    assert (record.case.index, record.attempt, record.measurements[0].value) == (0, 2, 0.5)


def test_an_unknown_metric_is_refused_with_the_nearest(store: Store) -> None:
    fill(store, 1)
    with refused("unknown-metric", suggestion="step_time"):
        store.history("step_tim")


def test_samples_are_not_read_from_the_database(store: Store) -> None:
    fill(store, 1)
    asked: list[str] = []
    event.listen(store._reads, "before_cursor_execute", lambda *told: asked.append(told[2]))
    store.history("step_time")
    assert asked
    assert not [statement for statement in asked if "samples" in statement]


def test_runs_are_asked_for_some_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 5)
    monkeypatch.setattr("paceline.store.reader._RUNS_AT_ONCE", 2)
    history = store.history("step_time")
    assert [(one.run.id, len(one.records)) for one in history] == [(f"run-{place}", 2) for place in range(5)]
