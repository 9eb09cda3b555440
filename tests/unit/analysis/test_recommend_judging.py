"""Whether one load surely meets what is asked, may, or does not; and what it costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.analysis.cost import Budget
from paceline.analysis.recommend.choice import (
    COST_HOUR,
    COST_THOUSAND,
    WHOLE,
    Miss,
    OptionStanding,
    judge,
    per_hour,
    per_thousand,
    replicas,
    surely_from,
)
from paceline.analysis.recommend.evidence import MeasuredLoad, Question, SloLimit
from paceline.analysis.summary import Reading
from support.recommend_points import answered, asked, point


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
    assert [one.label for one in found.ranking.options] == ["within", "beyond"]
    assert [one.standing for one in found.uncertain] == [OptionStanding.UNCERTAIN, OptionStanding.DOUBTFUL]
    assert [one.label for one in found.ranking.rejected] == ["broken"]
    assert answered(points, strict=True).ranking.options == ()


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
