"""Which hosts of a fleet are named as slow: by the time of their cases, or by the figures of cases that end on time."""

from __future__ import annotations

import pytest

from paceline.api.fleet import NodeRun, slow_nodes
from paceline.core.metric import Better, Merge, Metric
from paceline.core.record import Measurement
from support.records import STEP_TIME, case, record

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
