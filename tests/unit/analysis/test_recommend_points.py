"""What records become before they are weighed: points, promises, and what nothing can rest on."""

from __future__ import annotations

import pytest

from paceline.analysis.configuration import configuration_of, labels, machine_of
from paceline.analysis.cost import Prices
from paceline.analysis.recommend.evidence import Evidence, evidence
from paceline.core.record import Cause, CauseKind, Outcome, RecordWarning
from paceline.core.run import RunRecords
from support.records import case, literal_run, record, run_of, sample_run
from support.serving_records import ENGINES, capacity_run, parameters, rates_run, served

FREE = Prices({})


def one(source: RunRecords) -> Evidence:
    (found,) = evidence([source], FREE)
    return found


def test_loads_of_one_server_are_points_of_one_configuration() -> None:
    found = one(rates_run())
    assert found.work == "serve resnet18 poisson"
    assert found.is_served
    assert len({point.configuration.key for point in found.points}) == 2
    assert sorted({point.load for point in found.points}) == [50.0, 150.0, 300.0]
    assert set(found.points[0].readings) == {"p50", "p90", "p95", "p99", "error_rate"}


def test_a_search_gives_its_trials_and_the_rate_that_it_found() -> None:
    found = one(capacity_run())
    torch = [point for point in found.points if point.configuration.choices["server.engine"] == "torch"]
    (capacity,) = [point for point in torch if point.is_capacity]
    assert capacity.throughput.value == 268.0
    assert capacity.readings["p99"].value == capacity.readings["p99"].high == 0.05
    assert capacity.readings["p50"].value == 0.05  # it is no more than p99
    assert len(torch) > 10


def test_a_rate_that_was_not_confirmed_is_not_sure() -> None:
    source = capacity_run()
    first = source.records[0]
    warning = RecordWarning(kind="unconfirmed", message="a last load did not meet the SLO", remedy="again")
    changed = first.model_copy(update={"warnings": [warning]})
    found = one(run_of([changed]))
    (capacity,) = [point for point in found.points if point.is_capacity]
    assert capacity.readings["p99"].high is None


def test_repeated_loads_are_one_point_that_allows_what_any_of_them_does() -> None:
    two = [served(index, "torch", 150.0, **ENGINES["torch"]) for index in (0, 1)]
    apart = [one(run_of([measured])).points[0] for measured in two]
    (point,) = one(run_of(two)).points
    highs = [single.readings["p99"].high for single in apart]
    assert point.readings["p99"].high == max(high for high in highs if high is not None)
    values = [single.throughput.value for single in apart]
    assert point.throughput.value == pytest.approx(sum(values) / 2)


def test_that_none_of_a_few_failed_does_not_mean_that_none_will() -> None:
    found = one(rates_run())
    errors = found.points[0].readings["error_rate"]
    assert errors.value == 0.0
    assert errors.high is not None and 0.001 < errors.high < 0.01  # of 1,500


def test_declined_requests_count_as_failed() -> None:
    shed = served(0, "torch", 50.0, **ENGINES["torch"], shed=0.05)
    (point,) = one(run_of([shed])).points
    assert point.readings["error_rate"].value == pytest.approx(0.05, rel=0.4)


@pytest.mark.parametrize("kind", ["saturated", "sockets", "unsent"])
def test_a_load_that_the_client_did_not_manage_is_left_out_with_the_reason(kind: str) -> None:
    good = served(0, "torch", 50.0, **ENGINES["torch"])
    warning = RecordWarning(kind=kind, message="the load generator was too slow", remedy="more cores")
    found = one(
        run_of([good, served(1, "torch", 300.0, **ENGINES["torch"]).model_copy(update={"warnings": [warning]})])
    )
    assert [point.load for point in found.points] == [50.0]
    (entry,) = found.left_out
    assert entry.reason == f"{kind}: the load generator was too slow"


def test_failed_cases_and_closed_loops_are_left_out() -> None:
    cause = Cause(kind=CauseKind.ERROR, message="the server ended")
    about = case(0, "serve", "resnet18", **parameters("torch", 8)).model_copy(update={"category": "serving"})
    failed = record(about, outcome=Outcome.FAILED, cause=cause)
    closed = served(1, "torch", 50.0, **ENGINES["torch"], loop="closed")
    reasons = [entry.reason for found in evidence([run_of([failed, closed])], FREE) for entry in found.left_out]
    assert reasons[0] == "failed: the server ended"
    assert "wait for their answers" in reasons[1]


def test_models_without_a_server_have_their_throughput() -> None:
    (found,) = evidence([literal_run()], FREE)
    assert not found.is_served
    assert [point.throughput.value for point in found.points] == pytest.approx([320.0, 160.0])
    assert found.points[0].unit == "images/s"


def test_the_tail_of_a_step_is_known_only_with_steps_enough() -> None:
    (found,) = evidence([literal_run()], FREE)  # of 20 steps
    assert set(found.points[0].readings) == {"p50", "p90", "p95"}
    many = [e for e in evidence([sample_run()], FREE) if e.work == "inference resnet50"]
    reading = many[0].points[0].readings["p99"]
    assert reading.low is not None and reading.high is not None
    assert reading.low <= reading.value <= reading.high


def test_work_and_choice_are_told_apart() -> None:
    source = sample_run()
    by_work: dict[str, list[str]] = {}
    for measured in source.records:
        found = configuration_of(measured, source.run)
        by_work.setdefault(found.work, []).append(found.choices["machine"])
    assert by_work["train gpt2-small"] == ["NVIDIA H200", "2x NVIDIA H200"]
    assert by_work["train resnet50"] == ["NVIDIA H200"] * 2


def test_names_say_what_differs() -> None:
    source = literal_run()
    assert labels([configuration_of(measured, source.run) for measured in source.records]) == ["fp16", "fp32"]


def test_a_server_elsewhere_is_not_this_machine() -> None:
    server = {"kind": "url", "url": "http://gpu7:8000", "model": "resnet18"}
    about = case(0, "serve", "x", target="cpu", **parameters("torch", 8) | {"server": server})
    measured = record(about)
    assert machine_of(measured, run_of([measured]).run) == "http://gpu7:8000"


def test_only_cases_that_are_named_are_looked_at() -> None:
    assert [found.work for found in evidence([sample_run()], FREE, text="BERT")] == [
        "train bert-large",
        "inference bert-large",
    ]
