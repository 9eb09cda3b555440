"""Which hosts of a fleet are named as slow: by the time of their cases, or by the figures of cases that end on time."""

from __future__ import annotations

import pytest

from paceline.api.fleet import NodeRun, nodes_without_gpus, slow_nodes
from paceline.core.environment import Environment, Gpu
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement
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
