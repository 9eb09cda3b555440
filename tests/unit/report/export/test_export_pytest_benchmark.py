"""The JSON of pytest-benchmark: what its `compare` reads, by its own rules for quartiles and outliers."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from paceline.core.metric import Metric
from paceline.core.record import Measurement
from paceline.report.export import pytest_benchmark
from support.micro_records import micro_run
from support.records import STEP_TIME, case, hostile_run, literal_run, record, run_of, sample_run
from support.refused import refused
from support.serving_records import rates_run

STATS = {
    "min", "max", "mean", "stddev", "rounds", "median", "iqr", "q1", "q3", "iqr_outliers", "stddev_outliers",
    "outliers", "ld15iqr", "hd15iqr", "ops", "total", "iterations", "data",
}  # fmt: skip
NEEDED = {"group", "name", "fullname", "params", "param", "extra_info", "options", "stats"}


def document(run: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(pytest_benchmark.render(run))
    return told


@pytest.mark.parametrize(
    "run", [literal_run, sample_run, micro_run, rates_run, hostile_run], ids=lambda run: run.__name__
)
def test_the_fields_that_compare_reads_are_there(run: Any) -> None:
    told = document(run())
    assert set(told) == {"machine_info", "commit_info", "benchmarks", "datetime", "version"}
    assert told["machine_info"]["cpu"].keys() >= {"brand_raw"}
    assert told["commit_info"].keys() >= {"id", "dirty"}
    assert told["benchmarks"]
    for one in told["benchmarks"]:
        assert set(one) == NEEDED
        assert set(one["stats"]) == STATS
    names = [one["fullname"] for one in told["benchmarks"]]
    assert len(set(names)) == len(names)


def test_a_case_is_the_time_of_its_steps() -> None:
    first, second = document(literal_run())["benchmarks"]
    assert (first["name"], first["group"]) == ("train resnet50 fp16", "train")
    assert first["stats"]["median"] == pytest.approx(0.1)
    assert second["stats"]["ops"] == pytest.approx(5.0)
    assert first["extra_info"]["measured"]["throughput"] == pytest.approx(320)
    assert first["extra_info"]["units"]["throughput"] == "images/s"
    assert first["params"]["precision"] == "fp16"


@pytest.mark.parametrize(
    ("samples", "quartiles", "outliers"),
    [
        ([1.0, 2.0, 3.0, 4.0], (1.5, 3.5), "2;0"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], (1.75, 4.25), "2;0"),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], (2.25, 5.75), "2;0"),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0], (1.0, 1.0), "1;1"),
    ],
)
def test_quartiles_and_outliers_are_as_there(
    samples: list[float], quartiles: tuple[float, float], outliers: str
) -> None:
    run = run_of([record(case(0, "train", "x"), [Measurement.of_samples(STEP_TIME, samples)])])
    stats = document(run)["benchmarks"][0]["stats"]
    assert (stats["q1"], stats["q3"]) == quartiles
    assert stats["outliers"] == outliers
    assert stats["stddev"] == pytest.approx(statistics.stdev(samples))
    assert stats["total"] == pytest.approx(sum(samples))
    assert stats["data"] == samples


def test_cases_without_a_time_or_without_success_are_left_out() -> None:
    assert len(document(sample_run())["benchmarks"]) == 7
    single = run_of([record(case(0, "train", "x"), [Measurement.of_value(Metric(name="loss", unit=""), 1.0)])])
    with refused("no-samples-of-time"):
        pytest_benchmark.render(single)
