"""What records become before they are weighed: points, promises, and what nothing can rest on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from paceline.analysis.configuration import Configuration, configuration_of, labels, machine_of
from paceline.analysis.cost import Derived, HourlyPrice, Prices, StatedPrice
from paceline.analysis.recommend.evidence import Evidence, MeasuredLoad, evidence, hull, pooled
from paceline.analysis.summary import Reading
from paceline.core.case import Case
from paceline.core.metric import Better, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
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


# Points whose numbers can be checked by hand.

SERVED = served(0, "torch", 50.0, **ENGINES["torch"])
SETUP = Configuration("work", {"machine": "m"})


def warning(kind: str) -> RecordWarning:
    return RecordWarning(kind=kind, message=f"it is {kind}", remedy="none")


def named(name: str, value: float, *, count: int = 1, scope: str = "", **at: float | str) -> Measurement:
    """A figure of a load, from so many requests."""
    made = Measurement.of_value(Metric(name=name, unit="s"), 1.0, scope=scope, at=dict(at))
    summary = made.summary.model_copy(update={"count": count, "mean": value, "median": value})
    return replace(made, summary=summary, samples=[value])


def loaded(*measurements: Measurement, load: dict[str, Any] | None = None, **more: Any) -> Record:
    """A served record of these figures alone."""
    assert SERVED.load is not None
    update = {"measurements": list(measurements), "load": SERVED.load.model_copy(update=load or {}), **more}
    return SERVED.model_copy(update=update)


def points_of(measured: Record, prices: Prices = FREE) -> list[MeasuredLoad]:
    (work,) = evidence([run_of([measured])], prices)
    return work.points


def reason_of(measured: Record) -> str:
    (work,) = evidence([run_of([measured])], FREE)
    assert work.points == []
    (entry,) = work.left_out
    assert entry.label == f"{measured.case.benchmark} {measured.case.title}"
    return entry.reason


@pytest.mark.parametrize(
    ("lost", "count", "low", "high"),
    [
        (0.0, 100, 0.0, 0.036994),
        (5.0, 100, 0.021543, 0.111752),
        (50.0, 10, 0.236590, 0.763410),
        (100.0, 100, 0.963006, 1.0),
    ],
)
def test_a_part_of_the_requests_has_wilsons_interval(lost: float, count: int, low: float, high: float) -> None:
    measured = loaded(named("throughput", 50.0), named("latency_p99", 0.01, count=count), named("error_rate", lost))
    (point,) = points_of(measured)
    reading = point.readings["error_rate"]
    assert reading.value == lost / 100.0
    assert (reading.low, reading.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))
    assert 0.0 <= (reading.low or 0.0) <= reading.value <= (reading.high or 0.0)
    assert point.requests == count


def test_without_latencies_the_part_that_failed_has_no_interval() -> None:
    (point,) = points_of(loaded(named("throughput", 50.0), named("error_rate", 5.0)))
    assert point.readings == {"error_rate": Reading(0.05)}
    assert point.requests is None
    (bare,) = points_of(loaded(named("throughput", 50.0), named("latency_p50", 0.01, count=7)))
    assert (bare.readings, bare.requests) == ({"p50": Reading(0.01, count=7, more=1700)}, 7)


def test_what_failed_and_what_was_declined_add_up() -> None:
    (point,) = points_of(loaded(named("throughput", 50.0), named("error_rate", 5.0), named("shed_rate", 3.0)))
    assert point.readings["error_rate"].value == pytest.approx(0.08)
    (shed,) = points_of(loaded(named("throughput", 50.0), named("shed_rate", 3.0)))
    assert shed.readings["error_rate"].value == pytest.approx(0.03)


@pytest.mark.parametrize(("rate", "offered", "expected"), [(80.0, 79.0, 80.0), (None, 79.0, 79.0), (None, None, None)])
def test_the_load_is_the_rate_asked_for_or_else_the_one_offered(
    rate: float | None, offered: float | None, expected: float | None
) -> None:
    rates = [named("offered_rate", offered)] if offered is not None else []
    (point,) = points_of(loaded(named("throughput", 50.0), *rates, load={"rate": rate}))
    assert (point.load, point.is_capacity, point.unit) == (expected, False, "requests/s")


def test_a_search_has_a_point_for_each_trial_and_one_for_its_capacity() -> None:
    measured = loaded(
        named("throughput", 70.0),
        named("offered_rate", 75.0),
        named("energy_per_request", 2.0),
        named("latency_p50", 0.01, count=100),
        named("throughput", 30.0, rate=31.0),
        named("latency_p50", 0.005, count=20, rate=31.0),
        named("throughput", 60.0, rate=62.0),
        named("throughput", 5.0, rate=40.0, part="first"),
        named("throughput", 5.0, part="first"),
        named("throughput", 5.0, scope="rank 0", rate=41.0),
        named("goodput", 5.0, rate=42.0),
        named("capacity", 72.0),
        load={"rate": None, "slo": {"p50": 0.02, "p99": 0.05, "ttft_p99": 1.0}, "slo_errors": 0.01},
    )
    whole, *trials, capacity = points_of(measured)
    assert (whole.throughput.value, whole.load, whole.requests) == (70.0, 75.0, 100)
    assert whole.energy is not None and whole.energy.reading.value == 2.0
    assert [(one.throughput.value, one.load, one.requests, one.energy) for one in trials] == [
        (30.0, 31.0, 20, None),
        (60.0, 62.0, None, None),
    ]
    assert [one.readings for one in trials] == [{"p50": Reading(0.005, count=20, more=4800)}, {}]
    assert not any(one.is_capacity for one in (whole, *trials))
    assert (capacity.throughput.value, capacity.load, capacity.requests, capacity.is_capacity) == (
        72.0,
        None,
        None,
        True,
    )
    assert capacity.readings == {
        "p50": Reading(0.02, None, 0.02, is_limit=True),
        "p90": Reading(0.05, None, 0.05, is_limit=True),
        "p95": Reading(0.05, None, 0.05, is_limit=True),
        "p99": Reading(0.05, None, 0.05, is_limit=True),
    }
    (work,) = evidence([run_of([measured])], FREE)
    assert work.slos == [{"p50": 0.02, "p99": 0.05, "error_rate": 0.01}]


@pytest.mark.parametrize(
    ("kinds", "is_sure"),
    [([], True), (["short"], True), (["unconfirmed"], False), (["short", "unconfirmed"], False)],
)
def test_a_capacity_is_sure_unless_it_was_not_confirmed(kinds: list[str], is_sure: bool) -> None:
    measured = loaded(
        named("throughput", 70.0),
        named("capacity", 72.0),
        named("latency_p99", 0.03, count=10),
        named("error_rate", 10.0),
        load={"slo": {"p99": 0.05}, "slo_errors": None},
        warnings=[warning(kind) for kind in [*kinds, *kinds]],
    )
    whole, capacity = points_of(measured)
    assert capacity.readings["p95"] == Reading(0.05, None, 0.05 if is_sure else None, is_limit=True)
    assert capacity.readings["error_rate"] == whole.readings["error_rate"]
    assert whole.readings["p99"] == Reading(0.03, count=10, more=2400)
    assert whole.warnings == capacity.warnings == tuple(kinds)
    (work,) = evidence([run_of([measured])], FREE)
    assert work.slos == [{"p99": 0.05}]


def stepped(*, samples: bool = True, count: int = 100, repeat: int = 1) -> dict[str, Reading]:
    """What is known of steps that took 1 to 100 seconds, each of them so many times in a row."""
    values = [float(1 + 37 * place % 100) for place in range(100) for _ in range(repeat)]
    times = Measurement.of_samples(Metric(name="step_time", unit="s", better=Better.LOWER), values)
    percentiles = {"50": 50.5, "90": 90.1, "95": 95.05, "99": 99.01, "99.9": 99.9}
    summary = times.summary.model_copy(update={"percentiles": percentiles, "count": count * repeat})
    times = replace(times, summary=summary, samples=values if samples else [])
    about = case(0, "train", "m", model="m")
    (work,) = evidence([run_of([record(about, [named("throughput", 5.0), times])])], FREE)
    (point,) = work.points
    return dict(point.readings)


def test_percentiles_of_steps_have_intervals_from_their_order() -> None:
    readings = stepped()
    assert set(readings) == {"p50", "p90", "p95", "p99"}
    p50, p99 = readings["p50"], readings["p99"]
    assert p50.low is not None and p50.high is not None and 35 < p50.low < p50.value == 50 < p50.high < 66
    assert p99.high is not None and p99.high > 100  # the largest of a hundred steps is not the largest there is


def test_steps_that_resemble_each_other_leave_it_open() -> None:
    assert stepped(repeat=10)["p90"] == Reading(90.0, count=1000, more=stepped(repeat=10)["p50"].more)
    assert stepped(repeat=10)["p90"].more > 1000


def test_without_samples_a_percentile_has_no_interval() -> None:
    assert stepped(samples=False)["p50"] == Reading(50.5)
    assert set(stepped(count=99)) == {"p50", "p90", "p95"}
    assert set(stepped(count=1000)) == {"p50", "p90", "p95", "p99", "p99.9"}


def test_a_model_without_step_times_has_its_throughput_alone() -> None:
    (work,) = evidence([run_of([record(case(0, "train", "m", model="m"), [named("throughput", 5.0)])])], FREE)
    (point,) = work.points
    assert (point.readings, point.load, point.requests, point.unit) == ({}, None, None, "s")
    assert work.slos == []


@pytest.mark.parametrize(
    ("category", "is_served", "has_users"),
    [("training", False, False), ("inference", False, True), ("serving", True, True)],
)
def test_users_wait_for_inference_and_for_servers(category: str, is_served: bool, has_users: bool) -> None:
    measured = SERVED
    if not is_served:
        measured = record(case(0, "train", "m", model="m", category=category), [named("throughput", 5.0)])
    work = one(run_of([measured]))
    assert (work.is_served, work.has_users, len(work.slos)) == (is_served, has_users, int(is_served))


@pytest.mark.parametrize(
    ("about", "measurements", "outcome", "is_seen"),
    [
        (case(0, "train", "m", model="m"), [named("throughput", 5.0)], Outcome.OK, True),
        (case(0, "train", "m", case="m"), [named("throughput", 5.0)], Outcome.OK, True),
        (case(0, "gemm", "m", size=5), [named("throughput", 5.0)], Outcome.OK, False),
        (case(0, "train", "m", model="m"), [], Outcome.OK, False),
        (case(0, "train", "m", model="m"), [], Outcome.FAILED, True),
        (case(0, "gemm", "m", size=5), [], Outcome.FAILED, False),
    ],
)
def test_cases_of_models_that_ended_are_evidence(
    about: Case, measurements: list[Measurement], outcome: Outcome, is_seen: bool
) -> None:
    source = run_of([record(about, measurements, outcome=outcome)])
    assert bool(evidence([source], FREE)) is is_seen
    assert bool(evidence([source], FREE, text="TRAIN M")) is is_seen
    assert evidence([source], FREE, text="train n") == []


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_nothing_rests_on_a_throughput_of_nothing(value: float) -> None:
    assert reason_of(loaded(named("throughput", value))) == "it has no throughput"
    model = record(case(0, "train", "m", model="m"), [named("throughput", value)])
    assert reason_of(model) == "it has no throughput"


def test_a_small_throughput_is_one() -> None:
    (point,) = points_of(loaded(named("throughput", 0.5)))
    assert point.throughput.value == 0.5


def test_why_a_case_is_left_out_is_told() -> None:
    assert reason_of(loaded(outcome=Outcome.TIMEOUT, cause=None)) == "timeout: no cause was recorded"
    figures = named("throughput", 5.0)
    lost = loaded(figures, warnings=[warning("short"), warning("sockets"), warning("unsent")])
    assert reason_of(lost) == "sockets: it is sockets"
    assert "all its requests come at once" in reason_of(loaded(figures, load={"loop": "burst"}))
    assert "wait for their answers" in reason_of(loaded(figures, load={"loop": "closed"}))
    assert len(points_of(loaded(figures, warnings=[warning("short")]))) == 1
    model = record(case(0, "train", "m", model="m"), [figures], warnings=[warning("sockets")])
    assert [point.warnings for point in points_of(model)] == [("sockets",)]  # nobody sent it anything


def test_a_price_or_why_there_is_none() -> None:
    figures = loaded(named("throughput", 5.0))
    (free,) = points_of(figures)
    assert free.price is None
    assert "is not known: state it with --price" in free.no_price
    (paid,) = points_of(figures, Prices({}, (StatedPrice("", 2.5, "as you said"),)))
    assert (paid.price, paid.no_price) == (HourlyPrice(2.5, "as you said"), "")
    assert paid.runs == (figures.run_id,)


def load_point(value: float, load: float | None = 50.0, **more: Any) -> MeasuredLoad:
    return MeasuredLoad(SETUP, Reading(value, value - 1.0, value + 2.0), more.pop("readings", {}), load=load, **more)


def test_readings_of_the_same_thing_are_their_mean_and_all_that_any_allows() -> None:
    assert hull([Reading(2.0, 1.0, 5.0), Reading(4.0, 2.0, 4.5)]) == Reading(3.0, 1.0, 5.0)
    assert hull([Reading(2.0, 1.0, None), Reading(4.0, None, 4.5)]) == Reading(3.0)
    assert hull([Reading(2.0, 1.0, 3.0)]) == Reading(2.0, 1.0, 3.0)
    limits = [Reading(2.0, None, 2.0, is_limit=True), Reading(2.0, None, 3.0, is_limit=True)]
    assert hull(limits) == Reading(2.0, None, 3.0, is_limit=True)


def test_a_point_alone_stays_as_it_is_and_several_are_pooled() -> None:
    alone = load_point(10.0)
    assert pooled([alone])[0] is alone
    first = load_point(
        10.0, readings={"p50": Reading(1.0), "p99": Reading(2.0)}, warnings=("a", "b"), runs=("x",), requests=5
    )
    energy = Derived(Reading(3.0, 2.0, 4.0), ("counter",))
    second = load_point(
        20.0, readings={"p99": Reading(4.0)}, warnings=("b", "c"), runs=("y", "x"), energy=energy, requests=None
    )
    (both,) = pooled([first, second])
    assert both.throughput == Reading(15.0, 9.0, 22.0)
    assert both.readings == {"p99": Reading(3.0)}
    assert both.energy == energy
    assert (both.warnings, both.runs, both.requests) == (("a", "b", "c"), ("x", "y"), 5)
    (uncounted,) = pooled([load_point(10.0), load_point(20.0)])
    assert (uncounted.requests, uncounted.energy) == (None, None)
    (counted,) = pooled([load_point(10.0, requests=5), load_point(20.0, requests=6)])
    assert counted.requests == 11


def test_three_repeats_show_how_far_they_scatter_and_more_narrow_it() -> None:
    def repeated(*values: float) -> Reading:
        points = [
            load_point(10.0, readings={"p99": Reading(value)}, runs=(f"r{place}",))
            for place, value in enumerate(values)
        ]
        (both,) = pooled(points)
        return both.readings["p99"]

    assert repeated(1.0, 1.1) == Reading(1.05)  # two do not
    three, six = repeated(1.0, 1.1, 1.21), repeated(1.0, 1.1, 1.21, 1.0, 1.1, 1.21)
    assert three.value == pytest.approx(1.1) == six.value
    reach = 4.3027 * math.log(1.1) / math.sqrt(3)  # Student's t with two degrees of freedom
    assert (three.low, three.high) == (
        pytest.approx(1.1 * math.exp(-reach), rel=1e-3),
        pytest.approx(1.1 * math.exp(reach), rel=1e-3),
    )
    assert six.low is not None and three.low is not None and six.low > three.low


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (load_point(20.0), True),
        (load_point(20.0, 50.0000002), True),
        (load_point(20.0, 50.00001), False),
        (load_point(20.0, None), False),
        (load_point(20.0, unit="tokens/s"), False),
        (load_point(20.0, is_capacity=True), False),
        (load_point(20.0, price=HourlyPrice(1.0, "stated")), False),
        (load_point(20.0, readings={"p99": Reading(7.0)}), True),
        (load_point(20.0, readings={"p99": Reading(7.0, is_limit=True)}), False),
        (replace(load_point(20.0), configuration=Configuration("other", {"machine": "m"})), False),
    ],
)
def test_points_of_the_same_load_and_limits_are_one(other: MeasuredLoad, is_same: bool) -> None:
    assert len(pooled([load_point(10.0, readings={"p99": Reading(1.0)}), other])) == (1 if is_same else 2)


def test_points_without_a_load_are_one_if_their_limits_are_the_same() -> None:
    def promised(limit: float) -> MeasuredLoad:
        return load_point(10.0, None, readings={"p99": Reading(limit, is_limit=True)})

    assert [point.readings["p99"].value for point in pooled([promised(1.0), promised(2.0), promised(1.0)])] == [
        1.0,
        2.0,
    ]
