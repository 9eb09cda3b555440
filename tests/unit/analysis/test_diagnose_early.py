"""What accuses a node while it and others still measure, and that healthy nodes are left to measure on."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.analysis.baseline import make_baseline
from paceline.analysis.diagnose.early import DefectRules
from paceline.analysis.diagnose.rules import default_rules
from paceline.analysis.diagnose.table import MetricColumn, NodeTable, assemble, results_of
from paceline.core.metric import Better, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome
from paceline.core.run import RunRecords
from support.records import case, record, run_of

RATE = Metric(name="compute_rate", unit="FLOP/s", better=Better.HIGHER)
DEFECTS = DefectRules(default_rules())


def run(host: str, values: list[float], done: int | None = None) -> RunRecords:
    """A node with one case for each value, of which it has done some."""
    records = [
        record(case(place, "gemm", f"fp32 {place}", size=place), [Measurement.of_value(RATE, 1e12 * value)])
        for place, value in enumerate(values)
    ]
    whole = run_of(records, environment={"host": host})
    return whole if done is None else whole.model_copy(update={"records": records[:done]})


def fleet(values: np.ndarray, done: np.ndarray) -> dict[str, RunRecords]:
    return {f"n{node}": run(f"n{node}", row.tolist(), int(done[node])) for node, row in enumerate(values)}


def test_a_slow_node_is_accused_as_soon_as_most_others_have_measured_the_same() -> None:
    values = np.random.default_rng(1).normal(1.0, 0.003, (16, 6))
    values[3, 2] = 0.8
    assert DEFECTS.accused_so_far(fleet(values, np.full(16, 2)), 16) == {}, "the slow case is not measured yet"
    alone = np.where(np.arange(16) == 3, 3, 2)
    assert DEFECTS.accused_so_far(fleet(values, alone), 16) == {}, "nobody else has measured it"
    most = np.where(np.arange(16) < 13, 3, 2)
    (node, finding), *rest = DEFECTS.accused_so_far(fleet(values, most), 16).items()
    assert (node, rest) == ("n3", [])
    assert finding.metric == "gemm fp32 2/compute_rate"
    assert finding.change == pytest.approx(-0.2, abs=0.02)


def test_what_a_slower_node_has_not_measured_yet_accuses_it_of_nothing() -> None:
    values = np.random.default_rng(2).normal(1.0, 0.003, (8, 6))
    assert DEFECTS.accused_so_far(fleet(values, np.array([6] * 7 + [1])), 8) == {}


def test_a_failure_accuses_a_node_by_itself_but_an_interrupt_does_not() -> None:
    failed = run("a", [1.0, 1.0])
    failed.records[1] = failed.records[1].model_copy(
        update={"outcome": Outcome.FAILED, "cause": Cause(kind=CauseKind.ERROR, message="wrong result")}
    )
    found = DEFECTS.accused_so_far({"a": failed, "b": run("b", [0.5, 0.5])}, 2)
    assert {node: (one.metric, one.text) for node, one in found.items()} == {
        "a": ("gemm fp32 1", "failed: wrong result")
    }
    failed.records[1].cause = Cause(kind=CauseKind.INTERRUPTED, message="killed")
    assert DEFECTS.accused_so_far({"a": failed}, 1) == {}


def test_one_node_is_judged_by_a_baseline_under_the_names_of_the_whole_suite() -> None:
    """Of two cases that differ by their device alone, the first has the same name before and after the second."""
    records = [
        record(case(place, "gemm", "fp32", target=f"cuda:{place}"), [Measurement.of_value(RATE, 1e12)])
        for place in range(2)
    ]
    good = run_of(records, environment={"host": "good"})
    baseline = make_baseline(assemble(results_of([good])))
    slow = records[0].model_copy(update={"measurements": [Measurement.of_value(RATE, 5e11)]})
    planned = good.model_copy(update={"records": [slow]})
    (finding,) = DefectRules(default_rules(), baseline).accused_so_far({"bad": planned}, 1).values()
    assert finding.metric == "gemm fp32 on cuda:0/compute_rate"


def test_looking_all_the_time_accuses_hardly_more_healthy_nodes_than_looking_once() -> None:
    """Fleets of six nodes, in which few have measured a case when it is first looked at; one look may accuse 0.04."""
    nodes, cases, fleets = 6, 12, 20
    columns = tuple(MetricColumn(f"gemm fp32 {place}/compute_rate", better=Better.HIGHER) for place in range(cases))
    names = tuple(f"n{node}" for node in range(nodes))
    accused = 0
    for seed in range(fleets):
        rng = np.random.default_rng(seed)
        values = np.exp(rng.choice([0.003, 0.01, 0.03], cases) * rng.standard_normal((nodes, cases)))
        pace = rng.uniform(0.7, 1.3, nodes)
        found: set[str] = set()
        for look in range(1, int(cases / 0.7) + 2):
            done = np.minimum((look * pace).astype(int), cases)
            so_far = np.where(np.arange(cases) < done[:, None], values, np.nan)[:, : done.max()]
            table = NodeTable(names, columns[: done.max()], so_far, failures={}, environments={})
            found |= DEFECTS.accused_in(table, nodes, done.max() / cases).keys()
        accused += len(found)
    assert accused <= 3
