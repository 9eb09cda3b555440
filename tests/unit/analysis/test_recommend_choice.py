"""Which configuration is taken, why, and what would change that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.analysis.configuration import Configuration
from paceline.analysis.cost import Budget, Derived, Prices
from paceline.analysis.recommend.choice import (
    OptionStanding,
    Recommendation,
    option_of,
    rank,
    recommend,
    relation,
    score,
    with_users,
)
from paceline.analysis.recommend.evidence import (
    Evidence,
    LeftOut,
    MeasuredLoad,
    Question,
    SloLimit,
    bounds_of,
    evidence,
    read_bounds,
)
from paceline.analysis.summary import Reading
from support.recommend_points import answered, asked, point
from support.records import literal_run, sample_run
from support.refused import refused
from support.serving_records import capacity_run, rates_run


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
