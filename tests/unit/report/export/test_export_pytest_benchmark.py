"""The JSON of pytest-benchmark: what its `compare` reads, by its own rules for quartiles and outliers."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import pytest

from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, RecordWarning
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


def test_the_whole_document_of_one_case() -> None:
    measured = [
        Measurement.of_samples(STEP_TIME, [5.0, 1.0, 2.0, 3.0, 4.0]),
        Measurement.of_samples(STEP_TIME, [9.0, 9.0], scope="rank 0"),
        Measurement.of_value(Metric(name="loss", unit=""), math.nan),
        Measurement.of_value(Metric(name="rate", unit="images/s"), 7.0),
        Measurement.of_value(Metric(name="rate_at", unit="images/s"), 8.0, at={"size": 1}),
    ]
    warning = RecordWarning(kind="noisy", message="m", remedy="r")
    environment = {
        "host": "node-07",
        "system": "Linux",
        "kernel": "6.8",
        "architecture": "x86_64",
        "cpu": {"model": "a CPU", "architecture": "amd64", "logical_cores": 8},
        "software": {"python": "3.11.9", "implementation": "PyPy"},
        "git": {"commit": "3f9c", "dirty": True},
    }
    one = record(case(0, "train", "a/b", size=3), measured, warnings=[warning], timing="device events")
    assert document(run_of([one], environment=environment)) == {
        "machine_info": {
            "node": "node-07",
            "processor": "amd64",
            "machine": "x86_64",
            "python_compiler": "",
            "python_implementation": "PyPy",
            "python_implementation_version": "3.11.9",
            "python_version": "3.11.9",
            "python_build": ["", ""],
            "release": "6.8",
            "system": "Linux",
            "cpu": {"brand_raw": "a CPU", "count": 8},
        },
        "commit_info": {
            "id": "3f9c",
            "time": None,
            "author_time": None,
            "dirty": True,
            "project": "node-check",
            "branch": "",
        },
        "benchmarks": [
            {
                "group": "train",
                "name": "train a_b",
                "fullname": "paceline/train::train a_b",
                "params": {"size": 3},
                "param": None,
                "extra_info": {
                    "metric": "step_time",
                    "at": {},
                    "target": "cuda:0",
                    "ranks": 1,
                    "warnings": ["noisy"],
                    "units": {"loss": "", "rate": "images/s"},
                    "measured": {"rate": 7.0},
                },
                "options": {
                    "disable_gc": False,
                    "timer": "device events",
                    "min_rounds": 1,
                    "max_time": 600.0,
                    "min_time": 0.0,
                    "warmup": True,
                },
                "stats": {
                    "min": 1.0,
                    "max": 5.0,
                    "mean": 3.0,
                    "stddev": pytest.approx(statistics.stdev([1, 2, 3, 4, 5])),
                    "rounds": 5,
                    "median": 3.0,
                    "iqr": 2.5,
                    "q1": 1.75,
                    "q3": 4.25,
                    "iqr_outliers": 0,
                    "stddev_outliers": 2,
                    "outliers": "2;0",
                    "ld15iqr": 1.0,
                    "hd15iqr": 5.0,
                    "ops": pytest.approx(1 / 3),
                    "total": 15.0,
                    "iterations": 1,
                    "data": [5.0, 1.0, 2.0, 3.0, 4.0],
                },
            }
        ],
        "datetime": "2026-03-14T09:26:53+00:00",
        "version": "5.1.0",
    }


def test_what_is_not_known_of_a_machine_is_empty() -> None:
    told = document(
        run_of([record(case(0, "train", "x"), [Measurement.of_samples(STEP_TIME, [1, 2])])], environment={})
    )
    machine = told["machine_info"]
    assert (machine["processor"], machine["machine"], machine["release"], machine["system"]) == ("", "", "", "")
    assert (machine["python_implementation"], machine["python_version"]) == ("CPython", "")
    assert machine["python_implementation_version"] == ""
    assert machine["cpu"] == {"brand_raw": "", "count": None}
    assert told["commit_info"]["id"] == "unknown"
    assert told["benchmarks"][0]["options"]["timer"] == "paceline"
    assert told["benchmarks"][0]["params"] is None


def test_the_processor_stands_for_a_machine_of_no_other_name() -> None:
    one = record(case(0, "train", "x"), [Measurement.of_samples(STEP_TIME, [1, 2])])
    told = document(run_of([one], environment={"cpu": {"architecture": "amd64"}}))
    assert told["machine_info"]["machine"] == "amd64"


@pytest.mark.parametrize(
    ("samples", "fences", "outliers"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 13.0], (1.0, 7.0), 1),  # quartiles of 2.5 and 6.5, fences at -3.5 and 12.5
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 12.5], (1.0, 12.5), 0),
        ([-3.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], (-3.5, 8.0), 0),
        ([-4.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], (2.0, 8.0), 1),
    ],
)
def test_what_is_on_a_fence_is_inside(samples: list[float], fences: tuple[float, float], outliers: int) -> None:
    run = run_of([record(case(0, "train", "x"), [Measurement.of_samples(STEP_TIME, samples)])])
    stats = document(run)["benchmarks"][0]["stats"]
    assert (stats["q1"], stats["q3"]) == (2.5, 6.5)
    assert (stats["ld15iqr"], stats["hd15iqr"], stats["iqr_outliers"]) == (*fences, outliers)


@pytest.mark.parametrize(
    ("samples", "outliers"), [([0.0, 2.0, 2.0, 2.0, 4.0], 2), ([-1.0, 0.0, 1.0], 0), ([0.0, 0.0], 0)]
)
def test_only_what_is_beyond_a_deviation_is_an_outlier_of_it(samples: list[float], outliers: int) -> None:
    run = run_of([record(case(0, "train", "x"), [Measurement.of_samples(STEP_TIME, samples)])])
    stats = document(run)["benchmarks"][0]["stats"]
    assert stats["stddev_outliers"] == outliers
    assert stats["ops"] == (0.5 if sum(samples) else 0.0)


def times(name: str, samples: list[float], **more: Any) -> Measurement:
    return Measurement.of_samples(Metric(name=name, unit="s", better=Better.LOWER), samples, **more)


TWO = [1.0, 2.0]


@pytest.mark.parametrize(
    ("first", "measured", "chosen"),
    [
        (TWO, [times("latency", TWO), times("time", TWO), times("step_time", TWO)], "setup"),
        ([1.0], [times("latency", TWO), times("time", TWO), times("step_time", TWO)], "step_time"),
        ([1.0], [times("other", TWO), times("latency", TWO), times("time", TWO)], "time"),
        ([1.0], [times("other", TWO), times("latency", TWO)], "latency"),
        ([1.0], [times("other", TWO), times("another", TWO)], "other"),
        ([1.0], [times("time", TWO, scope="rank 0"), times("another", TWO)], "another"),
        ([1.0, math.nan], [times("another", TWO)], "another"),
    ],
)
def test_the_time_that_leads_stands_for_a_case(first: list[float], measured: list[Measurement], chosen: str) -> None:
    told = document(run_of([record(case(0, "mine", "x"), [times("setup", first), *measured])]))
    assert told["benchmarks"][0]["extra_info"]["metric"] == chosen


def test_the_time_behind_a_rate_stands_for_a_case() -> None:
    behind = times("mine", [1, 2])
    rate = Measurement.of_rate(Metric(name="throughput", unit="images/s", better=Better.HIGHER), 3, behind)
    told = document(run_of([record(case(0, "x", "x"), [rate, times("step_time", [1, 2]), behind])]))
    assert told["benchmarks"][0]["extra_info"]["metric"] == "mine"


def test_cases_are_in_the_order_of_the_run() -> None:
    run = literal_run()
    run.records.reverse()
    assert [one["name"] for one in document(run)["benchmarks"]] == ["train resnet50 fp16", "train resnet50 fp32"]


def test_the_file_is_indented_as_there() -> None:
    text = pytest_benchmark.render(literal_run())
    assert text.startswith('{\n    "machine_info": {\n        "node": "node-07",\n')
    assert text.endswith("\n}\n")
