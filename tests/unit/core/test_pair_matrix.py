"""Slow links, adapters and nodes planted in fleets whose noise is known: all are named, and nothing else."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from paceline.core.pair_matrix import PairVerdict, Slow, judge_pairs


def fleet(
    random: np.random.Generator, hosts: int, adapters: int = 1, noise: float = 0.03, **slow: float
) -> PairVerdict | None:
    """What is said of a fleet in which these are slow: `n3`, `n3:1`, or a link `n1 - n2`."""
    ends = [f"n{host}:{one}" if adapters > 1 else f"n{host}" for host in range(hosts) for one in range(adapters)]
    node_of = {end: end.partition(":")[0] for end in ends}
    speeds = {}
    for a, b in combinations(ends, 2):
        if node_of[a] != node_of[b]:
            names = (a, b, node_of[a], node_of[b], f"{a} - {b}", f"{b} - {a}")
            speeds[a, b] = 1e10 * min(slow.get(name, 1.0) for name in names) * np.exp(noise * random.standard_normal())
    return judge_pairs(speeds, node_of)


def named(verdict: PairVerdict | None) -> set[tuple[str, str]]:
    assert verdict is not None
    return {(one.kind, " - ".join(sorted(one.name.split(" - ")))) for one in verdict.slow}


@pytest.mark.parametrize("seed", range(20))
def test_slow_nodes_and_links_of_64_hosts_are_all_found_and_nothing_else_is(seed: int) -> None:
    slow = {"n7": 0.7, "n40": 0.5, "n1 - n2": 0.7, "n3 - n50": 0.75, "n60 - n61": 0.5, "n7 - n9": 0.4}
    verdict = fleet(np.random.default_rng(seed), 64, **slow)
    expected = {("node", name) for name in ("n7", "n40")}
    expected |= {("link", name) for name in ("n1 - n2", "n3 - n50", "n60 - n61", "n7 - n9")}
    assert named(verdict) == expected


@pytest.mark.parametrize("seed", range(10))
def test_an_adapter_is_told_from_its_node(seed: int) -> None:
    slow = {"n3": 0.8, "n5:2": 0.7, "n1:0 - n2:1": 0.7}
    verdict = fleet(np.random.default_rng(seed), 16, adapters=4, **slow)
    assert named(verdict) == {("node", "n3"), ("adapter", "n5:2"), ("link", "n1:0 - n2:1")}


def test_where_all_is_well_something_is_named_in_one_of_a_hundred_fleets_at_most() -> None:
    random = np.random.default_rng(11)
    fleets = [fleet(random, int(random.integers(4, 40)), noise=random.uniform(0.005, 0.1)) for _ in range(300)]
    wrong = sum(bool(named(one)) for one in fleets)
    assert wrong <= 9, "the chance of ten of 300 at 1 % is 0.1 %"


def test_the_loss_is_within_its_interval_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    inside = 0
    for _ in range(200):
        verdict = fleet(random, 24, n3=0.7)
        assert verdict is not None
        (one,) = [one for one in verdict.slow if one.name == "n3"]
        inside += one.low <= 0.3 <= one.high
    assert inside >= 180, "190 are expected; fewer than 180 have a chance of 0.1 %"


def test_losses_of_the_size_that_counts_as_seen_are_found() -> None:
    random = np.random.default_rng(9)
    verdict = fleet(random, 32)
    assert verdict is not None
    slow = 1.0 - verdict.seen_link
    found = sum(("link", "n4 - n5") in named(fleet(random, 32, **{"n4 - n5": slow})) for _ in range(200))
    assert found >= 140, "four of five are; fewer than 140 have a chance of 0.1 %"


def test_three_ends_cannot_tell_a_link_from_an_end() -> None:
    assert judge_pairs({("a", "b"): 1.0, ("a", "c"): 2.0, ("b", "c"): 2.0}, dict.fromkeys("abc", "")) is None


def test_sentences() -> None:
    slow = (Slow("node", "n7", 0.31, 0.30, 0.32), Slow("link", "n1 - n2", 0.25, 0.2, 0.3))
    assert PairVerdict(slow, 0.03, 0.04, 0.15).sentence == (
        "node n7 is 31% slower (30% to 32%) with everybody; link n1 - n2 is 25% slower (20% to 30%) than either end is "
        "with others; a loss below 4% of an end or 15% of a link would not have been seen."
    )
    assert PairVerdict((), 0.03, 0.04, 0.15).sentence == (
        "No node, adapter or link is slower than the others; a loss below 4% of an end or 15% of a link would not have "
        "been seen."
    )
