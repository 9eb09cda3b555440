"""Serving as LoadGen's summary, training as lines of its log."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest

from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.run import RunRecords
from paceline.core.subject import ServedLoad, Subject
from paceline.report.export import mlperf
from support.records import STARTED, case, literal_run, run_of, sample_run
from support.records import record as record_of
from support.refused import refused
from support.serving_records import rates_run


def trained() -> RunRecords:
    run = sample_run()
    for record in run.records:
        if record.case.benchmark == "train":
            record.case = record.case.model_copy(update={"category": "training"})
    return run


def summaries(text: str) -> list[dict[str, str]]:
    """The fields of each summary, by the colon that LoadGen's readers look for."""
    parts = text.split("MLPerf Results Summary\n")[1:]
    lines = [[line.partition(":") for line in part.splitlines() if ":" in line] for part in parts]
    return [{name.strip(): value.strip() for name, _, value in part} for part in lines]


def with_users(users: int | None, loop: str = "closed") -> tuple[RunRecords, Record]:
    run = rates_run().model_copy(deep=True)
    record = run.records[0]
    assert record.load is not None
    record.load = record.load.model_copy(update={"loop": loop, "users": users})
    return run, record


def test_a_served_model_is_a_summary() -> None:
    run = rates_run()
    found = summaries(mlperf.render(run))
    assert len(found) == 6
    first, record = found[0], run.records[0]
    assert (first["Scenario"], first["Mode"], first["Result is"]) == ("Server", "PerformanceOnly", "VALID")
    rate = record.measurement("throughput")
    latency = record.measurement("latency")
    assert rate is not None and latency is not None
    assert float(first["Completed samples per second"]) == pytest.approx(rate.value, abs=0.01)
    assert int(first["Min latency (ns)"]) == round(1e9 * min(latency.samples))
    ordered = np.sort(latency.samples)
    assert int(first["99.00 percentile latency (ns)"]) == round(1e9 * ordered[int(0.99 * ordered.size)])
    assert int(first["target_latency (ns)"]) == 50_000_000
    assert int(first["query_count"]) == 1500


def test_a_broken_promise_or_a_short_load_is_no_valid_result() -> None:
    found = summaries(mlperf.render(rates_run()))
    broken = [one for one in found if one["Performance constraints satisfied"] == "NO"]
    assert broken and all(one["Result is"] == "INVALID" for one in broken)
    short = [one for one in found if one["Min duration satisfied"] == "NO"]
    assert short and all(one["Result is"] == "INVALID" for one in short)


def test_a_load_without_a_promise_says_so() -> None:
    run, record = with_users(None, "open")
    assert record.load is not None
    record.load = record.load.model_copy(update={"slo": {}, "slo_met": None})
    text = mlperf.render(run)
    assert "The load has no SLO" in text
    assert summaries(text)[0]["Result is"] == "INVALID"


@pytest.mark.parametrize(
    ("users", "loop", "scenario"),
    [(1, "closed", "SingleStream"), (8, "closed", "Closed loop of 8 users (not MLPerf's)"), (None, "burst", "Offline")],
)
def test_scenarios(users: int | None, loop: str, scenario: str) -> None:
    run, _ = with_users(users, loop)
    first = summaries(mlperf.render(run))[0]
    assert first["Scenario"] == scenario
    assert "Performance constraints satisfied" not in first


def test_requests_without_an_answer_push_the_tail_beyond_what_is_written() -> None:
    run, record = with_users(None, "open")
    latency = record.measurement("latency")
    assert latency is not None
    latency.samples = latency.samples[:1450]  # of 1500 that were sent
    first = summaries(mlperf.render(run))[0]
    assert "95.00 percentile latency (ns)" in first
    assert "97.00 percentile latency (ns)" not in first


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in text.splitlines() if line.startswith(":::MLLOG ")]


def test_training_is_a_log() -> None:
    told = lines(mlperf.render(trained()))
    assert all(set(line) == {"namespace", "time_ms", "event_type", "key", "value", "metadata"} for line in told)
    assert {line["event_type"] for line in told} == {"POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"}
    first = [line for line in told if line["metadata"]["case"] == "train gpt2-small bf16"]
    by_key = {line["key"]: line for line in first}
    assert by_key["submission_benchmark"]["value"] == "gpt2-small"
    assert by_key["global_batch_size"]["value"] == 32
    assert by_key["tracked_stats"]["value"]["throughput"] == pytest.approx(270, rel=0.05)
    assert by_key["tracked_stats"]["metadata"]["units"]["throughput"] == "sequences/s"
    assert by_key["run_stop"]["time_ms"] - by_key["run_start"]["time_ms"] == 21400
    assert by_key["run_stop"]["metadata"]["status"] == "success"
    failed = [line for line in told if "mixtral" in line["metadata"]["case"] and line["key"] == "run_stop"]
    assert failed[0]["metadata"]["status"] == "aborted"


