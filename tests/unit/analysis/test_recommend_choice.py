"""Which configuration is taken, why, and what would change that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.analysis.configuration import Configuration
from paceline.analysis.cost import Budget, Derived, HourlyPrice, Prices
from paceline.analysis.figures import Reading
from paceline.analysis.recommend.choice import OptionStanding, Recommendation, rank, recommend, with_users
from paceline.analysis.recommend.evidence import Evidence, MeasuredLoad, evidence
from paceline.analysis.recommend.question import Question, bounds_of, read_bounds
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
            "error_rate": Reading(errors, 0.0, errors + 0.002),
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
    assert (flip.label, flip.limit) == ("near", pytest.approx(0.055))


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
    counted = Derived(Reading(0.5), "J", ("energy_per_request",))
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
