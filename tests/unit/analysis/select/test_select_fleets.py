"""A slice of `python -m bench selector`: the same fleets and policies, fewer of them."""

from __future__ import annotations

import pytest
from bench.fleets import FLEETS
from bench.selector import run_fleet

from paceline.analysis.simulation import FIXED, NONE, RANDOM, SELECTOR, WHOLE, FleetPlan

PLAN = FleetPlan(learning=16, checks=6)


@pytest.mark.parametrize("name", FLEETS)
def test_the_selector_finds_more_than_subsets_in_the_same_minutes(name: str) -> None:
    study = run_fleet(name, range(2), PLAN, nodes=120)
    found = {policy: part.value for policy in study.outcomes if (part := study.found(policy))}
    spent = {policy: study.estimate(policy, "spent").value for policy in study.outcomes}
    assert found[WHOLE] == 1.0 and found[NONE] == 0.0
    assert found[SELECTOR] > found[FIXED] > found[RANDOM]
    assert found[SELECTOR] > 0.75
    assert spent[SELECTOR] <= PLAN.budget + 1e-9
    assert 0.9 < spent[WHOLE] < 1.0, "its checks end early"
    incidents = {policy: study.estimate(policy, "incidents").value for policy in study.outcomes}
    assert incidents[SELECTOR] < incidents[RANDOM] < incidents[NONE]


def test_the_same_seed_gives_the_same_fleet() -> None:
    one, again = (run_fleet("racks", range(1), FleetPlan(learning=2, checks=2), nodes=40).outcomes for _ in range(2))
    for policy in (WHOLE, RANDOM, SELECTOR):
        first, second = one[policy][0], again[policy][0]
        assert (first.incidents, first.found, first.minutes) == (second.incidents, second.found, second.minutes)
