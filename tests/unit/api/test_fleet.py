"""Which hosts of a fleet are named as slow: by the time of their cases, or by the figures of cases that end on time."""

from __future__ import annotations

from typing import cast

import pytest

from paceline.analysis.diagnose.early import DefectRules
from paceline.analysis.diagnose.rules import default_rules
from paceline.api.fleet import Fleet, FleetListener, NodeRun, Plan, nodes_without_gpus, slow_nodes
from paceline.core.environment import Environment, Gpu
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement
from paceline.core.suite import Suite
from paceline.store.store import Store
from support.records import STEP_TIME, case, record, run_of

RATE = Metric(name="rate", unit="B/s", better=Better.HIGHER, merge=Merge.SUM, description="A rate")


def node(host: str, value: float, seconds: float = 5.0, metric: Metric = STEP_TIME) -> NodeRun:
    measured = record(case(0, "made-up", "one"), [Measurement.of_samples(metric, [value] * 5)], primary=metric.name)
    return NodeRun(host, records={0: measured.model_copy(update={"seconds": seconds})})


def test_a_host_whose_cases_take_longer_is_named_with_how_much() -> None:
    nodes = [node("a", 1.0), node("b", 1.0), node("c", 1.0, seconds=20.0)]
    assert slow_nodes(nodes) == {"c": "its cases take 4.0 times as long as on the others"}


@pytest.mark.parametrize(("metric", "good", "bad"), [(STEP_TIME, 1.0, 3.0), (RATE, 3.0, 1.0)])
def test_a_host_whose_cases_end_on_time_with_worse_figures_is_named(metric: Metric, good: float, bad: float) -> None:
    nodes = [node("a", good, metric=metric), node("b", good, metric=metric), node("c", bad, metric=metric)]
    assert slow_nodes(nodes) == {"c": "its figures are 3.0 times worse than those of the others"}


def test_better_figures_and_small_differences_name_nobody() -> None:
    assert slow_nodes([node("a", 1.0), node("b", 1.0), node("c", 0.2), node("d", 1.9)]) == {}


def test_a_host_that_has_lost_gpus_is_named_where_most_have_the_same_number() -> None:
    def with_gpus(host: str, count: int) -> NodeRun:
        gpus = [Gpu(index=number, name="H200") for number in range(count)]
        return NodeRun(host, result=run_of([], environment=Environment(host=host, gpus=gpus)))

    nodes = [with_gpus(host, count) for host, count in zip("abcde", (8, 8, 7, 8, 0), strict=True)]
    assert nodes_without_gpus([*nodes, NodeRun("unreachable")]) == {
        "c": "it has 7 GPUs, but most nodes have 8",
        "e": "it has no GPUs, but most nodes have 8",
    }
    assert nodes_without_gpus([with_gpus("a", 8), with_gpus("b", 4)]) == {}, "no majority"


def test_nodes_are_judged_again_when_one_that_has_measured_nothing_is_lost() -> None:
    fleet = Fleet(
        Plan(suite=Suite(name="check", cases=[]), hosts=["a", "b", "c", "d"]),
        cast(Store, None),  # nothing is read from it
        FleetListener(),
        until=DefectRules(default_rules()),
    )
    for node, factors in zip(fleet.nodes, ([1.0, 1.001], [0.7, 0.7], [0.999, 1.0], []), strict=True):
        records = [
            record(case(place, "gemm", f"fp32 {place}"), [Measurement.of_value(RATE, 1e12 * factor)])
            for place, factor in enumerate(factors)
        ]
        if records:
            node.planned, node.state = run_of(records, environment={"host": node.host}).run, "finished"
            node.records = dict(enumerate(records))
    fleet._accuse()
    assert not any(node.accused for node in fleet.nodes), "most nodes have not measured yet"
    fleet.nodes[-1].state = "unreachable"
    fleet._accuse()
    assert [node.host for node in fleet.nodes if node.accused] == ["b"]
