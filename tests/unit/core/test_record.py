"""Measurements, records and runs: which figure leads, and what is left to do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import (
    InputError,
    MissingDependency,
    OutOfMemory,
    PacelineError,
    Unsupported,
    nearest,
    unknown,
)
from paceline.core.metric import Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record
from paceline.core.run import Run, RunRecords

TIME = Metric(name="time", unit="s")
RATE = Metric(name="rate", unit="1/s")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def case(index: int = 0, **values: Any) -> Case:
    return Case(**({"index": index, "benchmark": "b", "parameters": {}, "title": ""} | values))


def record(index: int, kind: CauseKind | None = None) -> Record:
    outcome = Outcome.OK if kind is None else Outcome.FAILED
    cause = None if kind is None else Cause(kind=kind, message="m")
    return Record(run_id="r", case=case(index), outcome=outcome, cause=cause, started_at=NOW, seconds=1.0)


def test_the_headline_of_many_samples_is_their_median_with_its_interval() -> None:
    found = Measurement.of_samples(TIME, [1.0, 2.0, 2.0, 2.0, 9.0, 2.0])
    assert found.value == 2.0
    assert found.interval == found.summary.median_interval


def test_the_headline_of_a_rate_is_all_work_over_all_time() -> None:
    times = Measurement.of_samples(TIME, [1.0, 1.0, 4.0])
    found = Measurement.of_rate(RATE, 6.0, times)
    assert found.value == pytest.approx(18.0 / 6.0)
    assert found.interval == found.summary.mean_interval
    assert (found.derived_from, found.work, found.samples) == ("time", 6.0, [])


def test_a_single_value_has_no_interval() -> None:
    found = Measurement.of_value(TIME, 3)
    assert (found.value, found.interval, found.samples) == (3.0, None, [3.0])


def test_samples_keep_the_order_in_which_they_were_taken() -> None:
    assert Measurement.of_samples(TIME, [3.0, 1.0, 2.0]).samples == [3.0, 1.0, 2.0]


def test_a_record_survives_its_json() -> None:
    whole = record(1, CauseKind.TIMEOUT)
    whole.measurements.append(Measurement.of_samples(TIME, [0.1, 0.2, 0.30000000000000004]))
    assert Record.model_validate_json(whole.model_dump_json()) == whole


def test_a_measurement_is_found_by_name_and_scope() -> None:
    found = record(0)
    found.measurements += [Measurement.of_value(TIME, 1.0), Measurement.of_value(TIME, 2.0, scope="rank 1")]
    whole, ranked = found.measurement("time"), found.measurement("time", "rank 1")
    assert whole is not None
    assert ranked is not None
    assert (whole.value, ranked.value) == (1.0, 2.0)
    assert found.measurement("other") is None


def test_only_interrupted_cases_are_still_to_be_done() -> None:
    run = Run(id="r", name="s", started_at=NOW, version="0", cases=[case(index) for index in range(4)])
    records = [record(0), record(1, CauseKind.INTERRUPTED), record(2, CauseKind.ERROR)]
    whole = RunRecords(run=run, records=records)
    assert [missing.index for missing in whole.missing] == [1, 3]
    assert not whole.all_ok


def test_a_run_is_ok_when_every_case_is_measured_and_ok() -> None:
    run = Run(id="r", name="s", started_at=NOW, version="0", cases=[case(0), case(1)])
    assert RunRecords(run=run, records=[record(0), record(1)]).all_ok
    assert not RunRecords(run=run, records=[record(0)]).all_ok
    assert not RunRecords(run=run, records=[record(0), record(1, CauseKind.ERROR)]).all_ok


@pytest.mark.parametrize(
    ("target", "world_size", "local_rank", "expected"),
    [
        ("cpu", 1, 0, "cpu"),
        ("cpu", 4, 3, "cpu"),
        ("cuda:2", 1, 0, "cuda:2"),
        ("cuda:0", 4, 3, "cuda:3"),
        ("cuda:*", 1, 0, "cuda:0"),
        ("cuda:*", 4, 2, "cuda:2"),
    ],
)
def test_each_rank_has_the_device_of_its_local_rank(
    target: str, world_size: int, local_rank: int, expected: str
) -> None:
    context = Context(case(target=target), rank=local_rank, world_size=world_size, local_rank=local_rank)
    assert context.target == expected


def test_the_nearest_name_ignores_case_and_far_names_have_none() -> None:
    assert nearest("BATCH_SIZE", ["batch_size", "budget"]) == "batch_size"
    assert nearest("zzz", ["batch_size", "budget"]) is None


def test_a_long_list_of_known_names_is_cut() -> None:
    assert str(unknown("thing", "qqq", [f"x{n:02d}" for n in range(25)])).endswith("x19 and 5 more")


def test_only_refused_input_exits_with_two() -> None:
    assert InputError.exit_code == 2
    assert {kind.exit_code for kind in (PacelineError, Unsupported, OutOfMemory, MissingDependency)} == {1}
    assert "pip install x" in str(MissingDependency("x", "pip install x"))
