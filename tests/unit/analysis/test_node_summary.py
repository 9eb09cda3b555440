"""Statistics over nodes and ranks, with the figures that SuperBench's own tests expect."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis.diagnose.superbench import nodes_results
from paceline.analysis.diagnose.table import NodeTable, assemble
from paceline.analysis.node_summary import SummaryLine, default_rules, read_summary_rules, rounded, summarize_nodes
from support.refused import refused

Read = Callable[[Any], list[SummaryLine]]
EVENT = (0.00595, 0.00595, 0.00557, 0.0055, 0.00592, 0.00589, 0.00572, 0.0059)
WALL = (0.01026, 0.01026, 0.01046, 0.01049, 0.01063, 0.01006, 0.01045, 0.01071)
WRITE = (23935.21, 23928.59, 23927.21, 23924.44, 23922.4, 23930.37, 23941.57, 23896.94)
KERNEL = {"statistics": ["mean", "p90", "min", "max"], "categories": "KernelLaunch", "aggregate": True}
THEIRS: dict[str, dict[str, Any]] = {
    "kernel_launch": {**KERNEL, "metrics": ["kernel-launch/event_overhead", "kernel-launch/wall_overhead"]},
    "nccl": {"statistics": "mean", "categories": "NCCL", "metrics": ["nccl-bw/allreduce_8388608_busbw"]},
    "ib-loopback": {
        "statistics": "mean",
        "categories": "RDMA",
        "metrics": [r"ib-loopback/IB_write_8388608_Avg_\d+"],
        "aggregate": r"ib-loopback/IB_write_.*_Avg_(\d+)",
    },
}


@pytest.fixture
def table() -> NodeTable:
    """Three nodes, of which the first launches slowly on its first device."""
    nodes = []
    for number in range(3):
        first = 0.1 if number == 0 else EVENT[0]
        values = {f"kernel-launch/event_overhead:{rank}": value for rank, value in enumerate((first, *EVENT[1:]))}
        values |= {f"kernel-launch/wall_overhead:{rank}": value for rank, value in enumerate(WALL)}
        values |= {f"ib-loopback/IB_write_8388608_Avg_{adapter}:0": value for adapter, value in enumerate(WRITE)}
        values |= {"nccl-bw/allreduce_8388608_busbw:0": 89.51, "kernel-launch/return_code": 0}
        nodes.append(nodes_results(f"node-{number}", values))
    return assemble(nodes)


@pytest.fixture
def summary(table: NodeTable, tmp_path: Path) -> Read:
    def read(document: Any) -> list[SummaryLine]:
        path = tmp_path / "rules.yaml"
        path.write_text(json.dumps(document))
        return summarize_nodes(table, read_summary_rules(path)[0])

    return read


def test_the_figures_are_those_of_superbench(summary: Read) -> None:
    lines = summary({"version": "v0.4", "superbench": {"rules": THEIRS}})
    shown = [(line.category, line.metric, line.statistic, rounded(line.value or 0.0, 2)) for line in lines]
    assert shown == [
        ("KernelLaunch", "kernel-launch/event_overhead", "mean", 0.0097),
        ("KernelLaunch", "kernel-launch/event_overhead", "p90", 0.006),
        ("KernelLaunch", "kernel-launch/event_overhead", "min", 0.0055),
        ("KernelLaunch", "kernel-launch/event_overhead", "max", 0.1),
        ("KernelLaunch", "kernel-launch/wall_overhead", "mean", 0.01),
        ("KernelLaunch", "kernel-launch/wall_overhead", "p90", 0.011),
        ("KernelLaunch", "kernel-launch/wall_overhead", "min", 0.01),
        ("KernelLaunch", "kernel-launch/wall_overhead", "max", 0.011),
        ("NCCL", "nccl-bw/allreduce_8388608_busbw:0", "mean", 89.51),
        ("RDMA", "ib-loopback/IB_write_8388608_Avg_*:0", "mean", 23925.84),
    ]


def test_a_rule_that_finds_nothing_says_so(summary: Read) -> None:
    rule = {"categories": "FAKE", "statistics": ["mean", "max"], "metrics": [r"abb/fake:\d+"], "aggregate": True}
    lines = summary({"superbench": {"rules": {"fake": rule}}})
    assert [(line.category, line.metric, line.statistic, line.value) for line in lines] == [
        ("FAKE", "", "mean", None),
        ("FAKE", "", "max", None),
    ]


def test_two_rules_of_one_category_both_count(summary: Read) -> None:
    rules = {name: {**rule, "categories": "All"} for name, rule in THEIRS.items()}
    assert len(summary({"superbench": {"rules": rules}})) == 10


def test_count_and_deviation(summary: Read) -> None:
    rule = {"statistics": ["count", "std"], "metrics": ["nccl-bw/.*"], "category": "Net"}
    count, deviation = summary({"rules": {"net": rule}})
    assert (count.category, count.value, count.unit) == ("Net", 3.0, "")
    assert deviation.value == pytest.approx(0.0, abs=1e-9)
    assert deviation.unit == "GB/s"


def test_without_rules_the_metrics_that_lead_are_shown_over_all_ranks(table: NodeTable) -> None:
    lines = summarize_nodes(table, default_rules())
    counts = {line.metric: line.value for line in lines if line.statistic == "count"}
    assert counts["kernel-launch/event_overhead"] == 24
    assert "kernel-launch/return_code" not in counts


@pytest.mark.parametrize(
    ("rule", "code", "key"),
    [
        ({"categories": "K", "metrics": ["a/b"]}, "missing-key", "statistics"),
        ({"statistics": "mean", "categories": "K"}, "missing-key", "metrics"),
        ({"statistics": "mean", "metrics": ["a/b"]}, "missing-key", "categories"),
        ({"categories": "K", "statistics": "abb", "metrics": ["a/b"]}, "unknown-statistic", "statistics"),
        ({"categories": "K", "statistics": "p100", "metrics": ["a/b"]}, "unknown-statistic", "statistics"),
        ({"categories": "K", "statistics": "mean", "metrics": ["a/b"], "aggregate": "abb"}, "no-group", "aggregate"),
        ({"categories": "K", "statistics": "mean", "metrics": ["a/b"], "aggregate": "("}, "not-a-pattern", "aggregate"),
        ({"categories": "K", "statistics": "mean", "metric": ["a/b"]}, "unknown-key", "metric"),
    ],
)
def test_a_rule_that_is_none_is_refused(summary: Read, rule: dict[str, Any], code: str, key: str) -> None:
    with refused(code, key=key):
        summary({"superbench": {"rules": {"mine": rule}}})


def test_no_rules_are_refused(summary: Read) -> None:
    with refused("no-rules", key="rules"):
        summary({"superbench": {"rules": {}}})


@pytest.mark.parametrize(
    ("value", "expected"),
    [(89.5123, 89.51), (0.009719, 0.0097), (-0.00595, -0.006), (0.0, 0.0), (1234.5, 1234.5), (math.inf, math.inf)],
)
def test_small_values_keep_the_digits_that_count(value: float, expected: float) -> None:
    assert rounded(value, 2) == expected
