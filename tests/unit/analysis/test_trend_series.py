"""Series are of one case on one kind of machine, and tell what changed with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.analysis.trend.series import TrendSeries, commit, differences, fingerprint, history, machine, settings
from paceline.core.environment import Environment
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, RecordWarning
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


@pytest.mark.parametrize("count", [5, 6, 7])
def test_six_runs_are_enough_to_tell_a_change_from_noise(count: int) -> None:
    assert only(runs_of({"resnet50": [0.1] * count})).is_long_enough is (count >= 6)


def of_values(values: list[float], better: Better = Better.HIGHER) -> TrendSeries:
    metric = Metric(name="margin", unit="ms", better=better)
    runs = runs_of({"resnet50": [0.1] * len(values)})
    for records, value in zip(runs, values, strict=True):
        records.records[0].measurements = [Measurement.of_value(metric, value)]
    return only(runs, "margin")


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_values_at_or_below_zero_are_measured_in_their_own_unit(scale: float) -> None:
    assert of_values([-1.0 * scale] * 12 + [-1.00001 * scale] * 12).shifts == ()  # 0.001 % is no change in any unit
    (shift,) = of_values([0.0] * 12 + [-0.5 * scale] * 12).shifts
    assert (shift.change.at, shift.verdict) == (12, "regression")
    assert shift.change.difference == pytest.approx(-0.5 * scale)
    (shift,) = of_values([0.0] * 12 + [0.5 * scale] * 12).shifts
    assert (shift.factor, shift.verdict) == (None, "improvement")


def test_a_series_of_nothing_but_zeros_has_one_level() -> None:
    still = of_values([0.0] * 24)
    assert (still.level, still.noise, still.shifts) == (0.0, 0.0, ())


@pytest.mark.parametrize(
    ("better", "verdict"), [(Better.HIGHER, "improvement"), (Better.LOWER, "regression"), (Better.NEITHER, "change")]
)
def test_a_rise_is_judged_by_the_direction_of_its_metric(better: Better, verdict: str) -> None:
    (shift,) = of_values([1.0] * 12 + [1.5] * 12, better).shifts
    assert shift.verdict == verdict
    assert shift.factor == pytest.approx(1.5)
    assert shift.interval is not None
    assert shift.interval.high == pytest.approx(1.5, rel=0.01)


def test_a_series_is_worse_when_its_level_is_below_the_best_one_it_had() -> None:
    recovered = only(runs_of({"resnet50": levels(60, (20, 1.2), (40, 1 / 1.2), seed=3)}))
    assert [shift.verdict for shift in recovered.shifts] == ["regression", "improvement"]
    assert not recovered.is_worse  # as fast as at first
    back = only(runs_of({"resnet50": levels(60, (20, 1 / 1.2), (40, 1.2), seed=3)}))
    assert back.is_worse and back.best_before == 39
    assert back.level == pytest.approx(0.1, rel=0.02)
    partly = only(runs_of({"resnet50": levels(60, (20, 1.2), (40, 1 / 1.1), seed=3)}))
    assert partly.shifts[-1].verdict == "improvement"
    assert partly.is_worse and partly.best_before == 19  # some of what was lost came back, not all
    assert not replace(back, shifts=()).is_worse


def test_a_regression_that_creeps_in_is_held_against_the_best_level() -> None:
    creeping = only(runs_of({"resnet50": levels(100, (25, 1.03), (50, 1.03), (75, 1.03), seed=3)}))
    assert creeping.is_worse
    assert creeping.best_before is not None and creeping.best_before < 30


def test_now_is_what_the_last_run_measured() -> None:
    runs = runs_of({"resnet50": levels(30, seed=3)})
    series = only(runs)
    assert series.now == runs[-1].records[0].measurements[1].value
    assert series.now != series.level


def test_two_modes_are_named_and_no_step() -> None:
    values = [0.1 if place % 5 else 0.108 for place in range(30)]
    series = only(runs_of({"resnet50": values}))
    assert series.shifts == () and series.modes is not None
    assert series.modes.share == pytest.approx(0.2)
    assert series.modes.other - series.modes.usual == pytest.approx(0.077, abs=0.01)
    assert only(runs_of({"resnet50": levels(30, seed=3)})).modes is None


def test_series_that_got_worse_come_first() -> None:
    whole = history(runs_of({"steady": levels(40, seed=2), "resnet50": SLOWER["resnet50"]}), "step_time")
    assert [series.label for series in whole.series] == ["train resnet50", "train steady"]
    assert whole.worse == whole.series[:1]


def test_a_run_that_is_given_twice_counts_once() -> None:
    runs = runs_of({"resnet50": [0.1] * 3})
    once, twice = history(runs, "step_time"), history([*runs, *runs], "step_time")
    assert [point.repetitions for point in twice.series[0].points] == [1, 1, 1]
    assert twice == once


def test_the_only_repetition_of_a_run_has_the_interval_that_it_was_measured_with() -> None:
    runs = runs_of({"resnet50": [0.1, 0.1]})
    measured = [records.records[0].measurements[1] for records in runs]
    points = only(runs).points
    assert [(point.value, point.interval) for point in points] == [(one.value, one.interval) for one in measured]
    assert all(point.interval is not None for point in points)


def test_a_case_is_called_as_its_last_run_calls_it() -> None:
    runs = runs_of({"resnet50": [0.1] * 4})
    for records, title in zip(runs, ("a", "b", "c", "d"), strict=True):
        records.records[0].case = records.records[0].case.model_copy(update={"title": title})
    series = only(runs)
    assert (series.label, series.case.title) == ("train d", "d")


def test_the_warnings_of_a_run_are_told_once_each() -> None:
    runs = runs_of({"resnet50": [0.1] * 2})
    first = runs[0].records[0]
    first.warnings = [RecordWarning(kind=kind, message="", remedy="") for kind in ("noisy", "short", "noisy")]
    runs[0].records.append(first.model_copy(deep=True))
    assert [point.warnings for point in only(runs).points] == [("noisy", "short"), ()]


def test_gpus_that_differ_are_listed_and_a_single_one_is_not_counted() -> None:
    one, other = ({**ENVIRONMENT["gpus"][0], "name": name} for name in ("A", "B"))
    mixed = Environment.model_validate(ENVIRONMENT | {"gpus": [one, other, one]})
    assert machine(mixed, "cuda:0").startswith("2 x A and B with ")
    assert settings(mixed)["GPU name"] == "A, B, A"
    assert settings(mixed)["GPUs"] == "3"
    assert "GPUs" not in settings(Environment.model_validate(ENVIRONMENT | {"gpus": []}))


def test_what_only_some_gpus_say_is_unknown_of_the_others() -> None:
    gpus = [{"name": "A", "mig": True, "power_limit_watts": 350.5}, {"ecc": {"enabled": False}}]
    said = settings(Environment.model_validate({"gpus": gpus}))
    assert {name: value for name, value in said.items() if name.startswith("GPU")} == {
        "GPU name": "A, unknown",
        "GPU power limit watts": "350.5, unknown",
        "GPU mig": "yes, unknown",
        "GPU ECC": "unknown, no",
        "GPUs": "2",
    }


def test_settings_are_all_that_lasts_by_the_names_that_people_read() -> None:
    assert settings(Environment.model_validate(ENVIRONMENT)) == {
        "host": "node-07",
        "kernel": "6.8.0-52-generic",
        "distribution": "Ubuntu 24.04.2 LTS",
        "container": "none",
        "CPU model": "AMD EPYC 9654 96-Core Processor",
        "CPU governor": "performance",
        "memory": "1622722183168",
        "driver": "570.86.15",
        "driver's CUDA": "12.8",
        "GPU name": "NVIDIA H200",
        "GPU power limit watts": "700",
        "GPU sm clock max mhz": "1980",
        "GPU persistence": "yes",
        "GPU ECC": "yes",
        "GPUs": "2",
        "python": "3.11.9",
        "paceline": "0.1.0",
        "torch cuda": "12.8",
        "torch": "2.9.1",
        "numpy": "2.3.4",
        "$OMP_NUM_THREADS": "96",
        "$NCCL_P2P_LEVEL": "NVL",
        "commit": "3f9c1d2e",
        "uncommitted changes": "no",
    }
    assert settings(Environment()) == {}
    assert len(fingerprint(Environment())) == 8


@pytest.mark.parametrize(
    ("environment", "target", "expected"),
    [
        ({"gpus": [], "cpu": {"model": "X", "physical_cores": 8, "usable": 3.5}}, "cuda:0", "X, 3.5 cores"),
        ({"cpu": {"model": "X", "physical_cores": 8}}, "cpu", "X, 8 cores"),
        ({"cpu": {"model": "X"}, "architecture": "aarch64"}, "cpu", "X"),
        ({"architecture": "aarch64"}, "cpu", "aarch64"),
        ({"gpus": [{}], "cpu": {"model": "X"}}, "cuda:0", "unknown GPU with X"),
        ({"gpus": [{}, {}], "cpu": {"model": "X"}}, "cuda:*", "2 x unknown GPU with X"),
        ({"gpus": [{"name": "A"}], "cpu": {"model": "X"}}, "cpu", "X"),
    ],
)
def test_a_machine_is_named_by_what_is_known_of_it(environment: dict[str, Any], target: str, expected: str) -> None:
    assert machine(Environment.model_validate(environment), target) == expected


@pytest.mark.parametrize(
    ("git", "expected"),
    [
        (None, ("", False)),
        ({}, ("", False)),
        ({"commit": "abc", "dirty": True}, ("abc", True)),
        ({"commit": "abc"}, ("abc", False)),
    ],
)
def test_a_commit_is_empty_and_clean_where_none_is_known(
    git: dict[str, Any] | None, expected: tuple[str, bool]
) -> None:
    assert commit(Environment.model_validate({"git": git})) == expected


def test_the_order_in_which_packages_are_listed_is_no_difference() -> None:
    packages = {"torch": "2.9.1", "numpy": "2.3.4"}
    one, other = (
        Environment.model_validate({"software": {"packages": dict(order)}})
        for order in (list(packages.items()), list(packages.items())[::-1])
    )
    assert fingerprint(one) == fingerprint(other)


def test_a_single_gpu_has_its_settings() -> None:
    said = settings(Environment.model_validate({"gpus": [{"name": "A", "mig": False}]}))
    assert said == {"GPU name": "A", "GPU mig": "no", "GPUs": "1"}


def test_two_repetitions_are_one_point_between_them() -> None:
    runs = runs_of({"resnet50": [0.1, 0.1]})
    metric = runs[0].records[0].measurements[1].metric
    for records in runs:
        records.records = [
            records.records[0].model_copy(update={"measurements": [Measurement.of_value(metric, value)]})
            for value in (1.0, 2.0)
        ]
    points = only(runs).points
    assert [(point.value, point.repetitions) for point in points] == [(1.5, 2), (1.5, 2)]