def test_it_says_that_it_is_no_submission_and_lacks_what_one_needs() -> None:
    text = mlperf.render(trained())
    assert text.startswith("# In the style of MLPerf")
    assert "neither a result nor a submission" in text
    assert not re.search("submission_org|submission_division|submission_status|eval_accuracy", text)


def sampled(name: str, unit: str, samples: list[float], **more: Any) -> Measurement:
    return Measurement.of_samples(Metric(name=name, unit=unit, better=Better.LOWER), samples, **more)


LATENCIES = [0.01 * number for number in range(10, 0, -1)]


def served(load: ServedLoad | None, *more: Measurement, index: int = 0, **others: Any) -> Record:
    """Twelve requests of which ten were answered, offered at 50 a second."""
    measured = [
        sampled("offered_rate", "requests/s", [50.0, 50.0], statistic="mean"),
        sampled("throughput", "requests/s", [40.0]),
        sampled("latency", "s", LATENCIES),
        sampled("latency_p50", "s", [0.05] * 12),
    ]
    about = case(index, "serve", f"x{index}", category="serving", target="cpu")
    values = {"subject": Subject(seed=7)} | others
    return record_of(about, [*measured, *more], **({"load": load} if load else {}), **values)


def test_the_whole_summary_of_a_server() -> None:
    slo = {"p99": 0.25}
    load = ServedLoad(loop="open", slo=slo, slo_met=False, slo_missed_because="p99 is\ntoo long")
    first_tokens = sampled("time_to_first_token", "s", [0.002, 0.001])
    ruler = "=" * 48
    expected = f"""\
# In the style of MLPerf, by Paceline; neither a result nor a submission of MLPerf.

{ruler}
MLPerf Results Summary
{ruler}
SUT name : serve x0
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : 40.00
Result is : INVALID
  Performance constraints satisfied : NO
  Min duration satisfied : NO
  Min queries satisfied : NO
Recommendations:
 * missed: p99 is too long

{ruler}
Additional Stats
{ruler}
Scheduled samples per second : 50.00
Completed samples per second    : 40.00

Min latency (ns)                : 10000000
Max latency (ns)                : 100000000
Mean latency (ns)               : 55000000
50.00 percentile latency (ns)   : 70000000

Min First Token latency (ns)                : 1000000
Max First Token latency (ns)                : 2000000
Mean First Token latency (ns)               : 1500000
50.00 percentile first token latency (ns)   : 2000000
90.00 percentile first token latency (ns)   : 2000000
95.00 percentile first token latency (ns)   : 2000000
97.00 percentile first token latency (ns)   : 2000000
99.00 percentile first token latency (ns)   : 2000000
99.90 percentile first token latency (ns)   : 2000000

{ruler}
Test Parameters Used
{ruler}
samples_per_query : 1
target_qps : 50
target_latency (ns) : 250000000
min_duration (ms) : 10000
min_query_count : 100
query_count : 12
seed : 7
"""
    assert mlperf.render(run_of([served(load, first_tokens)])) == expected


def head_of(text: str) -> list[str]:
    """The lines of a summary from its scenario until the rest of the figures."""
    before = text.split("Additional Stats")[0].splitlines()
    return before[6:-1]


@pytest.mark.parametrize(
    ("load", "head"),
    [
        (
            ServedLoad(loop="closed"),
            ["Scenario : SingleStream", "Mode     : PerformanceOnly", "90th percentile latency (ns) : 100000000"],
        ),
        (
            ServedLoad(loop="closed", users=2, slo={"p50": 1.0}),
            [
                "Scenario : Closed loop of 2 users (not MLPerf's)",
                "Mode     : PerformanceOnly",
                "Completed samples per second    : 40.00",
                "Completed tokens per second: 900.00",
            ],
        ),
        (
            ServedLoad(loop="burst"),
            [
                "Scenario : Offline",
                "Mode     : PerformanceOnly",
                "Samples per second: 40.00",
                "Tokens per second: 900.00",
            ],
        ),
        (
            None,
            [
                "Scenario :",
                "Mode     : PerformanceOnly",
                "Completed samples per second    : 40.00",
                "Completed tokens per second: 900.00",
            ],
        ),
    ],
)
def test_the_figure_of_each_scenario(load: ServedLoad | None, head: list[str]) -> None:
    one = served(load, sampled("token_throughput", "tokens/s", [900.0]))
    one = one.model_copy(
        update={"measurements": [m for m in one.measurements if m.metric.name != "latency_p50"], "load": load}
    )
    text = mlperf.render(run_of([one]))
    checks = ["Result is : INVALID", "  Min duration satisfied : NO", "  Min queries satisfied : NO", ""]
    assert [line.rstrip() for line in head_of(text)] == [*head, *checks]
    assert "Scheduled samples" not in text
    assert "target_latency" not in text
    assert "query_count : 10" in text


