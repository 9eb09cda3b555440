"""What served cases say, from traces of a simulated server."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from paceline.analysis import serving
from paceline.analysis.summary import CaseRow, headline_of, summarize_run
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Outcome, Record
from paceline.core.stats import Interval, summarize
from paceline.core.subject import REQUEST_STAGES
from support.records import case, record, run_of
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
    best = [offer.row for offer in offers if offer.on_front]
    assert {row.case.parameters["server"]["engine"] for row in best if _is_bounded(row)} == {"onnxruntime"}
    assert {row.case.parameters["server"]["engine"] for row in best if not _is_bounded(row)} <= {"torch"}


def _is_bounded(row: CaseRow) -> bool:
    """Whether its p99 has an interval, without which no other beats it."""
    figure = row.figure("latency_p99")
    return figure is not None and figure.interval is not None


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


THROUGHPUT, COST, P50, P99 = (
    Metric(name=name, unit=unit, better=better)
    for name, unit, better in (
        ("throughput", "requests/s", Better.HIGHER),
        ("cost_per_thousand", "USD", Better.LOWER),
        ("latency_p50", "s", Better.LOWER),
        ("latency_p99", "s", Better.LOWER),
    )
)
LATENCY, STAGE_TIME = (Metric(name=name, unit="s", better=Better.LOWER) for name in ("latency", "stage_time"))


def row_of(*measurements: Measurement, index: int = 0) -> CaseRow:
    """A case that measured just this."""
    (row,) = summarize_run(
        run_of([record(case(index, "other", f"setting {index}", place=index), [*measurements])])
    ).rows
    return row


def value_of(name: str, value: float) -> Measurement:
    return Measurement.of_value(Metric(name=name, unit="", better=Better.LOWER), value)


def uncertain(metric: Metric, value: float, part: float | None) -> Measurement:
    """A figure whose interval reaches this part of it to both sides."""
    if part is None:
        return Measurement.of_value(metric, value)
    interval = Interval(low=value * (1 - part), high=value * (1 + part), confidence=0.95)
    summary = summarize([value]).model_copy(update={"mean_interval": interval})
    return Measurement(metric=metric, statistic="mean", summary=summary)


def changed(row: CaseRow, *, without: tuple[str, ...] = (), more: tuple[Measurement, ...] = ()) -> CaseRow:
    """The row without some of its figures and with others; points of sweeps stay."""
    stay = [one for one in row.record.measurements if one.at]
    whole = [one for one in row.record.measurements if not one.at and one.metric.name not in without]
    measured: Record = row.record.model_copy(update={"measurements": [*whole, *stay, *more]})
    return CaseRow(measured, row.label, headline_of(measured))


def failed(row: CaseRow) -> CaseRow:
    return dataclasses.replace(row, record=row.record.model_copy(update={"outcome": Outcome.FAILED}))


def test_what_failed_is_in_no_chart_of_a_model_and_on_no_curve(rates: tuple[CaseRow, ...]) -> None:
    bare = dataclasses.replace(rates[0], record=rates[0].record.model_copy(update={"load": None}))
    assert serving.by_model([*rates, failed(rates[0]), bare]) == [list(rates)]
    assert serving.slo(bare) == {}
    tiny = rates[1].record.subject.model_copy(update={"scale": "tiny"})
    other = dataclasses.replace(rates[1], record=rates[1].record.model_copy(update={"subject": tiny}))
    assert serving.by_model([rates[0], other]) == [[rates[0]], [other]]
    assert serving.curves([rates[0], failed(rates[1])]) == []
    (curve,) = serving.curves([rates[0], rates[1], failed(rates[2])])
    assert curve.rows == rates[:2] and len(curve.loads) == 2


def test_a_distribution_is_of_times_that_are_times() -> None:
    samples = Measurement.of_samples(LATENCY, [0.2, 0.1])
    samples.samples = [0.2, 0.0, math.nan, 0.1, math.inf, -1.0]
    assert serving.distribution(row_of(samples)) == serving.Distribution((0.1, 0.2), (0.5, 1.0))
    samples.samples = [0.2, 0.0]
    assert serving.distribution(row_of(samples)) is None
    assert serving.distribution(row_of(value_of("throughput", 3.0))) is None


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ([value_of("error_rate", 30.0), value_of("shed_rate", 20.0)], 0.5),
        ([value_of("shed_rate", 20.0)], 0.8),
        ([value_of("error_rate", 100.0)], 1.0),
        ([Measurement.of_samples(P50, [0.1] * 8), value_of("error_rate", 30.0)], 0.5),
        ([Measurement.of_value(P50, 0.1), value_of("error_rate", 50.0)], 1.0),
    ],
    ids=["both", "one", "all", "counted", "counted too few"],
)
def test_the_whole_of_a_distribution_is_every_request(more: list[Measurement], part: float) -> None:
    samples = Measurement.of_samples(LATENCY, [0.1, 0.2, 0.3, 0.4])
    distribution = serving.distribution(row_of(samples, *more))
    assert distribution is not None
    assert distribution.seconds == (0.1, 0.2, 0.3, 0.4)
    assert distribution.parts == pytest.approx([part / 4, part / 2, 0.75 * part, part])


def test_a_distribution_is_drawn_whole_up_to_a_number_and_then_most_finely_in_its_tail() -> None:
    def drawn(count: int) -> serving.Distribution:
        samples = [(place + 1) / count for place in range(count)]
        distribution = serving.distribution(row_of(Measurement.of_samples(LATENCY, samples)))
        assert distribution is not None
        return distribution

    assert len(drawn(serving.DRAWN).seconds) == serving.DRAWN
    assert len(drawn(serving.DRAWN + 1).seconds) < serving.DRAWN
    thinned = drawn(10_000)
    assert thinned.seconds == pytest.approx(thinned.parts)
    assert (thinned.parts[0], thinned.parts[-1]) == (0.0001, 1.0)
    # The sample at the 98th percentile ends the body and begins the tail.
    assert len(thinned.parts) == serving.DRAWN - 1
    assert sum(part > 0.98015 for part in thinned.parts) == serving.TAIL_DRAWN - 1


def test_an_unknown_part_of_a_request_follows_those_that_have_a_place() -> None:
    names = ("warming", REQUEST_STAGES[5], REQUEST_STAGES[0])
    times = [Measurement.of_value(STAGE_TIME, 0.1, at={"stage": name}) for name in names]
    elsewhere = [
        Measurement.of_value(STAGE_TIME, 0.1, at={"step": "x"}),
        Measurement.of_value(THROUGHPUT, 0.1, at={"stage": "rated"}),
    ]
    assert list(serving.stages(row_of(*times, *elsewhere))) == [REQUEST_STAGES[0], REQUEST_STAGES[5], "warming"]


def test_a_percentile_that_half_of_the_loads_have_is_not_that_of_most(rates: tuple[CaseRow, ...]) -> None:
    load = serving.curves(rates)[0].loads[0]
    both = [dataclasses.replace(load, percentiles=has) for has in ({"p99": 0.2, "p95": 0.1}, {"p95": 0.1})]
    assert serving.shared_tail(both) == "p95"
    assert serving.shared_tail([both[0], *both]) == "p99"
    assert serving.shared_tail([]) == "p50"


def test_only_settings_with_a_price_and_a_rate_are_offered(rates: tuple[CaseRow, ...]) -> None:
    priceless = changed(rates[0], without=("cost_per_thousand",))
    unbounded = summarize([1.0]).model_copy(update={"mean": math.inf})
    endless = changed(rates[0], without=("cost_per_thousand",), more=(Measurement(metric=COST, summary=unbounded),))
    still = changed(rates[0], without=("throughput",))
    for unusable in (priceless, endless, still):
        name, offers = serving.offers([unusable, *rates[1:]])
        assert name == "p99" and [offer.row for offer in offers] == list(rates[1:])
    assert serving.offers([priceless]) == ("", [])


def test_the_percentile_of_offers_is_one_that_all_of_them_have(rates: tuple[CaseRow, ...]) -> None:
    name, offers = serving.offers([changed(rates[0], without=("latency_p99",)), *rates[1:]])
    assert name == "p95" and len(offers) == 6
    bare = [changed(row, without=("latency_p99", "latency_p95", "latency_p90", "latency_p50")) for row in rates]
    assert serving.offers(bare) == ("", [])
    assert serving.offers([]) == ("", [])
    assert serving.offers(rates[:2]) == ("p99", [])


def test_an_offer_says_what_its_setting_measured(rates: tuple[CaseRow, ...]) -> None:
    _, offers = serving.offers(rates[:3])
    assert len(offers) == 3
    for offer in offers:
        figures = [offer.row.figure(name) for name in ("latency_p99", "throughput", "cost_per_thousand")]
        assert [figure.value for figure in figures if figure] == [offer.latency, offer.throughput, offer.cost]


@pytest.mark.parametrize(
    ("better", "parts", "is_equal"),
    [
        ((0.9, 10.0, 5.0), (0.01, 0.01), False),
        ((1.0, 11.0, 5.0), (0.01, 0.01), False),
        ((1.0, 10.0, 4.5), (0.01, 0.01), False),
        ((0.9, 10.0, 5.0), (0.2, 0.01), True),
        ((1.0, 11.0, 5.0), (0.01, 0.2), True),
        ((1.0, 10.0, 4.5), (0.01, 0.2), True),
        ((0.9, 10.0, 5.0), (0.01, 0.2), False),
        ((1.0, 11.0, 5.0), (0.2, 0.01), False),
        ((1.0, 10.0, 4.5), (0.2, 0.01), False),
        ((0.5, 10.0, 5.0), (0.2, 0.2), False),
        ((1.0, 20.0, 5.0), (0.2, 0.2), False),
        ((1.0, 10.0, 2.0), (0.2, 0.2), False),
    ],
)
def test_an_offer_within_the_interval_of_a_better_one_is_as_good(
    better: tuple[float, float, float], parts: tuple[float | None, float | None], is_equal: bool
) -> None:
    settings = ((1.0, 10.0, 5.0), better, (0.01, 0.1, 50.0))  # the last one is the quickest and offers little
    rows = [
        row_of(uncertain(P99, latency, parts[0]), uncertain(THROUGHPUT, rate, parts[1]), uncertain(COST, cost, None),
               index=place)
        for place, (latency, rate, cost) in enumerate(settings)
    ]  # fmt: skip
    name, offers = serving.offers(rows)
    assert name == "p99"
    assert [offer.on_front for offer in offers] == [is_equal, True, True]


def test_a_percentile_without_an_interval_makes_no_offer_better_or_worse() -> None:
    settings = ((1.0, None, 10.0), (0.5, 0.01, 10.0), (0.5, 0.01, 20.0))
    rows = [
        row_of(uncertain(P99, latency, part), uncertain(THROUGHPUT, rate, 0.01), uncertain(COST, 50.0 / rate, None),
               index=place)
        for place, (latency, part, rate) in enumerate(settings)
    ]  # fmt: skip
    # The second would beat the first by its latency alone, the third beats both by its rate.
    assert [
        offer.on_front for offer in serving.offers([*rows[:2], row_of(*rows[1].record.measurements, index=7)])[1]
    ] == [True, True, True]
    assert [offer.on_front for offer in serving.offers(rows)[1]] == [False, False, True]


def test_the_wider_margin_of_two_points_counts_and_no_margin_is_none() -> None:
    assert serving.pareto([(1.0,), (0.9,)]) == [False, True]
    assert serving.pareto([(1.0,), (0.9,)], [(0.2,), (0.0,)]) == [True, True]
    assert serving.pareto([(1.0,), (0.9,)], [(0.0,), (0.2,)]) == [True, True]
    assert serving.pareto([(1.0, 2.0), (1.0, 1.0)]) == [False, True]
    assert serving.pareto([(1.0, 2.0), (1.5, 1.0)], [(0.5, 0.0), (0.5, 0.0)]) == [False, True]
    assert serving.pareto([(1.0, 2.0), (1.0, 1.5)], [(0.5, 0.5), (0.5, 0.5)]) == [True, True]


def test_a_setting_whose_rate_has_no_interval_beats_none_of_a_higher_rate() -> None:
    settings = ((0.5, 10.0, None), (1.0, 100.0, 0.01), (2.0, 90.0, 0.01))
    rows = [
        row_of(uncertain(P99, latency, 0.01), uncertain(THROUGHPUT, rate, part), uncertain(COST, 50.0 / rate, None),
               index=place)
        for place, (latency, rate, part) in enumerate(settings)
    ]  # fmt: skip
    assert [offer.on_front for offer in serving.offers(rows)[1]] == [True, True, False]


def test_a_ring_is_judged_without_margins() -> None:
    ring = [(0.0, 0.9, 1.8), (1.8, 0.0, 0.9), (0.9, 1.8, 0.0), (3.0, 3.0, 3.0)]
    assert serving.pareto(ring, [(1.0, 1.0, 1.0)] * 4) == serving.pareto(ring) == [True, True, True, False]


def test_a_load_is_of_the_whole_case_and_of_the_trials_of_a_search(rates: tuple[CaseRow, ...]) -> None:
    of_rank = Measurement.of_value(THROUGHPUT, 7.0, scope="rank 0")
    at_size = [Measurement.of_value(metric, 7.0, at={"size": 1}) for metric in (THROUGHPUT, P99)]
    plain = serving.curves(rates[:3])[0].loads
    (curve,) = serving.curves([changed(rates[0], more=(of_rank, *at_size)), *rates[1:3]])
    assert [(load.throughput, load.percentiles) for load in curve.loads] == [
        (load.throughput, load.percentiles) for load in plain
    ]
    assert not any(load.is_trial for load in curve.loads)


def test_a_load_needs_a_rate_and_a_latency_and_is_offered_what_it_answered_unless_it_says_so(
    rates: tuple[CaseRow, ...],
) -> None:
    percentiles = ("latency_p99", "latency_p95", "latency_p90", "latency_p50")
    for unusable in (changed(rates[0], without=("throughput",)), changed(rates[0], without=percentiles)):
        (curve,) = serving.curves([unusable, *rates[1:3]])
        assert len(curve.loads) == 2
    silent = changed(rates[0], without=("offered_rate",))
    (curve,) = serving.curves([silent, *rates[1:3]])
    assert (curve.loads[0].offered, curve.loads[0].row) == (curve.loads[0].throughput, silent)
