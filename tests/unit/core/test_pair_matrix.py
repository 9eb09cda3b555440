"""Slow links, adapters and nodes planted in fleets whose noise is known: all are named, and nothing else."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from paceline.core.pair_matrix import PairVerdict, Slow, judge_pairs


def speeds_of(
    random: np.random.Generator, hosts: int, adapters: int = 1, noise: float = 0.03, tail: float = 0.0, **slow: float
) -> tuple[dict[tuple[str, str], float], dict[str, str]]:
    """A fleet in which these are slow: `n3`, `n3:1`, or a link `n1 - n2`; and the node of each end."""
    ends = [f"n{host}:{one}" if adapters > 1 else f"n{host}" for host in range(hosts) for one in range(adapters)]
    node_of = {end: end.partition(":")[0] for end in ends}
    speeds = {}
    for a, b in combinations(ends, 2):
        if node_of[a] != node_of[b]:
            names = (a, b, node_of[a], node_of[b], f"{a} - {b}", f"{b} - {a}")
            drawn = random.standard_t(tail) if tail else random.standard_normal()
            speeds[a, b] = 1e10 * min(slow.get(name, 1.0) for name in names) * np.exp(noise * drawn)
    return speeds, node_of


def fleet(*words: Any, **more: Any) -> PairVerdict:
    verdict = judge_pairs(*speeds_of(*words, **more))
    assert verdict is not None
    return verdict


def named(verdict: PairVerdict) -> set[tuple[str, str]]:
    return {(one.kind, " - ".join(sorted(one.name.split(" - ")))) for one in verdict.slow}


def test_slow_nodes_adapters_and_links_of_64_hosts_are_all_found_and_nothing_else_is() -> None:
    random = np.random.default_rng(64)
    inside: Counter[str] = Counter()
    for _ in range(20):
        n = [f"n{host}" for host in random.permutation(64)]
        slow = {n[0]: 0.7, n[1]: 0.85, f"{n[2]}:0": 0.7, f"{n[3]}:1": 0.85, f"{n[4]}:0 - {n[5]}:0": 0.75}
        slow |= {f"{n[6]}:1 - {n[7]}:0": 0.5, f"{n[0]}:1 - {n[8]}:1": 0.4}
        losses = {
            ("link" if " - " in name else "adapter" if ":" in name else "node", " - ".join(sorted(name.split(" - ")))):
            1 - speed for name, speed in slow.items()
        }  # fmt: skip
        verdict = fleet(random, 64, adapters=2, **slow)
        assert named(verdict) == set(losses)
        losses["link", " - ".join(sorted((f"{n[0]}:1", f"{n[8]}:1")))] = 1 - 0.4 / 0.7  # than its slow end is
        for one in verdict.slow:
            inside[one.kind] += one.low <= losses[one.kind, " - ".join(sorted(one.name.split(" - ")))] <= one.high
    fewest = {"node": 33, "adapter": 33, "link": 50}  # of 40, 40 and 60: the chance of fewer at 95 % is 0.1 %
    assert all(inside[kind] >= count for kind, count in fewest.items()), inside


def test_where_all_is_well_something_is_named_in_one_of_a_hundred_fleets_at_most() -> None:
    random = np.random.default_rng(11)
    fleets = [fleet(random, int(random.integers(4, 40)), noise=random.uniform(0.005, 0.1)) for _ in range(300)]
    wrong = sum(bool(named(one)) for one in fleets)
    assert wrong <= 9, "the chance of ten of 300 at 1 % is 0.1 %"


def test_pairs_within_a_node_do_not_cross_the_network() -> None:
    for seed in range(10):
        speeds, node_of = speeds_of(np.random.default_rng(seed), 4, adapters=8, **{"n1": 0.7, "n2:3": 0.8})
        inner = {pair: 1e11 for pair in combinations(node_of, 2) if pair not in speeds}
        verdict = judge_pairs(speeds | inner, node_of)
        assert verdict is not None
        assert named(verdict) == {("node", "n1"), ("adapter", "n2:3")}


@pytest.mark.parametrize(("hosts", "fleets"), [(8, 100), (16, 100), (24, 60), (64, 20)])
@pytest.mark.parametrize("tail", [5.0, 3.0])
def test_noise_with_long_tails_makes_hardly_anything_slow(hosts: int, fleets: int, tail: float) -> None:
    random = np.random.default_rng(12)
    wrong = sum(bool(named(fleet(random, hosts, tail=tail))) for _ in range(fleets))
    assert wrong <= 0.1 * fleets, "taken for normal: three in ten fleets of 16, and nearly all of 64"


def test_hosts_that_differ_are_not_slow() -> None:
    """Good hosts differ by 5 %, and by how much is known from these few alone."""
    random, wrong = np.random.default_rng(13), 0
    for _ in range(100):
        levels = np.exp(0.05 * random.standard_normal(24))
        slow = {f"n{host}": one for host, one in enumerate(levels / levels.max())}
        wrong += bool(named(fleet(random, 24, noise=0.01, **slow)))
    assert wrong <= 8


@pytest.mark.parametrize(("hosts", "group", "speed"), [(24, 8, 0.5), (64, 16, 0.8), (64, 8, 0.9)])
def test_hosts_behind_a_slow_switch_are_a_group_and_none_of_them_is_slow(hosts: int, group: int, speed: float) -> None:
    random, right = np.random.default_rng(hosts + group), 0
    for _ in range(20):
        behind = range(hosts - group, hosts)
        ways = {f"n{a} - n{b}": speed for a in range(1, hosts - group) for b in behind}
        verdict = fleet(random, hosts, n0=0.7, **{f"n0 - n{b}": min(speed, 0.7) for b in behind}, **ways)
        groups = [one for one in verdict.slow if one.kind == "group"]
        right += len(verdict.slow) == 2 and len(groups) == 1 and groups[0].name.endswith(f"and {group - 3} more")
        assert all(one.loss == pytest.approx(1 - speed, abs=0.03) for one in groups)
    assert right >= 18


@pytest.mark.parametrize("hosts", [8, 32])
@pytest.mark.parametrize("kind", ["end", "link"])
def test_losses_of_the_size_that_counts_as_seen_are_found(hosts: int, kind: str) -> None:
    random, found = np.random.default_rng(9), 0
    for _ in range(150):
        speeds, node_of = speeds_of(random, hosts)
        verdict = judge_pairs(speeds, node_of)
        assert verdict is not None
        lost = 1.0 - (verdict.seen_end if kind == "end" else verdict.seen_link)
        hit = {"n3"} if kind == "end" else {"n3", "n4"}
        slower = judge_pairs({pair: one * (lost if hit <= set(pair) else 1) for pair, one in speeds.items()}, node_of)
        assert slower is not None
        found += any(one.name == " - ".join(sorted(hit)) for one in slower.slow)
    assert found >= 103, "four of five are, 120; fewer than 103 have a chance of 0.1 %"


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
