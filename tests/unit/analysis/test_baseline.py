"""A baseline is what most nodes measure, with unit, direction, count and warning; its files survive the journey."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paceline.analysis import baseline as baselines
from paceline.analysis.baseline import Baseline, Reference
from paceline.analysis.diagnose.superbench import nodes_results
from paceline.analysis.diagnose.table import MetricColumn, NodeTable, assemble
from paceline.core.metric import Better
from support.refused import refused


def table_of(values: list[float], name: str = "mem-bw/h2d_bw") -> NodeTable:
    return assemble([nodes_results(f"n{index}", {name: value}) for index, value in enumerate(values)])


def test_the_example_with_one_bad_node() -> None:
    made = baselines.make_baseline(table_of([100, 101, 99, 100, 60]))
    found = made.metrics["mem-bw/h2d_bw"]
    assert (found.value, found.unit, found.better, found.nodes) == (100.0, "GB/s", Better.HIGHER, 5)
    assert found.spread == pytest.approx(1.4826)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (60, 101)
    assert found.interval.confidence < 0.95  # five nodes do not reach it, and the file says so


def test_ranks_have_a_reference_each_and_one_together() -> None:
    nodes = [nodes_results(f"n{n}", {"a/x_bw:0": 10.0 + n, "a/x_bw:1": 20.0 + n}) for n in range(3)]
    made = baselines.make_baseline(assemble(nodes))
    assert {name: (one.value, one.nodes) for name, one in made.metrics.items()} == {
        "a/x_bw": (16.0, 3),
        "a/x_bw:0": (11.0, 3),
        "a/x_bw:1": (21.0, 3),
    }


@pytest.mark.parametrize(
    ("asked", "found"), [("a/x:3", 1.0), ("a/x", 1.0), ("a/y:0", 2.0), ("b/any", 3.0), ("c/x:0", None)]
)
def test_a_reference_is_found_by_name_without_rank_or_by_benchmark(asked: str, found: float | None) -> None:
    references = {"a/x": Reference(value=1.0), "a/y:0": Reference(value=2.0), "b": Reference(value=3.0)}
    reference = Baseline(metrics=references).reference(MetricColumn(asked))
    assert (reference.value if reference else None) == found


def test_the_median_of_the_others_leaves_each_node_out() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(9, 4))
    values[rng.random(values.shape) < 0.2] = np.nan
    values[2, 0] = values[3, 0]
    found = baselines.medians_of_others(values)
    for row in range(9):
        for column in range(4):
            others = np.delete(values[:, column], row)
            expected = np.nan if np.isnan(values[row, column]) else np.nanmedian(others)
            np.testing.assert_equal(found[row, column], expected)


def test_columns_without_numbers_have_no_median() -> None:
    values = np.array([[np.nan, 1.0], [np.nan, 3.0]])
    np.testing.assert_equal(baselines.column_medians(values), [np.nan, 2.0])
    np.testing.assert_equal(baselines.medians_of_others(values), [[np.nan, 3.0], [np.nan, 1.0]])


def test_our_file_survives_the_journey(tmp_path: Path) -> None:
    made = baselines.make_baseline(table_of([26.0, 26.1, 26.3, 26.2]), ["tag"], names="superbench")
    (tmp_path / "b.json").write_text(baselines.as_json(made), encoding="utf-8")
    assert baselines.read_baseline(tmp_path / "b.json") == made


def test_superbenchs_file_survives_the_journey(tmp_path: Path) -> None:
    written = {"kernel-launch/event_overhead": 0.00596, "mem-bw/return_code": 0, "a/b": 1e-7}
    (tmp_path / "b.json").write_text(json.dumps(written), encoding="utf-8")
    read = baselines.read_baseline(tmp_path / "b.json")
    assert read.names == "superbench"
    assert read.metrics["kernel-launch/event_overhead"].unit == "ms"
    assert json.loads(baselines.as_superbench(read)) == written


def test_a_previous_baseline_keeps_its_figures() -> None:
    previous = Baseline(nodes=9, sources=["old"], metrics={"a/x": Reference(value=1.0), "a/y": Reference(value=2.0)})
    new = Baseline(nodes=4, sources=["new"], metrics={"a/x": Reference(value=5.0), "a/z": Reference(value=6.0)})
    merged = baselines.extend(previous, new)
    assert {name: one.value for name, one in merged.metrics.items()} == {"a/x": 1.0, "a/y": 2.0, "a/z": 6.0}
    assert merged.sources == ["old", "new"]
    with refused("mismatched-names", key="--extend", value="superbench"):
        baselines.extend(Baseline(names="superbench", metrics={}), new)


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        ("{", "not-json", None),
        ("[" * 100_000, "not-json", None),
        ("[]", "not-a-baseline", None),
        ('{"a": "x"}', "not-a-number", "a"),
        ('{"a": NaN}', "not-a-number", "a"),
        ('{"a": true}', "not-a-number", "a"),
        ('{"paceline_baseline": 2}', "other-version", "paceline_baseline"),
        ('{"paceline_baseline": 1}', "missing-key", "metrics"),
        ('{"paceline_baseline": 1, "metrics": {"a": {"valeu": 1}}}', "missing-key", "metrics.a.value"),
    ],
)
def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path, text: str, code: str, key: str | None) -> None:
    (tmp_path / "b.json").write_text(text, encoding="utf-8")
    with refused(code, key=key):
        baselines.read_baseline(tmp_path / "b.json")


def test_our_names_are_not_written_as_superbenchs() -> None:
    with refused("mismatched-names", value="paceline"):
        baselines.as_superbench(Baseline(metrics={"gemm 4096/compute_rate": Reference(value=1.0)}))
