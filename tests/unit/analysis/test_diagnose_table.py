"""Results of many runs become one table: names of nodes and metrics, repetitions, failures and what differs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis.diagnose.superbench import nodes_results, read_nodes, read_results
from paceline.analysis.diagnose.superbench import run_of as run_of_line
from paceline.analysis.diagnose.table import (
    Failure,
    MetricColumn,
    NodeResults,
    NodeTable,
    assemble,
    is_original,
    results_of,
    run_names,
)
from paceline.core.environment import Environment
from paceline.core.metric import Better, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome
from paceline.core.run import RunRecords
from paceline.core.stats import Summary
from paceline.core.subject import SUPERBENCH
from support.records import case, record, run_of
from support.refused import refused

RATE = Metric(name="rate", unit="FLOP/s", better=Better.HIGHER)
OTHER = Metric(name="other", unit="B", better=Better.LOWER)
PLAIN = Metric(name="plain", unit="", better=Better.NEITHER)


def part(node: str, run: str = "", /, **values: float) -> NodeResults:
    """Results without columns of their own."""
    return NodeResults(node, values, {}, run=run)


def as_dicts(table: NodeTable) -> dict[str, dict[str, float]]:
    """What was measured, by node and metric."""
    names = [column.name for column in table.columns]
    rows = zip(table.nodes, table.values.tolist(), strict=True)
    return {node: {n: v for n, v in zip(names, row, strict=True) if not math.isnan(v)} for node, row in rows}


def test_no_results_are_refused() -> None:
    with refused("no-results"):
        assemble([])


def test_several_results_of_a_node_are_their_median_without_what_was_not_measured() -> None:
    parts = [part("a", a=1.0, b=math.nan), part("a", a=2.0, b=5.0), part("a", a=9.0, c=math.nan), part("b", a=4.0)]
    table = assemble(parts)
    assert table.nodes == ("a", "b")
    assert not table.by_run
    assert [column.name for column in table.columns] == ["a", "b", "c"]
    assert as_dicts(table) == {"a": {"a": 2.0, "b": 5.0}, "b": {"a": 4.0}}
    assert table.present.tolist() == [[True, True, False], [True, False, False]]


def test_one_result_of_one_node_is_a_node_and_two_are_runs() -> None:
    single = assemble([part("host", "monday", a=1.0)])
    assert (single.nodes, single.by_run) == (("host",), False)
    pair = assemble([part("host", "monday", a=1.0), part("host", "tuesday", a=2.0)])
    assert (pair.nodes, pair.by_run) == (("monday", "tuesday"), True)
    assert as_dicts(pair) == {"monday": {"a": 1.0}, "tuesday": {"a": 2.0}}


def test_runs_without_a_name_of_their_own_are_numbered() -> None:
    table = assemble([part("host", a=1.0), part("host", "monday", a=2.0), part("host", a=3.0)])
    assert table.nodes == ("host #1", "monday", "host #3")


def test_a_column_is_what_the_first_result_that_has_it_says() -> None:
    one = NodeResults("a", {"x": 1.0}, {"x": MetricColumn("x", "s", Better.LOWER, leads=False)})
    two = NodeResults("b", {"x": 2.0, "y": 3.0}, {"x": MetricColumn("x", "ms", Better.HIGHER)})
    first, second = assemble([one, two]).columns
    assert first == MetricColumn("x", "s", Better.LOWER, leads=False)
    assert second == MetricColumn("y", "", Better.NEITHER, leads=True)


def test_a_node_has_all_failures_of_its_runs_and_its_last_environment() -> None:
    parts = []
    for place, kernel in enumerate(("6.1", "6.5", "6.8")):
        failures = [Failure(f"case {place}", "failed", ""), Failure("again", "failed", "")] if place != 1 else []
        parts.append(NodeResults("a", {"x": 1.0}, {}, failures, environment=Environment(kernel=kernel)))
    table = assemble([*parts, part("b", x=1.0)])
    assert [failure.case for failure in table.failures["a"]] == ["case 0", "again", "case 2"]
    assert table.failures["b"] == ()
    assert table.environments["a"].kernel == "6.8"


def test_facts_that_differ_name_the_nodes_of_each_value() -> None:
    def environment(driver: str, gpus: list[str], torch: str | None) -> dict[str, Any]:
        packages = {"torch": torch} if torch else {}
        return {
            "kernel": "6.1",
            "driver": {"version": driver},
            "gpus": [{"name": name} for name in gpus],
            "software": {"packages": packages},
        }

    known_environments = {
        "a": environment("550", ["H200", "A100", "H200"], "2.4"),
        "b": environment("560", ["A100", "H200"], "2.4"),
        "c": environment("560", ["H200"], None),
        "d": environment("560", [], None),
    }
    parts = [
        NodeResults(node, {"x": 1.0}, {}, environment=Environment.model_validate(one))
        for node, one in known_environments.items()
    ]
    assert assemble([*parts, part("unknown", x=1.0)]).differences() == {
        "driver": {"550": ["a"], "560": ["b", "c", "d"]},
        "GPUs": {"1 x A100, 2 x H200": ["a"], "1 x A100, 1 x H200": ["b"], "1 x H200": ["c"], "none": ["d"]},
    }


def test_a_baseline_may_call_a_metric_by_three_names() -> None:
    column = MetricColumn("mem-bw:n/h2d_bw:12")
    assert column.unranked == "mem-bw:n/h2d_bw"
    assert column.reference_names == ("mem-bw:n/h2d_bw:12", "mem-bw:n/h2d_bw", "mem-bw:n")
    assert MetricColumn("a/b:1c").unranked == "a/b:1c"


def test_metrics_are_named_after_their_case_their_point_and_their_scope() -> None:
    measurements = [
        Measurement.of_value(PLAIN, 1.0),
        Measurement.of_value(OTHER, 2.0),
        Measurement.of_value(RATE, 3.0),
        Measurement.of_value(RATE, 4.0, at={"size": 1024, "way": "up"}),
        Measurement.of_value(RATE, 5.0, scope="rank 12"),
        Measurement.of_value(RATE, 6.0, scope="all ranks 1"),
    ]
    (results,) = results_of([run_of([record(case(0, "gemm", "fp32"), measurements)], environment={"host": "n"})])
    assert results.values == {
        "gemm fp32/plain": 1.0,
        "gemm fp32/other": 2.0,
        "gemm fp32/rate": 3.0,
        "gemm fp32/rate@size=1024@way=up": 4.0,
        "gemm fp32/rate:12": 5.0,
        "gemm fp32/rate all ranks 1": 6.0,
    }
    assert (results.node, results.environment.host, results.failures) == ("n", "n", [])
    assert [name for name, column in results.columns.items() if column.leads] == ["gemm fp32/other"]
    ranked = MetricColumn("gemm fp32/rate:12", "FLOP/s", Better.HIGHER, False, "gemm")
    assert results.columns["gemm fp32/rate:12"] == ranked
    assert (ranked.benchmark, ranked.rank, ranked.unranked) == ("gemm", "12", "gemm fp32/rate")


@pytest.mark.parametrize(("values", "expected"), [([3.0], 3.0), ([3.0, 5.0], 4.0), ([9.0, 3.0, 5.0], 5.0)])
def test_repetitions_of_a_case_are_one_figure(values: list[float], expected: float) -> None:
    records = [
        record(case(place, "gemm", "gemm", repeat=place + 1), [Measurement.of_value(RATE, value)])
        for place, value in enumerate(values)
    ]
    (results,) = results_of([run_of(records)])
    assert results.values == {"gemm/rate": expected}


def test_what_failed_measured_nothing_and_says_why() -> None:
    cause = Cause(kind=CauseKind.ERROR, message="no such device")
    measured = [Measurement.of_value(RATE, 1.0)]
    records = [
        record(case(0, "a", "a"), measured, outcome=Outcome.FAILED, cause=cause),
        record(case(1, "b", "b"), measured, outcome=Outcome.TIMEOUT),
        record(case(2, "c", "c"), measured, outcome=Outcome.UNSUPPORTED, cause=cause),
        record(case(3, "d", "d").model_copy(update={"require": True}), outcome=Outcome.UNSUPPORTED, cause=cause),
        record(case(4, "e", "e"), measured),
    ]
    (results,) = results_of([run_of(records)])
    assert results.values == {"e/rate": 1.0}
    assert results.failures == [
        Failure("a", "failed", "no such device"),
        Failure("b", "timeout", ""),
        Failure("d", "unsupported", "no such device"),
    ]


def test_cases_that_differ_in_too_much_for_a_name_carry_their_key() -> None:
    settings = [dict.fromkeys("wxyz", place) for place in (1, 2)]
    cases = [case(place, "gemm", "gemm", **one) for place, one in enumerate(settings)]
    records = [record(one, [Measurement.of_value(RATE, 1.0)]) for one in cases]
    alone = record(case(2, "copy", "copy"), [Measurement.of_value(RATE, 1.0)])
    (results,) = results_of([run_of([*records, alone])])
    assert list(results.values) == [*(f"gemm {one.key[:6]}/rate" for one in cases), "copy/rate"]


def test_a_case_of_ours_keeps_its_name_beside_one_of_superbench() -> None:
    ours = run_of([record(case(0, "mem-bw", "mem-bw"), [Measurement.of_value(RATE, 1.0)])])
    theirs = run_of_line("n", {"mem-bw/h2d_bw": 2.0})
    assert [list(results.values) for results in results_of([ours, theirs])] == [["mem-bw/rate"], ["mem-bw/h2d_bw"]]


def test_a_run_is_called_by_the_first_tag_that_it_alone_carries() -> None:
    def tagged(number: int, *tags: str) -> RunRecords:
        made = run_of([record(case(0, "a", "a"))], tags=list(tags))
        made.run.id = f"run-{number}"
        return made

    runs = [tagged(1, "night", "x", "y"), tagged(2, "night"), tagged(3, "z", "night"), tagged(4)]
    assert run_names(runs) == ["x", "run-2", "z", "run-4"]
    assert [results.run for results in results_of(runs)] == ["x", "run-2", "z", "run-4"]


# A line of SuperBench's results.


@pytest.mark.parametrize(
    ("code", "outcome", "kind"),
    [
        (124, Outcome.TIMEOUT, CauseKind.TIMEOUT),
        (31, Outcome.UNSUPPORTED, CauseKind.MISSING_DEPENDENCY),
        (10, Outcome.UNSUPPORTED, CauseKind.UNSUPPORTED),
        (34, Outcome.UNSUPPORTED, CauseKind.UNSUPPORTED),
        (4, Outcome.FAILED, CauseKind.ERROR),
        (-1, Outcome.FAILED, CauseKind.ERROR),
        (0, Outcome.OK, None),
        (None, Outcome.OK, None),
    ],
)
def test_how_a_benchmark_ended_is_in_its_return_code(
    code: int | None, outcome: Outcome, kind: CauseKind | None
) -> None:
    line = {"mem-bw/return_code": code, "mem-bw/h2d_bw": 20.0}
    (made,) = run_of_line("n", line).records
    assert made.outcome is outcome
    assert (made.cause.kind if made.cause else None) is kind
    assert made.is_success is (outcome is Outcome.OK)  # what it was asked to do and could not do is a failure
    failures = [] if kind is None else [Failure("mem-bw", "failed", f"return code {code}")]
    assert nodes_results("n", line).failures == failures
    (again,) = results_of([run_of_line("n", line)])
    assert [failure.case for failure in again.failures] == [failure.case for failure in failures]
    assert again.values["mem-bw/h2d_bw"] == 20.0  # what it measured before it failed counts


def test_the_first_bad_code_of_several_ranks_counts() -> None:
    line = {"a/return_code:0": 0, "a/return_code:1": 124, "a/return_code:2": 4, "a/other": 7}
    (made,) = run_of_line("n", line).records
    assert made.outcome is Outcome.TIMEOUT
    assert made.cause is not None
    assert made.cause.message == "SuperBench ended it with return code 124"
    assert [failure.message for failure in nodes_results("n", line).failures] == ["return code 124", "return code 4"]


def test_a_return_code_without_a_benchmark_is_of_the_monitor() -> None:
    line = {"return_code": 3, "gpu_power:1": 300.0}
    assert nodes_results("n", line).failures == [Failure("return_code", "failed", "return code 3")]
    (results,) = results_of([run_of_line("n", line)])
    assert [failure.case for failure in results.failures] == ["monitor"]
    assert results.values == {"return_code": 3.0, "gpu_power:1": 300.0}


def test_a_line_becomes_records_of_single_values() -> None:
    made = run_of_line("n7", {"a:note/m/x_bw:3": 2.5, "a:note/m/y": None, "b/z": 1, "gpu_power": 5}, "some/file")
    first, second, third = made.records
    assert [one.case.title for one in made.records] == ["a m note", "b", "monitor"]
    assert [one.case.index for one in made.records] == [0, 1, 2]
    assert [one.case.parameters for one in made.records] == [{"note": "note", "model": "m"}, {}, {}]
    assert made.run.cases == [one.case for one in made.records]
    assert (made.run.id, made.run.environment.host_name, made.run.status) == ("superbench-n7", "n7", "finished")
    assert (first.seconds, first.cause, first.run_id) == (0.0, None, "superbench-n7")
    assert first.started_at.timestamp() == 0.0
    assert all(is_original(one) for one in made.records)
    assert [one.aliases[SUPERBENCH].group for one in made.records] == ["a:note/m", "b", ""]
    (measured,) = first.measurements
    assert (measured.metric.name, measured.scope, measured.value, measured.samples) == ("x_bw", "rank 3", 2.5, [2.5])
    assert measured.summary == Summary(
        count=1, effective_count=1.0, mean=2.5, median=2.5, minimum=2.5, maximum=2.5, deviation=0.0,
        mean_interval=None, median_interval=None, percentiles={}, outliers=0,
    )  # fmt: skip
    assert [one.measurements[0].scope for one in (second, third)] == ["", ""]
    assert made.run.environment.model_dump()["source"] == "some/file"
    assert "source" not in run_of_line("n7", {"b/z": 1}).run.environment.model_dump()


def test_of_superbenchs_metrics_those_with_a_direction_lead() -> None:
    line = {"mem-bw/h2d_bw:0": 1.0, "mem-bw/d2h_bw:1": 1.0, "mem-bw/return_code": 0, "odd/thing": 1.0}
    expected = {"mem-bw/h2d_bw:0": True, "mem-bw/d2h_bw:1": True, "mem-bw/return_code": False, "odd/thing": False}
    direct = nodes_results("n", line)
    (through_records,) = results_of([run_of_line("n", line)])
    for results in (direct, through_records):
        assert {name: column.leads for name, column in results.columns.items()} == expected
        assert results.values == line
    assert direct.environment.host == through_records.environment.host == "n"


def test_values_that_are_no_finite_number_were_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    no_numbers = '"x/t": 1.797e308, "x/u": Infinity, "x/v": -Infinity, "x/z": false'
    path.write_text(f'{{"node": "a", "x/w": 3, "x/y": 2.5, {no_numbers}}}')
    (results,) = read_nodes(path)
    assert {name for name, value in results.values.items() if math.isnan(value)} == {"x/u", "x/v", "x/z"}
    for parts in ([results], [results, replace(results, node="b"), results]):  # the middle of several runs of a host
        table = assemble(parts)
        names = {column.name for place, column in enumerate(table.columns) if table.present[:, place].any()}
        assert names == {"x/w", "x/y"}, "x/t is what a program writes that measured nothing"
    assert (results.node, results.values["x/w"], results.values["x/y"]) == ("a", 3.0, 2.5)
    assert results.values.keys() == {"x/t", "x/u", "x/v", "x/w", "x/y", "x/z"}  # the node is no metric


def test_empty_lines_are_passed_over_but_counted(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    line = '{"node": "a", "x/u": 1}'
    path.write_text(f"\n{line}\n  \n{line.replace('a', 'b')}\n\n")
    assert [results.node for results in read_nodes(path)] == ["a", "b"]
    path.write_text(f"\n{line}\n  \n{{}}\n\n")
    with refused("no-metrics", where=f"line 4 of '{path}'"):
        read_nodes(path)


def test_a_folder_is_read_by_its_whole_file_where_it_has_one(tmp_path: Path) -> None:
    with refused("missing-file", value=str(tmp_path)):
        read_nodes(tmp_path)
    for node in ("n2", "n1"):
        folder = tmp_path / "nodes" / node
        folder.mkdir(parents=True)
        (folder / "results-summary.json").write_text(json.dumps({"a/b": 1}))
    assert [results.node for results in read_nodes(tmp_path)] == ["n1", "n2"]
    assert [run.run.environment.host for run in read_results(tmp_path)] == ["n1", "n2"]
    (tmp_path / "results-summary.jsonl").write_text('{"node": "whole", "a/b": 1}\n')
    assert [results.node for results in read_nodes(tmp_path)] == ["whole"]
