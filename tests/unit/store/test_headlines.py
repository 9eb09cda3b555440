"""The figures of all runs, read without what takes room."""

from __future__ import annotations

from pathlib import Path

from paceline.core.record import Record
from paceline.store import open_store
from paceline.store.dashboard_queries import headlines
from support.records import sample_run
from support.serving_records import capacity_run


def test_figures_come_without_samples_and_points(tmp_path: Path) -> None:
    sources = {}
    with open_store(tmp_path / "paceline.db") as store:
        for place, source in enumerate((sample_run(), capacity_run())):
            run = source.run.model_copy(update={"id": f"run-{place}"})
            records = [record.model_copy(update={"run_id": run.id}) for record in source.records]
            store.begin(run)
            for record in records:
                store.add(record)
            sources[run.id] = records
        found = headlines(store)
    assert [one.run.id for one in found] == ["run-0", "run-1"]
    for one in found:
        assert one.run.environment.host == "node-07"
        assert [_figures(record) for record in one.records] == [_figures(record) for record in sources[one.run.id]]
        assert not any(m.samples or m.at or m.scope for record in one.records for m in record.measurements)


def test_the_last_attempt_counts(tmp_path: Path) -> None:
    source = sample_run()
    first = source.records[0]
    with open_store(tmp_path / "paceline.db") as store:
        store.begin(source.run)
        store.add(first)
        store.add(first.model_copy(update={"attempt": 2, "measurements": []}))
        (one,) = headlines(store)
    (record,) = one.records
    assert (record.attempt, record.measurements) == (2, [])


def _figures(record: Record) -> tuple[object, ...]:
    whole = [(m.metric, m.value, m.interval) for m in record.measurements if not m.scope and not m.at]
    return (record.case, record.outcome, record.cause, record.facts, record.warnings, whole)
