"""Serving as LoadGen's summary, training as lines of its log."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from paceline.core.record import Record
from paceline.core.run import RunRecords
from paceline.report.export import mlperf
from support.records import literal_run, sample_run
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


def test_a_run_without_either_is_refused() -> None:
    with refused("no-training-or-serving"):
        mlperf.render(literal_run())