@pytest.mark.parametrize(
    ("queries", "rate", "checks"),
    [(100, 10.0, ["Yes", "Yes", "VALID"]), (99, 9.9, ["Yes", "NO", "INVALID"]), (100, 10.1, ["NO", "Yes", "INVALID"])],
)
def test_ten_seconds_and_a_hundred_queries_are_enough(queries: int, rate: float, checks: list[str]) -> None:
    measured = [sampled("offered_rate", "requests/s", [rate]), sampled("latency", "s", [0.1] * queries)]
    load = ServedLoad(loop="open", slo={"p99": 1.0}, slo_met=True)
    one = served(load).model_copy(update={"measurements": measured})
    text = mlperf.render(run_of([one]))
    first = summaries(text)[0]
    assert [first[name] for name in ("Min duration satisfied", "Min queries satisfied", "Result is")] == checks
    assert "Recommendations" not in text


@pytest.mark.parametrize("measured", [[], [sampled("throughput", "requests/s", [0.0])]], ids=["nothing", "no rate"])
def test_a_load_that_was_never_answered_has_no_latency_and_no_duration(measured: list[Measurement]) -> None:
    one = served(ServedLoad(loop="closed", users=1)).model_copy(update={"measurements": measured})
    text = mlperf.render(run_of([one]))
    assert "latency (ns)" not in text
    assert summaries(text)[0]["Min duration satisfied"] == "NO"
    assert "query_count : 0" in text


def test_the_duration_of_a_load_without_a_schedule_is_that_of_its_answers() -> None:
    measured = [sampled("throughput", "requests/s", [1.0]), sampled("latency", "s", [0.1] * 10)]
    one = served(ServedLoad(loop="burst")).model_copy(update={"measurements": measured})
    assert summaries(mlperf.render(run_of([one])))[0]["Min duration satisfied"] == "Yes"


def test_cases_come_in_the_order_of_the_run_and_failed_servers_not_at_all() -> None:
    load = ServedLoad(loop="burst")
    failed = served(load, index=2, outcome=Outcome.FAILED)
    others = record_of(case(3, "gemm", "z"), [sampled("time", "s", [0.1, 0.2])])
    text = mlperf.render(run_of([others, served(load, index=1), failed, served(load, index=0)]))
    assert re.findall("SUT name : (.*)", text) == ["serve x0", "serve x1"]


def test_the_lines_of_a_training_by_their_fields() -> None:
    measured = [
        sampled("step_time", "s", [0.1, 0.2, 0.3]),
        sampled("step_time", "s", [0.5, 0.5], scope="rank 0"),
        sampled("throughput", "images/s", [7.0], at={"size": 8}),
        sampled("loss", "", [math.nan]),
    ]
    one = record_of(case(1, "train", "y", category="training"), measured, subject=Subject(model="m", batch=0, seed=0))
    start = round(STARTED.timestamp() * 1000) + 30_000
    entries = lines(mlperf.render(run_of([one])))
    assert {entry["metadata"]["lineno"] for entry in entries} == {0}
    assert [(entry["key"], entry["value"], entry["time_ms"] - start) for entry in entries] == [
        ("submission_benchmark", "m", 0),
        ("submission_platform", "2 x NVIDIA H200 with AMD EPYC 9654 96-Core Processor", 0),
        ("global_batch_size", 0, 0),
        ("seed", 0, 0),
        ("run_start", None, 0),
        ("tracked_stats", {"step_time": 0.2}, 21_400),
        ("run_stop", None, 21_400),
    ]
    assert entries[5]["metadata"]["step"] == 3
    assert entries[5]["metadata"]["units"] == {"step_time": "s"}


def test_a_training_that_measured_nothing_has_no_stats() -> None:
    bare = record_of(case(1, "train", "y", category="training"), [], subject=Subject(), outcome=Outcome.FAILED)
    entries = lines(mlperf.render(run_of([bare])))
    assert [entry["key"] for entry in entries] == [
        "submission_benchmark",
        "submission_platform",
        "run_start",
        "run_stop",
    ]
    assert entries[0]["value"] == "train"
    assert lines(mlperf.render(run_of([trained_without_steps()])))[-2]["metadata"]["step"] is None


def trained_without_steps() -> Record:
    return record_of(case(1, "train", "y", category="training"), [sampled("loss", "", [2.0])], subject=Subject())


def test_a_run_without_either_is_refused() -> None:
    with refused("no-training-or-serving"):
        mlperf.render(literal_run())


@pytest.mark.parametrize(("seconds", "nanoseconds"), [(60.0, 60_000_000_000), (1.5e-9, 2)])
def test_the_promised_latency_is_told_to_the_nanosecond(seconds: float, nanoseconds: int) -> None:
    load = ServedLoad(loop="open", slo={"p99": seconds}, slo_met=True)
    assert f"\ntarget_latency (ns) : {nanoseconds}\n" in mlperf.render(run_of([served(load)]))
