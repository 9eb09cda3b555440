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
from paceline.core.stats import median_interval
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
        ('{"paceline_baseline": 1, "metrics": {"a": {"value": NaN}}}', "invalid-value", "metrics.a.value"),
    ],
)
def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path, text: str, code: str, key: str | None) -> None:
    (tmp_path / "b.json").write_text(text, encoding="utf-8")
    with refused(code, key=key):
        baselines.read_baseline(tmp_path / "b.json")


def test_our_names_are_not_written_as_superbenchs() -> None:
    with refused("mismatched-names", value="paceline"):
        baselines.as_superbench(Baseline(metrics={"gemm 4096/compute_rate": Reference(value=1.0)}))


@pytest.mark.parametrize("rows", range(1, 10))
def test_medians_and_spreads_are_those_of_the_numbers_in_each_column(rows: int) -> None:
    rng = np.random.default_rng(rows)
    values = rng.normal(size=(rows, 5))
    values[: rows // 2, 1] = np.nan
    values[1:, 2] = np.nan
    values[:, 3] = np.nan
    medians = [np.nan if place == 3 else np.nanmedian(values[:, place]) for place in range(5)]
    np.testing.assert_allclose(baselines.column_medians(values), medians)
    distances = np.abs(values - np.array(medians))
    spreads = [np.nan if place == 3 else 1.4826 * np.nanmedian(distances[:, place]) for place in range(5)]
    np.testing.assert_allclose(baselines.column_spreads(values), spreads)


@pytest.mark.parametrize("rows", range(1, 9))
def test_the_median_of_any_number_of_others(rows: int) -> None:
    values = np.random.default_rng(rows).permutation(2.0 ** np.arange(rows))[:, np.newaxis]
    others = [np.median(np.delete(values, row)) if rows > 1 else np.nan for row in range(rows)]
    np.testing.assert_equal(baselines.medians_of_others(values)[:, 0], others)


@pytest.mark.parametrize(("values", "spread"), [([5.0], None), ([5.0, 7.0], 1.4826), ([5.0, 5.0], 0.0)])
def test_one_node_has_no_spread(values: list[float], spread: float | None) -> None:
    (reference,) = baselines.make_baseline(table_of(values)).metrics.values()
    assert reference.spread == (pytest.approx(spread) if spread is not None else None)
    assert reference.nodes == len(values)


def test_a_baseline_says_what_it_was_made_of() -> None:
    made = baselines.make_baseline(table_of([1.0, 2.0, 3.0]), ["one", "two"], names="superbench")
    assert (made.names, made.nodes, made.sources) == ("superbench", 3, ["one", "two"])
    plain = baselines.make_baseline(table_of([1.0]))
    assert (plain.paceline_baseline, plain.names, plain.nodes, plain.sources) == (1, "paceline", 1, [])


def test_a_metric_that_was_not_measured_has_no_reference() -> None:
    nodes = [nodes_results("n0", {"a/x": 1.0, "a/y": float("nan")}), nodes_results("n1", {"a/x": 2.0})]
    assert list(baselines.make_baseline(assemble(nodes)).metrics) == ["a/x"]
    with refused("no-results"):
        baselines.make_baseline(table_of([float("nan"), float("nan")]))


def test_a_single_rank_has_a_reference_without_its_rank_too() -> None:
    nodes = [nodes_results(f"n{n}", {"mem-bw/h2d_bw:0": 10.0 + n}) for n in range(3)]
    made = baselines.make_baseline(assemble(nodes))
    assert list(made.metrics) == ["mem-bw/h2d_bw", "mem-bw/h2d_bw:0"]
    assert {(one.value, one.nodes, one.unit) for one in made.metrics.values()} == {(11.0, 3, "GB/s")}


def test_nodes_count_for_all_ranks_if_one_of_their_ranks_measured() -> None:
    nodes = [
        nodes_results("n0", {"a/x_bw:0": 1.0, "a/x_bw:1": 2.0}),
        nodes_results("n1", {"a/x_bw:1": 4.0}),
        nodes_results("n2", {"b/y": 4.0}),
    ]
    metrics = baselines.make_baseline(assemble(nodes)).metrics
    assert {name: (one.value, one.nodes) for name, one in metrics.items()} == {
        "a/x_bw": (2.0, 2),
        "a/x_bw:0": (1.0, 1),
        "a/x_bw:1": (3.0, 2),
        "b/y": (4.0, 1),
    }


def test_a_figure_without_a_rank_is_not_replaced_by_that_of_the_ranks() -> None:
    nodes = [nodes_results(f"n{n}", {"a/x_bw": 100.0 + n, "a/x_bw:0": 10.0, "a/x_bw:1": 20.0}) for n in range(3)]
    assert baselines.make_baseline(assemble(nodes)).metrics["a/x_bw"].value == 101.0


def test_nodes_are_independent_and_the_ranks_of_a_node_are_not() -> None:
    nodes = [nodes_results(f"n{n:02}", {"a/x_bw:0": 10.0 + n, "a/x_bw:1": 10.1 + n}) for n in range(16)]
    metrics = baselines.make_baseline(assemble(nodes)).metrics
    alone = [10.0 + n for n in range(16)]
    pooled = [rank + n for n in range(16) for rank in (10.0, 10.1)]
    assert metrics["a/x_bw:0"].interval == median_interval(alone, independent=True)
    assert metrics["a/x_bw:0"].interval != median_interval(alone)
    assert metrics["a/x_bw"].interval == median_interval(pooled)
    assert metrics["a/x_bw"].interval != median_interval(pooled, independent=True)


@pytest.mark.parametrize(("previous", "new"), [(9, 4), (4, 9)])
def test_an_extended_baseline_is_of_the_larger_number_of_nodes(previous: int, new: int) -> None:
    first = Baseline(names="superbench", nodes=previous, metrics={"b": Reference(value=1.0)})
    second = Baseline(names="superbench", nodes=new, metrics={"c": Reference(value=1.0), "a": Reference(value=1.0)})
    merged = baselines.extend(first, second)
    assert (merged.nodes, merged.names, list(merged.metrics)) == (9, "superbench", ["a", "b", "c"])


def test_files_are_written_for_people_and_for_comparison() -> None:
    metrics = {"b/y": Reference(value=2.5), "a/x": Reference(value=1e-7)}
    made = Baseline(names="superbench", metrics=metrics)
    assert baselines.as_superbench(made) == '{\n  "a/x": 1e-07,\n  "b/y": 2.5\n}\n'
    text = baselines.as_json(made)
    assert text.startswith('{\n  "paceline_baseline": 1,\n  "names": "superbench",\n  "nodes": 0,\n  "sources": [],\n')
    assert text.endswith("\n}\n")


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        ('{"a": 1, "b": Infinity}', "not-a-number", "b"),
        ('{"a": 1, "b": null}', "not-a-number", "b"),
        ('{"a": 1, "b": [2]}', "not-a-number", "b"),
        ('{"a": 1, "b": false}', "not-a-number", "b"),
        ('{"paceline_baseline": 0, "metrics": {}}', "other-version", "paceline_baseline"),
        ("3", "not-a-baseline", None),
    ],
)
def test_a_file_with_something_other_than_numbers_is_refused(
    tmp_path: Path, text: str, code: str, key: str | None
) -> None:
    (tmp_path / "b.json").write_text(text, encoding="utf-8")
    with refused(code, key=key):
        baselines.read_baseline(tmp_path / "b.json")


def test_whole_numbers_and_fractions_are_both_numbers(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"a/x": 3, "mem-bw/h2d_bw": 26.5}', encoding="utf-8")
    metrics = baselines.read_baseline(tmp_path / "b.json").metrics
    assert metrics == {
        "a/x": Reference(value=3.0),
        "mem-bw/h2d_bw": Reference(value=26.5, unit="GB/s", better=Better.HIGHER),
    }
