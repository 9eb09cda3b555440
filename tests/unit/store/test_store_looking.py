"""What pages read every other second: the same as the whole, without what is heavy."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from paceline.store.dashboard_queries import (
    PastPlacement,
    edition,
    glance,
    headlines,
    last_lines,
    latest,
    metrics,
    placements,
    run_count,
)
from paceline.store.queue import EventRow, LogRow
from paceline.store.store import Store
from support.store_samples import a_failed_record, a_record, a_run

AT = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def test_a_glance_at_a_run_is_the_run_without_its_samples(store: Store) -> None:
    assert glance(store, "run-1") is None
    store.begin(a_run())
    store.add(a_failed_record(index=0))
    store.add(a_record(index=0, attempt=2))
    store.add(a_record(index=1))
    seen, whole = glance(store, "run-1"), store.load("run-1")
    assert seen is not None
    assert seen.run == whole.run
    assert [record.attempt for record in seen.records] == [2, 1]
    for light, full in zip(seen.records, whole.records, strict=True):
        told = {one.metric.name: one.value for one in light.measurements}
        assert told == {one.metric.name: one.value for one in full.measurements if not one.scope}
        assert not any(one.samples for one in light.measurements)
    assert (run_count(store), metrics(store)) == (1, ["step_time", "throughput"])


def test_the_last_lines_and_what_a_follower_was_given(store: Store) -> None:
    with store.queue.writing("set up") as writing:
        for name, follower in (("job-1", "one"), ("job-2", "two"), ("job-3", "one")):
            placed = EventRow(AT, "placed", {"followers": [follower], "run_id": f"run-of-{name}"})
            job = {"id": name, "state": "running", "priority": 0, "submitted_at": AT.isoformat(), "submitted_by": ""}
            writing.submit(job | {"version": 0}, placed)
        for attempt, number in ((1, 1), (1, 2), (2, 1)):
            writing.log("job-1", LogRow(attempt, number, AT, f"{attempt}.{number}"))
    assert [row.text for row in last_lines(store, "job-1", 2)] == ["1.2", "2.1"]
    given = [PastPlacement("job-3", AT, "run-of-job-3"), PastPlacement("job-1", AT, "run-of-job-1")]
    assert placements(store, "one", 10) == given
    assert placements(store, "one", 1) == given[:1]


def test_the_edition_changes_with_every_record(store: Store) -> None:
    assert edition(store) == ()
    store.begin(a_run())
    editions = [edition(store)]
    for index in range(2):
        store.add(a_record(index=index))
        editions.append(edition(store))
        assert edition(store) == editions[-1]
    assert len(set(editions)) == 3


def test_an_empty_store_has_no_runs(store: Store) -> None:
    assert run_count(store) == 0
    assert headlines(store) == []


def test_what_cases_took_comes_with_the_machines_of_all_runs(store: Store) -> None:
    environments: list[dict[str, Any]] = [
        {"gpus": [{"name": "H200", "cuda_index": 0}, {"name": "broken", "cuda_index": None}]},
        {"gpus": [{"name": "", "cuda_index": 0}]},
        {"gpus": "none"},
        {},
        {"gpus": [{"name": "T4", "cuda_index": 0}] * 2},
    ]
    for place, environment in enumerate(environments):
        store.begin(a_run(f"run-{place}", environment=environment))
        store.add(a_record(f"run-{place}", seconds=float(place)))
    durations = latest(store, 10)
    assert [one.seconds for one in durations] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [one.gpus for one in durations] == [("H200",), ("GPU",), (), (), ("T4", "T4")]
    assert [one.seconds for one in latest(store, 2)] == [3.0, 4.0]
