"""Who meets whom in which round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.benchmarks.communication._pair_rounds import distances, k_batch, pair_wise, partners, topology_aware
from paceline.core.benchmark import BENCHMARKS
from paceline.core.errors import InputError
from paceline.core.suite import Here, Suite, expand


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 13, 64])
def test_every_pair_meets_once_and_nobody_is_in_two_places(ranks: int) -> None:
    rounds = ranks - 1 + ranks % 2
    seen: list[tuple[int, int]] = []
    for number in range(rounds):
        met = partners(number, ranks).tolist()
        assert all(other < 0 or (met[other] == rank and other != rank) for rank, other in enumerate(met))
        assert sum(other < 0 for other in met) == ranks % 2, "one rests where their number is odd"
        seen += [(rank, other) for rank, other in enumerate(met) if rank < other]
    assert len(seen) == len(set(seen)) == ranks * (ranks - 1) // 2


def met_in(rounds: list[np.ndarray]) -> list[tuple[int, int]]:
    for met in rounds:
        assert all(other < 0 or met[other] == rank for rank, other in enumerate(met.tolist()))
    return sorted((rank, other) for met in rounds for rank, other in enumerate(met.tolist()) if rank < other)


def test_groups_meet_within_themselves_and_what_is_left_over_rests() -> None:
    assert met_in(k_batch(7, 3)) == [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)]
    assert met_in(k_batch(7, 2)) == [(0, 1), (2, 3), (4, 5)]
    assert len(k_batch(7, 2)) == 1, "all groups at once"
    assert met_in(k_batch(6, 6)) == met_in(pair_wise(6))
    with pytest.raises(InputError, match="batch = 8 is larger than the number of ranks, 7"):
        k_batch(7, 8)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"pattern": "k-batch", "batch": 8, "ranks": 4}, "batch = 8 is larger than the number of ranks, 4"),
        ({"min_distance": 6, "max_distance": 4}, "min_distance = 6 is more than max_distance = 4"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(keys: dict[str, Any], says: str) -> None:
    suite = Suite(name="x", cases=[{"benchmark": "pairs", **keys}])
    with pytest.raises(InputError, match=says):
        expand(suite, BENCHMARKS.get, Here())


def test_how_many_ranks_there_will_be_may_not_be_known_yet() -> None:
    suite = Suite(name="x", cases=[{"benchmark": "pairs", "pattern": "k-batch", "batch": 8}])
    assert len(expand(suite, BENCHMARKS.get, Here())) == 1


def fat_tree(hosts: int, at_each: int, spines: int = 2) -> str:
    """What ibnetdiscover prints of leaves with so many hosts at each, all leaves at all spines."""
    leaves = range(hosts // at_each)
    spine_of, leaf_of = "S-{:016x}".format, lambda leaf: f"S-{leaf + 4096:016x}"
    host_of, rest = lambda host: f"H-{host + 65536:016x}", "lid 9 lmc 0 4xHDR"
    lines = ["#", "# Topology file: generated", "#"]
    for spine in range(spines):
        lines += ["", "vendid=0x2c9", "switchguid=0x1(1)", f'Switch\t64 "{spine_of(spine)}"\t\t# "spine {spine}" base']
        lines += [f'[{leaf + 1}]\t"{leaf_of(leaf)}"[{spine + 1}]\t\t# "leaf {leaf}" {rest}' for leaf in leaves]
    for leaf in leaves:
        lines += ["", f'Switch\t40 "{leaf_of(leaf)}"\t\t# "leaf {leaf}" enhanced port 0 {rest}']
        lines += [f'[{spine + 1}]\t"{spine_of(spine)}"[{leaf + 1}]\t\t# "spine" {rest}' for spine in range(spines)]
        for host in range(leaf * at_each, (leaf + 1) * at_each):
            lines.append(f'[{host % at_each + 9}]\t"{host_of(host)}"[1](b)\t\t# "node{host} mlx5_0" {rest}')
    lines += ["", 'Ca\t1 "H-00000000000000ff"\t\t# "Mellanox Technologies Aggregation Node"']
    lines += [f'[1](ff)\t"{leaf_of(0)}"[41]\t\t# lid 8 lmc 0 "leaf 0" {rest}']
    for host in range(hosts):
        lines += ["", "caguid=0x1", f'Ca\t1 "{host_of(host)}"\t\t# "node{host} mlx5_0"']
        lines += [f'[1](b)\t"{leaf_of(host // at_each)}"[{host % at_each + 9}]\t\t# "leaf" {rest}']
    return "\n".join(lines)


def test_distances_are_hops_through_switches() -> None:
    names = ["node5", "node0", "node1"]
    apart = distances(fat_tree(8, 4), names)
    assert {name: row.tolist() for name, row in apart.items()} == {
        "node5": [0, 4, 4],
        "node0": [4, 0, 2],
        "node1": [4, 2, 0],
    }


def test_hosts_may_be_known_by_the_guids_of_their_adapters() -> None:
    ibstat = "VM_hostname vm-a\n0000000000010000\n0000000000000000\nVM_hostname vm-b\n0000000000010007\n"
    apart = distances(fat_tree(8, 4), ["vm-a", "vm-b"], ibstat)
    assert apart["vm-a"].tolist() == [0, 4]
    with pytest.raises(InputError, match="does not say where vm-c is connected"):
        distances(fat_tree(8, 4), ["vm-c"], ibstat)


def test_of_each_distance_as_many_pairs_meet_as_can_at_once() -> None:
    names = [f"node{host}" for host in range(8)]
    apart = distances(fat_tree(8, 4), names)
    rounds = topology_aware(names, apart, names, 2, 6)
    assert list(rounds) == [2, 4]
    assert met_in([rounds[2]]) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert met_in([rounds[4]]) == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_the_ranks_of_a_node_meet_those_of_the_other_node() -> None:
    names = ["node0", "node1"]
    rounds = topology_aware(["node0", "node0", "node1", "node1"], distances(fat_tree(8, 4), names), names, 2, 6)
    assert met_in([rounds[2]]) == [(0, 2), (1, 3)]


def test_two_thousand_hosts_are_planned() -> None:
    names = [f"node{host}" for host in range(2048)]
    text = fat_tree(2048, 32, spines=16)
    rounds = topology_aware(names, distances(text, names), names, 2, 6)
    assert [len(met_in([met])) for met in rounds.values()] == [1024, 1024]
    assert len(pair_wise(2048)) == 2047
