"""The bounds of an SLO have a unit: what a bare 100 means, nobody can know."""

from __future__ import annotations

import pytest

from paceline.analysis.recommend.evidence import read_bounds
from paceline.benchmarks.serving.parameters import ServeParameters
from paceline.core.benchmark import BENCHMARKS
from paceline.core.suite import Here, Suite, expand
from support.refused import refused


@pytest.mark.parametrize("bound", ["100", 100, 0.1, "0.1"])
def test_a_latency_without_unit_is_refused(bound: object) -> None:
    suite = Suite(name="s", cases=[{"benchmark": "serve", "slo": {"p99": bound}}])
    with refused("invalid-value", key="slo.p99", says=rf"'{bound}' has no unit; write {bound}ms or {bound}s"):
        expand(suite, BENCHMARKS.get, Here())


def test_one_with_a_unit_is_read_and_its_record_is_read_again() -> None:
    suite = Suite(name="s", cases=[{"benchmark": "serve", "slo": {"p99": "100ms"}}])
    (case,) = expand(suite, BENCHMARKS.get, Here())
    assert case.parameters["slo"]["p99"] == 0.1
    again = ServeParameters.read(case.parameters)
    assert again.slo is not None
    assert again.slo.p99 == 0.1


def test_recommend_asks_for_the_unit_too() -> None:
    assert read_bounds(["p99=50ms,error_rate=1%"])[0].limit == 0.05
    with refused("not-a-bound", key="--slo", value="50", says="no unit"):
        read_bounds(["p99=50"])
