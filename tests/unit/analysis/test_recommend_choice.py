"""Which configuration is taken, why, and what would change that."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from paceline.analysis.configuration import Configuration
from paceline.analysis.cost import Budget, Derived, HourlyPrice, Prices
from paceline.analysis.figures import Reading
from paceline.analysis.recommend.choice import (
    COST_HOUR,
    COST_THOUSAND,
    WHOLE,
    Miss,
    OptionStanding,
    Recommendation,
    judge,
    option_of,
    per_hour,
    per_thousand,
    rank,
    recommend,
    relation,
    replicas,
    score,
    surely_from,
    with_users,
)
from paceline.analysis.recommend.evidence import Evidence, LeftOut, MeasuredLoad, evidence
from paceline.analysis.recommend.question import Question, SloLimit, bounds_of, read_bounds
from support.records import literal_run, sample_run
from support.refused import refused
from support.serving_records import capacity_run, rates_run


def point(name: str, load: float, rate: float, p99: float, high: float | None = None, **more: Any) -> MeasuredLoad:
    """A load of a configuration; p99 in milliseconds."""
    price = more.pop("price", None)
    errors = more.pop("errors", 0.0)
    return MeasuredLoad(
        configuration=Configuration("serve m", {"machine": name, "target": "cpu"}),
        throughput=Reading(rate, 0.98 * rate, 1.02 * rate),
        readings={
            "p99": Reading(p99 / 1000, 0.95 * p99 / 1000, (high or 1.05 * p99) / 1000),
            "error_rate": Reading(errors, max(0.0, errors - 0.002), errors + 0.002),
        },
        load=load,
        price=HourlyPrice(price, "stated") if price else None,
        no_price="" if price else "its price is not known",
        **more,
    )


def answered(points: list[MeasuredLoad], *slo: str, **more: Any) -> Recommendation:
    question = Question(bounds=read_bounds(slo or ("p99=50ms",)), **more)
    return recommend(Evidence("serve m", True, points=points), question)


def names(found: Recommendation) -> list[str]:
    return [option.label for option in found.ranking.options]


def test_the_fastest_that_keeps_the_promise_is_taken() -> None:
    found = answered([point("a", 100, 100, 20), point("a", 200, 200, 70), point("b", 150, 150, 40)])
    assert names(found) == ["b", "a"]
    assert found.best is not None and found.best.point.load == 150


def test_what_may_break_the_promise_comes_after_what_surely_keeps_it() -> None:
    points = [point("quick", 300, 300, 45, high=60), point("slow", 100, 100, 20)]
    found = answered(points)
    assert names(found) == ["slow", "quick"]
    assert [option.standing for option in found.ranking.options] == [OptionStanding.SURE, OptionStanding.UNCERTAIN]
    assert found.changes.unsure is not None and found.changes.unsure.label == "quick"
    assert names(answered(points, strict=True)) == ["slow"]


def test_a_lighter_load_that_broke_the_promise_makes_a_heavier_one_unsure() -> None:
    found = answered([point("a", 100, 100, 80), point("a", 200, 200, 20)])
    (option,) = found.ranking.options
    assert option.standing is OptionStanding.UNCERTAIN
    assert option.misses[0].lighter == 100


def test_too_many_failures_break_the_promise() -> None:
    points = [point("a", 100, 100, 20, errors=0.05), point("b", 50, 50, 20)]
    assert names(answered(points)) == ["b"]
    assert names(answered(points, "p99=50ms", "error_rate=10%")) == ["a", "b"]
    strict = answered(points, "p99=50ms", "error_rate=0.1%")
    assert [option.standing for option in strict.ranking.options] == [OptionStanding.UNCERTAIN]


def test_where_nothing_qualifies_the_nearest_is_named() -> None:
    found = answered([point("far", 100, 100, 400), point("near", 100, 90, 55), point("near", 200, 180, 300)])
    assert found.best is None
    nearest = found.ranking.rejected[0]
    assert (nearest.label, nearest.point.load) == ("near", 100)
    assert nearest.misses[0].excess == pytest.approx(1.1)
    (flip,) = found.changes.looser
    assert (flip.label, flip.limit) == ("near", pytest.approx(0.95 * 0.055))  # from there on it may meet it


def test_the_cheapest_need_not_be_the_fastest() -> None:
    points = [point("dear", 400, 400, 20, price=4.0), point("cheap", 150, 150, 20, price=1.0)]
    found = answered(points, by="cost")
    assert names(found) == ["cheap", "dear"]
    assert found.best is not None and found.best.per_thousand is not None
    assert found.best.per_thousand.value == pytest.approx(1000 / 3600 / 150)
    rival = found.changes.rival
    assert rival is not None and rival.price is not None and rival.throughput is not None
    cheaper = [point("dear", 400, 400, 20, price=0.999 * rival.price), points[1]]
    assert names(answered(cheaper, by="cost"))[0] == "dear"
    faster = [point("dear", 400, 1.001 * rival.throughput, 20, price=4.0), points[1]]
    assert names(answered(faster, by="cost"))[0] == "dear"


def test_one_machine_has_one_price() -> None:
    machine = {"machine": "M", "target": "cpu"}
    points = [
        replace(one, configuration=Configuration("serve m", machine | {"engine": one.configuration.machine}))
        for one in (point("a", 200, 200, 20, price=1.0), point("b", 100, 100, 20, price=1.0))
    ]
    rival = answered(points, by="cost").changes.rival
    assert rival is not None and rival.price is None
    assert rival.throughput == pytest.approx(200.0)


def test_without_a_price_there_is_no_cost() -> None:
    found = answered([point("a", 100, 100, 20), point("b", 50, 50, 20, price=1.0)], by="cost")
    assert names(found) == ["b"]
    assert found.ranking.rejected[0].score is None


def test_a_rate_needs_whole_replicas() -> None:
    points = [point("big", 400, 400, 20, price=4.0), point("small", 150, 150, 20, price=1.0)]
    found = answered(points, by="cost", rate=420.0)
    assert [(option.label, option.replicas) for option in found.ranking.options] == [("small", 3), ("big", 2)]
    assert found.best is not None and found.best.per_hour is not None
    assert found.best.per_hour.value == 3.0
    assert answered(points, rate=400.0).ranking.options[0].replicas == 1
    most = answered(points, rate=400.0).ranking.options[0].most_replicas
    assert most == 2  # at the low end of its interval one is not enough


def test_a_rival_may_need_fewer_replicas_to_win() -> None:
    points = [point("big", 400, 400, 20, price=4.0), point("small", 150, 150, 20, price=1.5)]
    rival = answered(points, by="cost", rate=420.0).changes.rival
    assert rival is not None and rival.option.label == "big"
    assert rival.throughput == pytest.approx(420.0)  # one replica instead of two


def test_a_budget_is_a_bound() -> None:
    points = [point("big", 400, 400, 20, price=4.0), point("small", 150, 150, 20, price=1.0), point("free", 9, 9, 20)]
    found = answered(points, budget=Budget(3.0, "hour"))
    assert names(found) == ["small"]
    assert {option.label for option in found.ranking.rejected} == {"big", "free"}
    assert names(answered(points, rate=420.0, budget=Budget(3.0, "hour"))) == ["small"]
    assert names(answered(points, budget=Budget(0.001, "thousand"))) == []


def test_energy_ranks_where_it_was_counted() -> None:
    counted = Derived(Reading(0.5), ("energy_per_request",))
    found = answered([point("a", 9, 9, 20, energy=counted), point("b", 90, 90, 20)], by="energy")
    assert names(found) == ["a"]


def test_two_within_their_warning_cannot_be_told_apart() -> None:
    found = answered([point("a", 100, 100, 20), point("b", 99, 99, 20), point("c", 50, 50, 20)])
    assert found.changes.tied == ("b",)
    assert found.changes.rival is not None and found.changes.rival.relation == "tied"


def test_what_was_not_asked_for_more_says_so() -> None:
    best = answered([point("a", 100, 100, 20), point("a", 200, 200, 30)]).best
    assert best is not None and best.is_heaviest
    best = answered([point("a", 100, 100, 20), point("a", 200, 200, 90)]).best
    assert best is not None and not best.is_heaviest


def test_another_bound_may_flip_the_choice() -> None:
    found = answered([point("a", 200, 200, 40, high=42), point("b", 100, 100, 20), point("c", 400, 400, 80, high=85)])
    (tighter,), (looser,) = found.changes.tighter, found.changes.looser
    assert (tighter.label, tighter.limit) == ("b", pytest.approx(0.042))
    assert (looser.label, looser.limit, looser.standing) == ("c", pytest.approx(0.085), OptionStanding.SURE)


def test_a_searched_rate_keeps_its_own_promise_and_no_tighter_one() -> None:
    (found,) = evidence([capacity_run()], Prices({}))
    own = recommend(found, Question())
    assert own.question.origin and own.question.percentile == "p99"
    assert own.best is not None and own.best.point.is_capacity
    assert own.best.point.throughput.value == 468.0
    tighter = recommend(found, Question(bounds=read_bounds(["p99=30ms"])))
    assert tighter.best is not None and not tighter.best.point.is_capacity


def test_served_cases_that_promise_nothing_need_a_promise() -> None:
    with refused("missing-slo", key="--slo"):
        recommend(Evidence("serve m", True, points=[point("a", 1, 1, 1)], slos=[{}]), Question(bounds=read_bounds(())))


def test_training_is_ranked_by_throughput_or_cost() -> None:
    (found,) = evidence([literal_run()], Prices({}))
    assert [option.label for option in recommend(found, Question(bounds=read_bounds(()))).ranking.options] == [
        "fp16",
        "fp32",
    ]
    works = {one.work: one for one in evidence([sample_run()], Prices({}))}
    energy = recommend(works["train resnet50"], Question(by="energy", bounds=read_bounds(())))
    assert energy.best is not None and energy.best.label == "bf16"


def test_a_promise_is_about_work_that_users_wait_for() -> None:
    every = evidence([sample_run()], Prices({}))
    asked = Question(bounds=read_bounds(["p90=10ms"]))
    assert {one.work.split()[0] for one in with_users(every, asked)} == {"inference"}
    assert with_users(every, Question(bounds=read_bounds(()))) == every
    with refused("slo-for-training", key="--slo"):
        with_users([one for one in every if one.work.startswith("train")], asked)


def test_cases_of_which_all_failed_promise_nothing_that_could_be_missing() -> None:
    assert recommend(Evidence("serve m", True), Question(bounds=read_bounds(()))).best is None


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("p98=1s", "unknown-metric", "p98"),
        ("p99", "missing-bound", "p99"),
        ("p99=fast", "not-a-bound", "fast"),
        ("p99=0s", "out-of-range", "0s"),
        ("p50=2s,p99=1s", "conflicting-bounds", "p99"),
        ("p99=1s,p99=2s", "duplicate-key", "p99"),
        ("error_rate=-1%", "not-a-bound", "-1%"),
    ],
)
def test_what_is_no_promise_is_refused(text: str, code: str, value: str) -> None:
    with refused(code, key="--slo", value=value):
        read_bounds([text])


def test_promises_as_people_write_them() -> None:
    assert read_bounds(["p99=50ms", "errors=0.1%"]) == bounds_of({"p99": 0.05, "error_rate": 0.001})
    assert [bound.metric for bound in read_bounds(["p99_9=1s,p50=20ms"])] == ["p50", "p99.9", "error_rate"]


def test_many_points_are_ranked_in_one_go() -> None:
    points = [point(f"c{i}", load, load, 10 + load / 10) for i in range(40) for load in range(10, 260, 10)]
    assert len(rank(points, Question(bounds=read_bounds(["p99=30ms"]))).options) == 40
    (served,) = evidence([rates_run()], Prices({}))
    assert rank(served.points, Question(bounds=read_bounds(["p99=50ms"]))).best is not None


def asked(*slo: str, **more: Any) -> Question:
    return Question(bounds=read_bounds(slo), **more)


def standing(one: MeasuredLoad, question: Question, *others: MeasuredLoad) -> tuple[OptionStanding, tuple[Miss, ...]]:
    return judge(one, [one, *others], question)


@pytest.mark.parametrize(
    ("reading", "limit", "excess"),
    [(Reading(1.0), 0.5, 2.0), (Reading(1.0), 0.0, math.inf), (None, 0.5, math.inf)],
)
def test_a_miss_says_by_which_factor_it_misses(reading: Reading | None, limit: float, excess: float) -> None:
    assert Miss("p99", limit, reading, OptionStanding.BROKEN).excess == excess


@pytest.mark.parametrize(
    ("rate", "throughput", "count"),
    [
        (10.0, None, None),
        (10.0, 0.0, None),
        (10.0, -1.0, None),
        (10.0, 0.5, 20),
        (10.0, 10.0, 1),
        (10.0, 40.0, 1),
        (1.1, 0.1, 11),  # but for floating point
        (10.01, 10.0, 2),
    ],
)
def test_replicas_are_whole_and_at_least_one(rate: float, throughput: float | None, count: int | None) -> None:
    assert replicas(rate, throughput) == count


def test_a_replica_has_its_price_and_a_rate_that_of_all_replicas() -> None:
    one = point("a", 100, 100, 20, price=2.0)
    assert per_hour(one, asked()) == Reading(2.0, 2.0, 2.0)
    assert per_hour(one, asked(rate=204.0)) == Reading(6.0, 4.0, 6.0)  # two suffice at its high end
    assert per_hour(one, asked(rate=200.0)) == Reading(4.0, 4.0, 6.0)
    assert per_hour(replace(one, throughput=Reading(100.0)), asked(rate=200.0)) == Reading(4.0, None, None)
    assert per_hour(replace(one, throughput=Reading(0.0)), asked(rate=200.0)) is None
    assert per_hour(replace(one, price=None), asked(rate=200.0)) is None


def test_a_thousand_of_a_rate_pays_for_idle_replicas_too() -> None:
    one = point("a", 100, 100, 20, price=2.0)
    fleet = per_thousand(one, asked(rate=204.0))
    assert fleet is not None and fleet.value == pytest.approx(6.0 * 1000 / (204 * 3600))
    alone = per_thousand(one, asked())
    assert alone is not None and alone.value == pytest.approx(2.0 * 1000 / (100 * 3600))
    assert per_thousand(replace(one, throughput=Reading(0.0)), asked(rate=204.0)) is None
    assert per_thousand(replace(one, price=None), asked()) is None


@pytest.mark.parametrize(
    ("p99", "high", "expected"),
    [
        (50.0, 50.0, OptionStanding.SURE),
        (50.0, 50.1, OptionStanding.UNCERTAIN),
        (50.1, 50.2, OptionStanding.DOUBTFUL),  # from 47.6 ms on
        (52.6, 55.0, OptionStanding.DOUBTFUL),
        (52.7, 55.0, OptionStanding.BROKEN),
    ],
)
def test_a_bound_may_be_reached_but_not_passed(p99: float, high: float, expected: OptionStanding) -> None:
    assert standing(point("a", 100, 100, p99, high=high), asked("p99=50ms"))[0] is expected


def test_without_an_upper_end_a_bound_is_not_surely_met() -> None:
    one = point("a", 100, 100, 20)
    open_ended = replace(one, readings={**one.readings, "p99": Reading(0.02, 0.01, None)})
    assert standing(open_ended, asked("p99=50ms"))[0] is OptionStanding.UNCERTAIN


def test_errors_are_judged_with_their_uncertainty_only_where_a_bound_was_given() -> None:
    one = point("a", 100, 100, 20, errors=0.009)
    assert standing(one, asked("p99=50ms"))[0] is OptionStanding.SURE
    assert standing(one, asked("p99=50ms", "error_rate=1%"))[0] is OptionStanding.UNCERTAIN


def test_what_was_not_measured_meets_no_bound() -> None:
    one = replace(point("a", 100, 100, 20), readings={})
    found, (miss,) = standing(one, asked("p99=50ms"))
    why = "it was not measured"
    assert (found, miss.metric, miss.reading, miss.why) == (OptionStanding.BROKEN, "p99", None, why)
    assert surely_from(one, [], SloLimit("p99", 0.05)) == math.inf


def test_a_percentile_that_takes_more_requests_is_open() -> None:
    one = point("a", 100, 100, 20, requests=380)
    found, (miss,) = standing(replace(one, readings={}), asked("p99=50ms"))
    assert (found, miss.reading) == (OptionStanding.DOUBTFUL, None)
    assert miss.undecided == "not decidable yet: 120 more requests"
    # A lower percentile that is late already leaves nothing open.
    late = replace(one, readings={"p95": Reading(0.06)})
    found, (miss,) = standing(late, asked("p99=50ms"))
    assert (found, miss.metric, miss.excess) == (OptionStanding.BROKEN, "p95", pytest.approx(1.2))


@pytest.mark.parametrize(
    ("metric", "readings", "expected"),
    [
        ("p99", {"p99": Reading(0.09)}, OptionStanding.DOUBTFUL),
        ("p99", {"p99": Reading(0.09), "p95": Reading(0.06)}, OptionStanding.BROKEN),  # five times too many
        ("p95", {"p95": Reading(0.09), "p90": Reading(0.06)}, OptionStanding.BROKEN),  # twice too many
        ("p90", {"p90": Reading(0.09), "p50": Reading(0.04)}, OptionStanding.DOUBTFUL),
        ("p99", {"p99": Reading(0.09), "p95": Reading(0.06, 0.04, 0.08)}, OptionStanding.DOUBTFUL),
        ("p99", {"p99": Reading(0.09), "p95": Reading(0.06, 0.051, 0.08)}, OptionStanding.BROKEN),
        ("p99", {"p99": Reading(0.09, 0.051, None)}, OptionStanding.BROKEN),
        ("p99", {"p99": Reading(0.09, 0.05, None)}, OptionStanding.DOUBTFUL),
    ],
)
def test_without_an_interval_only_what_is_far_beyond_a_bound_breaks_it(
    metric: str, readings: dict[str, Reading], expected: OptionStanding
) -> None:
    one = replace(point("a", 100, 100, 20, requests=600), readings=readings)
    assert standing(one, asked(f"{metric}=50ms"))[0] is expected


@pytest.mark.parametrize(
    ("reading", "limit", "undecided"),
    [
        (Reading(0.04, 0.03, 0.06, count=1000), "p99=50ms", "not decidable yet: 3,000 more requests"),
        (Reading(0.06, 0.04, 0.07, count=1000), "p99=50ms", "not decidable yet: 3,000 more requests"),
        (Reading(0.04, count=600, more=1400), "p99=50ms", "not decidable yet: 1,400 more requests"),
        (Reading(0.06, count=600, more=1400), "p99=50ms", "not decidable yet: 1,400 more requests"),
        (Reading(0.04), "p99=50ms", "not decidable yet: measure it again with --repeat 5"),
        (Reading(0.04, 0.03, 0.06), "p99=50ms", "not decidable yet: measure it again with --repeat 5"),
        (
            Reading(0.05, None, None, is_limit=True),
            "p99=50ms",
            "not decidable yet: search again with a larger --search-budget",
        ),
    ],
)
def test_what_would_decide_a_percentile_is_said(reading: Reading, limit: str, undecided: str) -> None:
    one = replace(point("a", 100, 100, 20, requests=1000), readings={"p99": reading})
    found, (miss,) = standing(one, asked(limit))
    assert found.is_open
    assert miss.undecided == undecided


def test_what_would_decide_an_error_rate_is_said() -> None:
    one = point("a", 100, 100, 20, requests=1000)
    few = replace(one, readings={**one.readings, "error_rate": Reading(0.012, 0.008, 0.02, count=1000)})
    found, (miss,) = standing(few, asked("p99=50ms", "error_rate=1%"))
    assert (found, miss.undecided) == (OptionStanding.DOUBTFUL, "not decidable yet: 3,000 more requests")
    assert standing(few, asked("p99=50ms"))[0] is OptionStanding.DOUBTFUL
    none = replace(one, readings={**one.readings, "error_rate": Reading(0.0, 0.0, 0.004, count=1000)})
    found, (miss,) = standing(none, asked("p99=50ms", "error_rate=0%"))
    assert (found, miss.undecided) == (
        OptionStanding.UNCERTAIN,
        "not decidable yet: no count shows that it never happens",
    )


def test_what_is_within_a_bound_comes_before_what_is_beyond_it_and_may_be_within() -> None:
    points = [point("beyond", 300, 300, 52), point("within", 200, 200, 49), point("broken", 400, 400, 80)]
    found = answered(points)
    assert names(found) == ["within", "beyond"]
    assert [one.standing for one in found.uncertain] == [OptionStanding.UNCERTAIN, OptionStanding.DOUBTFUL]
    assert [one.label for one in found.ranking.rejected] == ["broken"]
    assert names(answered(points, strict=True)) == []


def test_a_lighter_load_that_may_meet_a_bound_casts_no_doubt() -> None:
    one = point("a", 200, 200, 20)
    assert standing(one, asked("p99=50ms"), point("a", 100, 100, 52))[0] is OptionStanding.SURE
    found, (miss,) = standing(one, asked("p99=50ms"), point("a", 100, 100, 53))
    assert (found, miss.lighter, miss.undecided) == (
        OptionStanding.UNCERTAIN,
        100,
        "not decidable yet: measure 100/s and 200/s again",
    )


def test_the_lightest_load_that_broke_a_bound_is_named() -> None:
    group = [
        point("a", 50, 50, 20),
        point("a", 60, 60, 50),  # at the bound
        point("a", 100, 100, 80),
        point("a", 150, 150, 90),
        point("a", 300, 300, 95),
    ]
    _, (miss,) = standing(point("a", 200, 200, 20), asked("p99=50ms"), *group)
    assert miss.lighter == 100


def test_neither_an_equal_load_nor_one_without_the_metric_nor_a_searched_rate_casts_doubt() -> None:
    one = point("a", 100, 100, 20)
    equal = point("a", 100, 90, 80)
    silent = replace(point("a", 50, 50, 80), readings={})
    searched = replace(point("a", 1, 300, 80), load=None, is_capacity=True)
    assert standing(one, asked("p99=50ms"), equal, silent, searched) == (OptionStanding.SURE, ())
    rate = replace(searched, readings=one.readings)
    assert standing(rate, asked("p99=50ms"), point("a", 50, 50, 80)) == (OptionStanding.SURE, ())


@pytest.mark.parametrize(
    ("price", "expected"),
    [
        (3.0 * (1 + WHOLE), OptionStanding.SURE),
        (3.0 * (1 + 3 * WHOLE), OptionStanding.BROKEN),
        (5.0, OptionStanding.BROKEN),
    ],
)
def test_a_budget_is_met_but_for_floating_point(price: float, expected: OptionStanding) -> None:
    assert standing(point("a", 100, 100, 20, price=price), asked(budget=Budget(3.0, "hour")))[0] is expected


def test_a_budget_is_passed_for_sure_only_by_the_whole_interval() -> None:
    budget = Budget(4.0, "hour")
    assert standing(point("a", 100, 100, 20, price=2.0), asked(rate=206.0, budget=budget))[0] is OptionStanding.BROKEN
    found, (miss,) = standing(point("a", 100, 100, 20, price=2.0), asked(rate=204.0, budget=budget))
    assert (found, miss.undecided) == (
        OptionStanding.DOUBTFUL,
        "not decidable yet: measure it again with --repeat 5",
    )


@pytest.mark.parametrize("low", [98.0, None])
def test_a_budget_that_only_the_value_keeps_is_not_surely_kept(low: float | None) -> None:
    one = replace(point("a", 100, 100, 20, price=2.0), throughput=Reading(100.0, low, 102.0))
    found, (miss,) = standing(one, asked(rate=200.0, budget=Budget(4.0, "hour")))
    assert (found, miss.metric) == (OptionStanding.UNCERTAIN, COST_HOUR)


def test_a_budget_names_what_it_bounds_and_why_a_cost_is_not_known() -> None:
    one = point("a", 100, 100, 20, price=2.0)
    of_thousand = 2.0 / 3600 / 100 * 1000
    _, (miss,) = standing(one, asked(budget=Budget(0.9 * of_thousand, "thousand")))
    assert (miss.metric, miss.excess) == (COST_THOUSAND, pytest.approx(1 / 0.9))
    assert standing(one, asked(budget=Budget(1.1 * of_thousand, "thousand")))[0] is OptionStanding.SURE
    _, (unknown,) = standing(point("a", 100, 100, 20), asked(budget=Budget(3.0, "hour")))
    assert (unknown.metric, unknown.reading, unknown.why) == (COST_HOUR, None, "its price is not known")


@pytest.mark.parametrize("first", [0, 1])
def test_of_equal_loads_of_a_configuration_the_lighter_is_taken(first: int) -> None:
    points = [point("a", 0.5, 100, 20), point("a", 0.2, 100, 20)]
    best = answered([points[first], points[1 - first]]).best
    assert best is not None and best.point.load == 0.2
    searched = replace(points[0], load=None, is_capacity=True)
    best = answered([*points, searched]).best
    assert best is not None and best.point.is_capacity


def test_the_nearest_is_that_whose_worst_miss_is_the_smallest() -> None:
    points = [point("one", 100, 100, 55, errors=0.05), point("both", 100, 100, 100, errors=0.02)]
    assert [option.label for option in answered(points).ranking.rejected] == ["both", "one"]
    unpriced = [point("a", 100, 100, 45, high=60), point("z", 100, 100, 20)]
    assert [option.label for option in answered(unpriced, by="cost").ranking.rejected] == ["z", "a"]
    priced = [point("a", 100, 100, 20), point("z", 100, 100, 400, price=1.0)]
    assert [option.label for option in answered(priced, by="cost").ranking.rejected] == ["z", "a"]


def test_a_search_has_tried_heavier_loads() -> None:
    light, heavy = point("a", 100, 100, 20), point("a", 200, 200, 20)
    searched = replace(heavy, load=None, is_capacity=True)
    options = [option_of(one, [light, heavy], asked(), "a") for one in (light, heavy)]
    assert [option.is_heaviest for option in options] == [False, True]
    options = [option_of(one, [light, heavy, searched], asked(), "a") for one in (heavy, searched)]
    assert [option.is_heaviest for option in options] == [False, False]
    assert options[0].replicas is None
    assert options[0].most_replicas is None


def test_latency_is_that_of_the_highest_percentile_that_is_bounded() -> None:
    one = point("a", 100, 100, 20)
    both = replace(one, readings={**one.readings, "p50": Reading(0.01)})
    assert score(both, asked("p50=1s", "p99=1s", by="latency")) == both.readings["p99"]
    assert score(both, asked("p50=1s", by="latency")) == Reading(0.01)
    assert score(both, asked(by="latency")) == both.readings["p99"]
    quick, slow = point("quick", 10, 10, 20), point("slow", 100, 100, 30)
    assert names(answered([slow, quick], by="latency")) == ["quick", "slow"]


def test_of_what_would_win_if_it_were_sure_the_best_is_named() -> None:
    sure = point("sure", 100, 100, 20)
    unsure = [point("a", 150, 150, 45, high=60), point("b", 200, 200, 45, high=60)]
    broken = point("broken", 900, 900, 400)
    found = answered([sure, *unsure, broken]).changes
    assert found.unsure is not None and found.unsure.label == "b"
    assert answered([sure, broken]).changes.unsure is None
    assert answered([sure, point("tied", 101, 101, 45, high=60)]).changes.unsure is None
    assert answered([sure, point("worse", 50, 50, 45, high=60)]).changes.unsure is None
    assert answered(unsure).changes.unsure is None


def test_what_is_not_sure_is_not_tied_with_what_is() -> None:
    found = answered([point("sure", 100, 100, 20), point("unsure", 99, 99, 45, high=60)])
    assert found.changes.tied == ()
    assert [option.label for option in found.sure] == ["sure"]
    assert [option.label for option in found.uncertain] == ["unsure"]


def test_without_intervals_nobody_can_tell_scores_apart() -> None:
    one, other = (option_of(made, [made], asked(), "a") for made in [point("a", 100, 100, 20)] * 2)
    bare = replace(other, score=Reading(50.0))
    assert relation(one, other) == "tied"
    assert relation(one, replace(other, score=Reading(50.0, 49.0, 51.0))) == "apart"
    assert relation(one, bare) == relation(one, replace(other, score=None)) == "unknown"
    assert relation(replace(one, score=None), other) == "unknown"


def test_a_rival_in_speed_needs_more_throughput_and_no_other_price() -> None:
    rival = answered([point("a", 100, 100, 20, price=1.0), point("b", 50, 50, 20, price=1.0)]).changes.rival
    assert rival is not None
    assert (rival.throughput, rival.price, rival.score) == (100.0, None, 100.0)
    points = [point("a", 100, 100, 20, price=1.0), point("b", 50, 50, 30, price=1.0)]
    rival = answered(points, by="latency").changes.rival
    assert rival is not None
    assert (rival.throughput, rival.price, rival.score) == (None, None, 0.02)
    assert answered(points[:1]).changes.rival is None


@pytest.mark.parametrize(
    ("price", "other", "throughput", "rival_price"),
    [
        (1.5, 1.0, 150.0, 0.75),  # 3 USD/h: two of the other would cost less
        (0.5, 4.0, None, 0.25),  # a single one of the other costs more
    ],
)
def test_a_rival_at_a_rate_wins_with_fewer_replicas_or_not_at_all(
    price: float, other: float, throughput: float | None, rival_price: float
) -> None:
    points = [point("best", 200, 150, 20, price=price), point("other", 80, 80, 20, price=other)]
    rival = answered(points, by="cost", rate=300.0).changes.rival
    assert rival is not None and rival.option.label == "other"
    assert rival.throughput == throughput
    assert rival.price == pytest.approx(rival_price)


def test_a_choice_at_the_edge_of_its_bound_flips_right_below_it() -> None:
    found = answered([point("a", 200, 200, 40, high=50), point("b", 100, 100, 20)])
    (tighter,) = found.changes.tighter
    assert (tighter.label, tighter.limit, tighter.standing) == ("b", 0.05, OptionStanding.SURE)
    assert found.changes.looser == ()


def test_no_bound_is_below_nothing() -> None:
    found = answered([point("a", 200, 200, 40)], "error_rate=1%", "p99=50ms")
    assert [(flip.metric, flip.label) for flip in found.changes.tighter] == [("p99", "")]
    assert found.changes.tighter[0].limit == pytest.approx(0.038)  # the lower end of its interval
    assert found.changes.tighter[0].standing is OptionStanding.BROKEN


def test_only_bounds_that_were_given_are_moved() -> None:
    points = [point("failing", 200, 200, 20, errors=0.05), point("b", 100, 100, 20)]
    assert answered(points).changes.looser == ()
    (looser,) = answered(points, "p99=50ms", "error_rate=1%").changes.looser
    assert (looser.metric, looser.label) == ("error_rate", "failing")
    assert looser.limit == pytest.approx(0.052)


def test_each_bound_is_moved_alone() -> None:
    points = [
        point("late", 200, 200, 80, high=85),
        point("failing", 300, 300, 20, errors=0.05),
        point("b", 100, 100, 20),
    ]
    flips = answered(points, "p99=50ms", "error_rate=1%").changes.looser
    assert [(flip.metric, flip.label, flip.limit) for flip in flips] == [
        ("p99", "late", pytest.approx(0.085)),
        ("error_rate", "failing", pytest.approx(0.052)),
    ]


@pytest.mark.parametrize(("rate", "is_tied"), [(101.0, True), (300.0, False)])
def test_a_flip_says_whether_it_would_matter(rate: float, is_tied: bool) -> None:
    (looser,) = answered([point("a", 100, 100, 20), point("b", 200, rate, 80)]).changes.looser
    assert (looser.label, looser.is_tied) == ("b", is_tied)


def test_where_nothing_qualifies_no_flip_is_tied() -> None:
    (looser,) = answered([point("a", 100, 100, 80)]).changes.looser
    assert (looser.label, looser.is_tied, looser.standing) == ("a", False, OptionStanding.DOUBTFUL)
    assert looser.limit == pytest.approx(0.076)
    (strict,) = answered([point("a", 100, 100, 80)], strict=True).changes.looser
    assert (strict.limit, strict.standing) == (pytest.approx(0.084), OptionStanding.SURE)


def test_loads_of_equal_throughput_are_no_obstacle_to_a_looser_bound() -> None:
    twice = [
        replace(point("b", load, 300, 80), throughput=Reading(300.0, 290.0 - load, 310.0)) for load in (100.0, 200.0)
    ]
    (looser,) = answered([point("a", 100, 100, 20), *twice]).changes.looser
    assert looser.label == "b"


def test_an_answer_counts_in_the_unit_of_its_points() -> None:
    images = replace(point("a", 100, 100, 20), unit="images/s")
    found = answered([images])
    assert (found.unit, found.work_unit) == ("images/s", "images")
    nothing = recommend(Evidence("serve m", True), asked("p99=50ms"))
    assert (nothing.unit, nothing.work_unit) == ("", "samples")


def test_what_was_left_out_has_a_name_of_its_own() -> None:
    left = LeftOut(point("b", 1, 1, 1).configuration, "serve m", "failed: it ended")
    found = recommend(Evidence("serve m", True, points=[point("a", 1, 1, 1)], left_out=[left]), asked("p99=50ms"))
    assert [(one.label, one.reason) for one in found.left_out] == [("b", "failed: it ended")]


def test_the_runs_own_promise_counts_where_none_is_given() -> None:
    points = [point("a", 100, 100, 20)]
    slos = [{"p99": 0.05, "error_rate": 0.01}, {"p99": 0.05, "error_rate": 0.02}]
    found = recommend(Evidence("serve m", True, points=points, slos=slos), asked()).question
    assert found.bounds == (SloLimit("p99", 0.05), SloLimit("error_rate", 0.01, is_explicit=False))
    assert found.origin == "as in the run's own SLO"
    stricter = recommend(Evidence("serve m", True, points=points, slos=slos), asked("error_rate=0.1%")).question
    assert stricter.bounds == (SloLimit("p99", 0.05), SloLimit("error_rate", 0.001))
    given = recommend(Evidence("serve m", True, points=points, slos=slos), asked("p50=1s")).question
    assert (given.origin, given.percentile) == ("", "p50")
    with refused("different-slos", key="--slo"):
        recommend(Evidence("serve m", True, points=points, slos=[{"p99": 0.05}, {"p99": 0.1}]), asked())
    with refused("missing-slo", key="--slo"):
        recommend(Evidence("serve m", True, points=points), asked())


def test_steps_of_a_model_have_no_requests_that_fail() -> None:
    found = recommend(Evidence("train m", False, points=[point("a", 100, 100, 20)]), asked("p99=50ms")).question
    assert found.bounds == (SloLimit("p99", 0.05),)


def test_without_any_work_a_promise_is_about_nothing() -> None:
    assert with_users([], asked("p99=50ms")) == []


def test_equal_bounds_and_bounds_of_whole_seconds_are_allowed() -> None:
    assert [bound.limit for bound in read_bounds(["p50=20ms,p99=20ms"])] == [0.02, 0.02, 0.01]
    assert [bound.limit for bound in read_bounds(["p99=0.5s"])] == [0.5, 0.01]
    assert [bound.limit for bound in read_bounds(["errors=0%"])] == [0.0]
    with refused("missing-bound", key="--slo", value="p99="):
        read_bounds(["p99="])


def test_bounds_on_tokens_are_known() -> None:
    def timed(name: str, load: float, first: float) -> MeasuredLoad:
        one = point(name, load, load, 20)
        return replace(one, readings={**one.readings, "first_token_p99": Reading(first, 0.9 * first, 1.1 * first)})

    points = [timed("a", 100, 0.1), timed("a", 200, 0.4), timed("b", 150, 0.15)]
    assert names(answered(points, "first_token=200ms")) == ["b", "a"]
    assert names(answered(points, "ttft=120ms")) == ["a"]
    assert [bound.metric for bound in read_bounds(["first_token=1s,between_tokens_p50=20ms"])] == [
        "first_token_p99",
        "between_tokens_p50",
        "error_rate",
    ]
    unmeasured = answered([point("a", 100, 100, 20)], "first_token=1s")
    assert unmeasured.best is None
