"""Measurements, records and runs: which figure leads, and what is left to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
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
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, PackedSamples, Record, Statistic
from paceline.core.run import Run, RunRecords
from paceline.core.subject import Alias, ServedLoad

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


def test_packed_samples_are_read_when_they_are_asked_for() -> None:
    packed = PackedSamples(np.array([1.5, 2.5]).astype("<f8").tobytes())
    assert packed() == [1.5, 2.5]
    assert PackedSamples(b"").array().size == 0
    stored = replace(Measurement.of_samples(TIME, [1.5, 2.5]), samples=packed)
    assert stored.sample_array().tolist() == [1.5, 2.5]
    assert vars(stored)["samples"] is packed  # arithmetic makes no list of them
    assert stored.samples == [1.5, 2.5]
    assert stored.samples is stored.samples
    assert stored.sample_array().tolist() == [1.5, 2.5]


def test_a_measurement_without_samples_has_an_empty_list_of_its_own() -> None:
    summary = Measurement.of_value(TIME, 1.0).summary
    one, other = Measurement(metric=TIME, summary=summary), Measurement(metric=TIME, summary=summary)
    one.samples.append(1.0)
    assert (one.samples, other.samples) == ([1.0], [])
    with pytest.raises(TypeError, match="summary"):
        Measurement(metric=TIME)


def test_a_measurement_is_of_the_point_that_it_was_taken_at() -> None:
    times = Measurement.of_samples(TIME, [1.0, 2.0], at={"size": 3})
    assert times.at == Measurement.of_rate(RATE, 1.0, times).at == Measurement.of_value(TIME, 1.0, at={"size": 3}).at
    assert times.at == {"size": 3}
    assert Measurement.of_value(TIME, 1.0).at == Measurement.of_samples(TIME, [1.0]).at == {}


@pytest.mark.parametrize("statistic", ["median", "mean", "single"])
def test_the_statistic_chooses_the_headline_and_its_interval(statistic: Statistic) -> None:
    measured = Measurement.of_samples(TIME, [1.0, 2.0, 2.0, 2.0, 9.0, 2.0], statistic=statistic)
    summary = measured.summary
    assert (measured.value, measured.interval) == {
        "median": (2.0, summary.median_interval),
        "mean": (3.0, summary.mean_interval),
        "single": (3.0, None),
    }[statistic]


def test_a_measurement_is_found_by_its_point() -> None:
    one = record(0)
    one.measurements += [Measurement.of_value(TIME, 1.0, at={"size": 1}), Measurement.of_value(TIME, 2.0)]
    point, whole = one.measurement("time", at={"size": 1}), one.measurement("time")
    assert point is not None
    assert whole is not None
    assert (point.value, whole.value) == (1.0, 2.0)
    assert one.measurement("time", at={"size": 2}) is None
    assert one.measurement("time", "rank 0", at={"size": 1}) is None


@pytest.mark.parametrize(
    "said", [{"primary": "time"}, {"aliases": {"x": Alias(group="g")}}, {"load": ServedLoad(loop="open")}]
)
def test_a_record_is_described_once_its_benchmark_said_anything_of_it(said: dict[str, Any]) -> None:
    assert record(0).is_described is False
    assert record(0).model_copy(update=said).is_described is True


@pytest.mark.parametrize(
    ("outcome", "require", "is_success"),
    [
        (Outcome.OK, False, True),
        (Outcome.OK, True, True),
        (Outcome.UNSUPPORTED, False, True),
        (Outcome.UNSUPPORTED, True, False),
        (Outcome.FAILED, False, False),
        (Outcome.FAILED, True, False),
    ],
)
def test_only_what_must_work_here_and_what_broke_is_no_success(
    outcome: Outcome, require: bool, is_success: bool
) -> None:
    one = record(0).model_copy(update={"outcome": outcome, "case": case(require=require)})
    assert one.is_success is is_success
