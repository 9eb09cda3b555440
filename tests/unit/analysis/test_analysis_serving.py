"""What served cases say, from traces of a simulated server."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from paceline.analysis import serving
from paceline.analysis.summary import CaseRow, headline_of, summarize_run
from paceline.core.record import Measurement
from paceline.core.subject import REQUEST_STAGES
from support.records import run_of
from support.serving_records import ENGINES, PROMISE, capacity_run, rates_run, searched, served


@pytest.fixture(scope="module")
def rates() -> tuple[CaseRow, ...]:
    return summarize_run(rates_run()).rows


@pytest.fixture(scope="module")
def capacities() -> tuple[CaseRow, ...]:
    return summarize_run(capacity_run()).rows


def test_the_tail_leads_where_the_rate_was_chosen_and_capacity_where_it_was_searched(
    capacities: tuple[CaseRow, ...],
) -> None:
    assert [row.headline.name for row in capacities if row.headline] == ["capacity", "capacity", "latency_p99"]


def test_throughput_leads_where_users_set_the_pace_themselves() -> None:
    closed = served(0, "torch", 50.0, **ENGINES["torch"], loop="closed")
    found = headline_of(closed)
    assert found is not None and found.metric.name == "throughput"


def test_too_few_requests_lead_with_the_highest_percentile_they_can_tell() -> None:
    found = headline_of(served(0, "torch", 50.0, **ENGINES["torch"], count=120))
    assert found is not None and found.metric.name == "latency_p95"


def test_only_equal_loads_are_compared() -> None:
    groups = summarize_run(rates_run()).groups
    assert [[row.case.parameters["server"]["engine"] for row in group.rows] for group in groups] == [
        ["onnxruntime", "torch"]
    ] * 3


def test_the_promise_and_whether_it_was_kept(rates: tuple[CaseRow, ...]) -> None:
    assert serving.slo(rates[0]) == PROMISE
    assert [serving.slo_met(row) for row in rates] == [True, True, False, True, True, True]
    load = rates[0].record.load
    assert load is not None
    for unknown in (load.model_copy(update={"slo_met": None}), None):
        bare = rates[0].record.model_copy(update={"load": unknown})
        assert serving.slo_met(dataclasses.replace(rates[0], record=bare)) is None


def test_a_curve_joins_the_loads_of_one_server_by_what_was_offered(rates: tuple[CaseRow, ...]) -> None:
    curves = serving.curves(rates)
    assert [len(curve.loads) for curve in curves] == [3, 3]
    for curve in curves:
        assert [load.offered for load in curve.loads] == sorted(load.offered for load in curve.loads)
        tails = [load.percentiles["p99"] for load in curve.loads]
        assert tails == sorted(tails) and curve.capacity is None


def test_a_search_has_a_point_for_each_trial_and_one_for_the_last_load(capacities: tuple[CaseRow, ...]) -> None:
    torch, onnx = serving.curves(capacities)  # a single load of a third server makes no curve
    assert [sum(load.is_trial for load in curve.loads) for curve in (torch, onnx)] == [10, 10]
    assert len(torch.loads) == 11
    assert torch.capacity is not None and torch.capacity.value == 268.0


def test_a_search_and_chosen_loads_of_one_server_are_one_curve() -> None:
    engine = ENGINES["torch"]
    rows = summarize_run(
        run_of([searched(0, "torch", **engine, capacity=268.0), served(1, "torch", 50.0, **engine)])
    ).rows
    (curve,) = serving.curves(rows)
    assert len(curve.loads) == 12 and not curve.loads[0].is_trial


def test_a_load_that_comes_at_once_is_on_no_curve() -> None:
    burst = [served(place, "torch", rate, **ENGINES["torch"], loop="burst") for place, rate in enumerate((50.0, 90.0))]
    assert serving.curves(summarize_run(run_of(burst)).rows) == []


def test_the_percentile_to_look_at_is_the_promised_one_if_most_loads_tell_it(rates: tuple[CaseRow, ...]) -> None:
    loads = [load for curve in serving.curves(rates) for load in curve.loads]
    assert serving.shared_tail(loads) == "p99"
    assert serving.shared_tail(loads, ["p95"]) == "p95"
    few = [dataclasses.replace(load, percentiles={"p50": 0.1, "p90": 0.2}) for load in loads]
    assert serving.shared_tail(few, ["p95"]) == "p90"


def test_a_distribution_is_thinned_and_keeps_both_ends(rates: tuple[CaseRow, ...]) -> None:
    found = serving.distribution(rates[2])
    latency = rates[2].record.measurement("latency")
    assert found is not None and latency is not None
    assert len(latency.samples) == 1500 and len(found.seconds) <= serving.DRAWN
    assert (found.seconds[0], found.seconds[-1]) == (min(latency.samples), max(latency.samples))
    assert found.parts[-1] == 1.0 and list(found.parts) == sorted(found.parts)
    half = np.interp(0.5, found.parts, found.seconds)
    assert half == pytest.approx(float(np.median(latency.samples)), rel=0.02)


@pytest.mark.parametrize("shed", [0.2, 0.7])  # of more than half there is no percentile at all
def test_requests_without_an_answer_keep_a_distribution_below_the_whole(shed: float) -> None:
    (row,) = summarize_run(run_of([served(0, "torch", 50.0, **ENGINES["torch"], shed=shed)])).rows
    found, latency = serving.distribution(row), row.record.measurement("latency")
    assert found is not None and latency is not None
    assert found.parts[-1] == pytest.approx(len(latency.samples) / 1500)


def test_stages_come_in_the_order_of_a_request_and_add_up_to_its_latency(rates: tuple[CaseRow, ...]) -> None:
    for row in rates:
        parts, latency = serving.stages(row), row.record.measurement("latency")
        assert tuple(parts) == tuple(one for one in REQUEST_STAGES if one in parts) and latency is not None
        assert sum(part.value for part in parts.values()) == pytest.approx(latency.summary.mean, rel=1e-6)


def test_batches_grow_with_the_load(rates: tuple[CaseRow, ...]) -> None:
    assert sum(serving.batches(rates[2]).values()) == pytest.approx(100.0)
    assert serving.batches(rates[2])[1] < serving.batches(rates[0])[1]


def test_the_cold_start_is_in_its_order(rates: tuple[CaseRow, ...]) -> None:
    assert list(serving.cold_start(rates[0])) == ["process to ready", "ready to first answer", "first answer to steady"]


def test_offers_on_the_front_are_not_beaten(rates: tuple[CaseRow, ...]) -> None:
    name, offers = serving.offers(rates)
    assert name == "p99" and len(offers) == 6
    best = {offer.row.case.parameters["server"]["engine"] for offer in offers if offer.on_front}
    assert best == {"onnxruntime"}


def test_two_settings_or_none_with_a_price_have_no_front(rates: tuple[CaseRow, ...]) -> None:
    assert serving.offers(rates[:2])[1] == []
    assert serving.offers([])[1] == []
    twice = [rates[0], rates[0], rates[1]]
    assert serving.offers(twice)[1] == []


def test_pareto_takes_what_is_equal_within_margins_for_equal() -> None:
    points = [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0), (3.0, 3.0), (2.0, 2.0)]
    assert serving.pareto(points) == [True, True, True, False, True]
    assert serving.pareto([(1.0, 3.0), (5.0, 2.9)]) == [True, True]
    assert serving.pareto([(1.0, 3.0), (5.0, 2.9)], [(0.5, 0.2), (0.5, 0.2)]) == [True, False]


def test_a_ring_of_near_equals_has_a_front_all_the_same() -> None:
    ring = [(0.0, 0.9, 1.8), (1.8, 0.0, 0.9), (0.9, 1.8, 0.0)]
    assert any(serving.pareto(ring, [(1.0, 1.0, 1.0)] * 3))


def test_cases_of_other_kinds_are_no_business_of_serving(rates: tuple[CaseRow, ...]) -> None:
    trained = rates[0].case.model_copy(update={"category": "training"})
    other = rates[0].record.model_copy(update={"case": trained, "load": None, "primary": ""})
    row = dataclasses.replace(rates[0], record=other)
    assert serving.by_model([row]) == [] and serving.curves([row, row]) == []
    leading = headline_of(other)
    assert isinstance(leading, Measurement) and leading.metric.name == "throughput"
