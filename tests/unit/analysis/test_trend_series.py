"""Series are of one case on one kind of machine, and tell what changed with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.analysis.trend.series import TrendSeries, commit, differences, fingerprint, history, machine, settings
from paceline.core.environment import Environment
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome
from paceline.core.run import RunRecords
from support.records import ENVIRONMENT
from support.trend_records import four_series, levels, runs_of

SLOWER = {"resnet50": levels(40, (30, 1.06), seed=1)}


def only(runs: list[RunRecords], metric: str = "step_time") -> TrendSeries:
    (series,) = history(runs, metric).series
    return series


def test_direction_comes_from_the_metric() -> None:
    runs = runs_of(SLOWER)
    time, rate = only(runs), only(runs, "throughput")
    assert [shift.verdict for shift in time.shifts] == ["regression"]
    assert [shift.verdict for shift in rate.shifts] == ["regression"]
    assert time.shifts[0].factor == pytest.approx(1.06, abs=0.01)
    assert rate.shifts[0].factor == pytest.approx(1 / 1.06, abs=0.01)
    for series in (time, rate):
        shift = series.shifts[0]
        assert shift.interval is not None and shift.factor is not None
        assert shift.interval.low < shift.factor < shift.interval.high
        assert series.is_worse


def test_an_improvement_is_no_regression_and_a_metric_without_direction_only_changes() -> None:
    faster = runs_of({"resnet50": levels(40, (30, 0.94), seed=1)})
    assert [shift.verdict for shift in only(faster).shifts] == ["improvement"]
    assert not history(faster, "step_time").worse
    loss = Metric(name="loss", unit="", better=Better.NEITHER)
    for records in faster:
        told = records.records[0].measurement("step_time")
        assert told is not None
        records.records[0].measurements = [Measurement.of_value(loss, told.value)]
    assert [shift.verdict for shift in only(faster, "loss").shifts] == ["change"]


def test_the_first_bad_run_its_commit_and_what_changed_there_are_told() -> None:
    newer = {"software": ENVIRONMENT["software"] | {"packages": {"torch": "2.10.0", "numpy": "2.3.4"}}}
    runs = runs_of(SLOWER, {30: newer})
    shift = only(runs).shifts[0]
    assert shift.first.run_id == "run-030"
    assert shift.first.commit == commit(runs[30].run.environment)[0]
    assert shift.last_before.run_id == "run-029"
    changed = {part.name: (part.before, part.after) for part in shift.changed}
    assert changed.keys() == {"torch", "commit"}
    assert changed["torch"] == ("2.9.1", "2.10.0")
    assert shift.first.fingerprint != shift.last_before.fingerprint


def test_different_machines_are_different_series() -> None:
    runs = four_series()
    found = history(runs, "throughput")
    assert len(found.series) == 8
    assert len(found.machines) == 2
    for series in found.series:
        gpus = {gpu.name for point in series.points for records in runs if records.run.id == point.run_id
                for gpu in records.run.environment.gpus}  # fmt: skip
        assert len(gpus) == 1
    assert [series.label for series in found.worse] == ["train resnet50 fp16", "train vit fp32"]


def test_the_machine_of_a_case_is_what_it_ran_on() -> None:
    here = Environment.model_validate(ENVIRONMENT)
    assert machine(here, "cuda:0") == "2 x NVIDIA H200 with AMD EPYC 9654 96-Core Processor"
    assert machine(here, "cpu") == "AMD EPYC 9654 96-Core Processor, 192 cores"
    assert machine(Environment(), "cpu") == "unknown CPU"


def test_the_fingerprint_ignores_what_passes() -> None:
    here, newer = (Environment.model_validate(ENVIRONMENT | more) for more in ({}, {"kernel": "6.9"}))
    passing = {"load": [9.0, 9.0, 9.0], "host": "node-08", "git": {"commit": "other", "dirty": True}}
    assert fingerprint(Environment.model_validate(ENVIRONMENT | passing)) == fingerprint(here)
    assert fingerprint(newer) != fingerprint(here)
    (part,) = differences(settings(here), settings(newer))
    assert (part.name, part.before, part.after) == ("kernel", "6.8.0-52-generic", "6.9")


def test_repetitions_of_a_run_are_one_point() -> None:
    runs = runs_of({"resnet50": [0.1, 0.1]})
    extra = [0.08, 0.3]
    for records in runs:
        first = records.records[0]
        for value in extra:
            measured = [Measurement.of_samples(STEP, [value] * 3) for STEP in [first.measurements[1].metric]]
            records.records.append(first.model_copy(update={"measurements": measured}))
    series = only(runs)
    assert [point.repetitions for point in series.points] == [3, 3]
    assert series.points[0].value == pytest.approx(0.1, rel=0.02)
    assert series.points[0].interval is not None
    assert series.points[0].interval.low == pytest.approx(0.08)


def test_failures_ranks_and_what_is_no_number_are_left_out() -> None:
    runs = runs_of({"resnet50": [0.1] * 4})
    runs[0].records[0].outcome = Outcome.FAILED
    runs[1].records[0].measurements[1] = Measurement.of_value(runs[1].records[0].measurements[1].metric, float("nan"))
    for records in runs[2:]:
        told = records.records[0].measurements[1]
        records.records[0].measurements.append(replace(told, scope="rank 0"))
    assert [point.run_id for point in only(runs).points] == ["run-002", "run-003"]


def test_points_of_a_sweep_are_series_of_their_own_where_the_case_has_no_whole() -> None:
    runs = runs_of({"resnet50": [0.1] * 3})
    for records in runs:
        told = records.records[0].measurements[1]
        points = [replace(told, at={"size": size}) for size in (1, 2)]
        records.records[0].measurements = points
    assert [series.at for series in history(runs, "step_time").series] == [{"size": 1}, {"size": 2}]
    for records in runs:
        records.records[0].measurements.append(replace(records.records[0].measurements[0], at={}))
    assert only(runs).at == {}


def test_a_case_of_one_run_is_counted_and_not_shown() -> None:
    runs = runs_of({"resnet50": [0.1] * 3, "gpt2": [0.2]})
    found = history(runs, "step_time")
    assert [series.label for series in found.series] == ["train resnet50"]
    assert (found.seen_once, found.runs) == (1, 3)


def test_namesakes_are_told_apart_by_what_differs() -> None:
    runs = runs_of({"resnet50": [0.1] * 3, "gpt2": [0.2] * 3})
    for records in runs:
        for one in records.records:
            one.case = one.case.model_copy(update={"title": "same"})
    labels = [series.label for series in history(runs, "step_time").series]
    assert labels == ["train same model=resnet50", "train same model=gpt2"]


def test_values_that_reach_zero_have_no_factor_but_a_difference() -> None:
    metric = Metric(name="error_rate", unit="%", better=Better.LOWER)
    runs = runs_of({"resnet50": [0.1] * 24})
    for place, records in enumerate(runs):
        value = (0.0 if place < 12 else 4.0) + 0.1 * (place % 3)
        records.records[0].measurements = [Measurement.of_value(metric, value)]
    series = only(runs, "error_rate")
    (shift,) = series.shifts
    assert (shift.change.at, shift.verdict, shift.factor, shift.interval) == (12, "regression", None, None)
    assert shift.change.difference == pytest.approx(4.0, abs=0.2)


def test_the_order_of_the_runs_is_that_of_time() -> None:
    runs = runs_of(SLOWER)
    assert only(runs[::-1]) == only(runs)
