"""SuperBench's published examples give the defects and categories that SuperBench finds, without its known mistakes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis import baseline as baselines
from paceline.analysis.baseline import Baseline, Reference
from paceline.analysis.diagnose.judge import Diagnosis, NodeVerdict, State, diagnose
from paceline.analysis.diagnose.rules import read_rules, rules_from_text
from paceline.analysis.diagnose.superbench import nodes_results, read_nodes
from paceline.analysis.diagnose.table import assemble
from support.refused import refused

DATA = Path(__file__).parents[2] / "data" / "superbench"
NAN = None  # how a metric that a node lacks is written below


def judged(
    nodes: dict[str, dict[str, Any]], rules: dict[str, Any], baseline: dict[str, float]
) -> dict[str, NodeVerdict]:
    """SuperBench's verdict on literal results, by node."""
    return {verdict.node: verdict for verdict in diagnosis(nodes, rules, baseline).verdicts}


def diagnosis(nodes: dict[str, dict[str, Any]], rules: dict[str, Any], baseline: dict[str, float]) -> Diagnosis:
    table = assemble([nodes_results(node, values) for node, values in nodes.items()])
    found = rules_from_text(json.dumps({"version": "v0.12", "superbench": {"rules": rules}}), "rules.yaml")
    references = {name: Reference(value=value) for name, value in baseline.items()}
    return diagnose(table, found, Baseline(names="superbench", metrics=references))


def details(verdict: NodeVerdict) -> set[tuple[str, str]]:
    return {(finding.metric, finding.kind) for finding in verdict.findings}


# The example of SuperBench's own tests of a diagnosis: three nodes of eight GPUs.
EVENT = [0.00595, 0.00595, 0.00557, 0.0055, 0.00592, 0.00589, 0.00572, 0.0059]
WALL = [0.01026, 0.01026, 0.01046, 0.01049, 0.01063, 0.01006, 0.01045, 0.01071]
H2D = [25.6, 25.8, 26.0, 26.1, 26.2, 25.8, 25.3, 26.1]
D2H = [24.3, 24.6, 24.5, 24.6, 24.3, 24.3, 23.9, 24.6]


def _ranks(start: str, values: list[float]) -> dict[str, float]:
    return {f"{start}:{rank}": value for rank, value in enumerate(values)}


def _published_nodes() -> dict[str, dict[str, Any]]:
    launches = {"kernel-launch/return_code": 0} | _ranks("kernel-launch/wall_overhead", WALL)
    copies = {"mem-bw/return_code": 0} | _ranks("mem-bw/H2D_Mem_BW", H2D) | _ranks("mem-bw/D2H_Mem_BW", D2H)
    event = _ranks("kernel-launch/event_overhead", EVENT)
    return {
        "sb-validation-01": launches | event | {"kernel-launch/event_overhead:0": 0.1} | copies,
        "sb-validation-02": launches | event | copies,
        "sb-validation-03": launches | event | {"kernel-launch/event_overhead:0": 0.00596} | {"mem-bw/return_code": 1},
    }


PUBLISHED_RULES = {
    "rule0": {
        "function": "variance",
        "criteria": "lambda x:x>0.05",
        "categories": "KernelLaunch",
        "metrics": [r"kernel-launch/event_overhead:\d+", r"kernel-launch/wall_overhead:\d+"],
    },
    "rule1": {
        "function": "variance",
        "criteria": "lambda x:x<-0.05",
        "categories": "Mem",
        "metrics": [r"mem-bw/H2D_Mem_BW:\d+", r"mem-bw/D2H_Mem_BW:\d+"],
    },
    "falure_rule": {
        "function": "value",
        "criteria": "lambda x:x>0",
        "categories": "FailedTest",
        "metrics": ["kernel-launch/return_code", "mem-bw/return_code"],
    },
}
PUBLISHED_BASELINE = {
    "kernel-launch/event_overhead": 0.00596,
    "kernel-launch/wall_overhead": 0.01026,
    "kernel-launch/return_code": 0,
    "mem-bw/H2D_Mem_BW": 25.6,
    "mem-bw/D2H_Mem_BW": 24.3,
    "mem-bw/D2D_Mem_BW": 1118.0,
    "mem-bw/return_code": 0,
}


def test_the_published_diagnosis() -> None:
    found = judged(_published_nodes(), PUBLISHED_RULES, PUBLISHED_BASELINE)
    assert {node: verdict.state for node, verdict in found.items()} == {
        "sb-validation-01": State.DEFECTIVE,
        "sb-validation-02": State.HEALTHY,
        "sb-validation-03": State.DEFECTIVE,
    }
    assert found["sb-validation-01"].categories == ("KernelLaunch",)
    (reason,) = found["sb-validation-01"].findings
    assert reason.metric == "kernel-launch/event_overhead:0"
    assert (reason.baseline, reason.value) == (0.00596, 0.1)
    assert reason.change == pytest.approx(15.7785234899)
    assert reason.text == "lambda x:x>0.05"
    third = found["sb-validation-03"]
    assert third.categories == ("FailedTest",)
    missing = {(f"mem-bw/{way}_Mem_BW:{rank}", "missing") for way in ("H2D", "D2H") for rank in range(8)}
    assert details(third) == missing | {("mem-bw/return_code", "value")}


def test_the_published_diagnosis_without_a_baseline() -> None:
    rules = {
        "rule0": {**PUBLISHED_RULES["rule0"], "function": "value", "criteria": "lambda x:x>0"},
        "rule1": {"categories": "Mem", "store": True, "metrics": PUBLISHED_RULES["rule1"]["metrics"]},
        "rule2": {
            "function": "multi_rules",
            "criteria": 'lambda label: bool(min(label["rule1"].values())/max(label["rule1"].values())<0.95)',
            "categories": "Mem",
        },
    }
    found = judged(_published_nodes(), rules, {})
    assert all(verdict.state is State.DEFECTIVE for verdict in found.values())
    assert found["sb-validation-02"].categories == ("KernelLaunch", "Mem")  # 23.9 / 26.2
    assert found["sb-validation-03"].categories == ("KernelLaunch",)  # without values there is no answer


THREE_RULES: dict[str, Any] = {
    "rule1": {"categories": "CNN", "criteria": "lambda x:x<-0.5", "store": True, "function": "variance",
              "metrics": ["mem-bw/D2H_Mem_BW"]},
    "rule2": {"categories": "CNN", "criteria": "lambda x:x<-0.5", "function": "variance", "store": True,
              "metrics": ["kernel-launch/wall_overhead"]},
    "rule3": {"categories": "CNN", "function": "multi_rules",
              "criteria": 'lambda label:True if label["rule1"]+label["rule2"]>=2 else False'},
}  # fmt: skip


def test_the_published_example_of_several_rules() -> None:
    found = judged(
        {
            "sb-validation-04": {"kernel-launch/wall_overhead": 0.005, "mem-bw/D2H_Mem_BW": 25},
            "sb-validation-05": {"kernel-launch/wall_overhead": 0.005, "mem-bw/D2H_Mem_BW": 10},
        },
        THREE_RULES,
        {"kernel-launch/wall_overhead": 0.01026, "mem-bw/D2H_Mem_BW": 24.3},
    )
    assert found["sb-validation-04"].state is State.HEALTHY
    fifth = found["sb-validation-05"]
    assert (fifth.state, fifth.categories) == (State.DEFECTIVE, ("CNN",))
    assert details(fifth) == {
        ("kernel-launch/wall_overhead", "variance"),
        ("mem-bw/D2H_Mem_BW", "variance"),
        ("rule3", "multi"),
    }
    changes = {finding.metric: finding.change for finding in fifth.findings}
    assert changes["kernel-launch/wall_overhead"] == pytest.approx(-0.5127, abs=1e-4)
    assert changes["mem-bw/D2H_Mem_BW"] == pytest.approx(-0.5885, abs=1e-4)


def test_the_published_example_of_stored_values() -> None:
    runs = [f"nccl-bw:allreduce-run{index}/allreduce_1073741824_busbw" for index in range(3)]
    rules = {
        "rule1": {"categories": "NCCL_DIS", "store": True, "metrics": runs},
        "rule2": {
            "categories": "NCCL_DIS",
            "criteria": 'lambda label:True if min(label["rule1"].values())'
            '/max(label["rule1"].values())<0.95 else False',
            "function": "multi_rules",
        },
    }
    values = {"sb-validation-04": (10, 23, 22), "sb-validation-05": (22, 23, 22), "sb-validation-06": (10, NAN, NAN)}
    nodes = {node: dict(zip(runs, told, strict=True)) for node, told in values.items()}
    found = judged(nodes, rules, {})
    assert (found["sb-validation-04"].state, found["sb-validation-04"].categories) == (State.DEFECTIVE, ("NCCL_DIS",))
    assert found["sb-validation-05"].state is State.HEALTHY
    assert found["sb-validation-06"].state is State.HEALTHY


def test_the_published_example_of_failures() -> None:
    metrics = [*(f"gemm-flops/return_code:{rank}" for rank in range(3)), "resnet_models/pytorch-resnet152/return_code"]
    rule = {"categories": "FailedTest", "criteria": "lambda x:x!=0", "function": "failure_check", "metrics": metrics}
    codes = {"sb-validation-04": (0, 0, 0), "sb-validation-05": (-1, NAN, -1)}
    nodes = {node: {metrics[0]: one, metrics[1]: two, metrics[3]: three} for node, (one, two, three) in codes.items()}
    found = judged(nodes, {"rule1": rule}, {})
    fourth, fifth = found["sb-validation-04"], found["sb-validation-05"]
    assert (fourth.state, fourth.categories) == (State.DEFECTIVE, ("FailedTest",))
    assert details(fourth) == {("gemm-flops/return_code:2", "missing")}
    assert (fifth.state, fifth.categories) == (State.DEFECTIVE, ("FailedTest",))
    assert details(fifth) == {
        ("gemm-flops/return_code:0", "value"),
        ("gemm-flops/return_code:1", "missing"),
        ("gemm-flops/return_code:2", "missing"),
        ("resnet_models/pytorch-resnet152/return_code", "value"),
    }


@pytest.mark.parametrize(
    ("criteria", "values", "bad"),
    [("lambda x:x>0.5", (3.1, 2.0), {0}), ("lambda x:x<-0.5", (1.5, 1.5), set())],
)
def test_the_published_examples_of_a_change(criteria: str, values: tuple[float, float], bad: set[int]) -> None:
    rule = {
        "categories": "KernelLaunch",
        "criteria": criteria,
        "function": "variance",
        "metrics": [r"kernel-launch/event_overhead:\d"],
    }
    names = [f"kernel-launch/event_overhead:{rank}" for rank in range(2)]
    found = judged({"a": dict(zip(names, values, strict=True))}, {"r": rule}, dict.fromkeys(names, 2.0))["a"]
    assert {finding.metric for finding in found.findings} == {names[rank] for rank in bad}


BAD_RULES: list[tuple[dict[str, Any], str, str | None]] = [
    ({"criteria": "lambda x:x>0", "categories": "K", "metrics": ["kernel-launch/a"]}, "missing-key", "function"),
    ({"criteria": "lambda x:x>0", "function": "variance", "metrics": ["kernel-launch/a"]}, "missing-key", "categories"),
    ({"categories": "K", "function": "variance", "metrics": ["kernel-launch/a"]}, "missing-key", "criteria"),
    (
        {"criteria": "lambda x:x>0", "function": "abb", "categories": "K", "metrics": ["kernel-launch/a"]},
        "unknown-function",
        "function",
    ),
    ({"criteria": "lambda x:x>0", "function": "value", "categories": "K"}, "missing-key", "metrics"),
    (
        {"criteria": "x>5", "function": "value", "categories": "K", "metrics": ["kernel-launch/a"]},
        "not-a-lambda",
        "criteria",
    ),
    (
        {"criteria": "lambda x:x+1", "function": "value", "categories": "K", "metrics": ["kernel-launch/a"]},
        "not-a-condition",
        "criteria",
    ),
    (
        {"criteria": "lambda x:x>0", "categories": "K", "store": "true", "metrics": ["kernel-launch/a"]},
        "not-a-boolean",
        "store",
    ),
    ({"criteria": 'lambda label:label["rule2"]>=2', "categories": "K", "function": "multi_rules"}, "not-stored", None),
]


@pytest.mark.parametrize(("rule", "code", "key"), BAD_RULES, ids=range(len(BAD_RULES)))
def test_rules_that_superbench_refuses_are_refused(rule: dict[str, Any], code: str, key: str | None) -> None:
    with refused(code, key=key):
        rules_from_text(json.dumps({"superbench": {"rules": {"wrong": rule}}}), "rules.yaml")


def test_a_missing_metric_alone_makes_a_node_incomplete() -> None:
    """As there, only a rule of failures makes it defective; here it is told all the same."""
    nodes = {"a": {"mem-bw/h2d_bw": 26.0}, "b": {"mem-bw/h2d_bw": NAN}}
    rule = {"function": "variance", "criteria": "lambda x:x<-0.05", "categories": "Mem", "metrics": ["mem-bw/.*"]}
    found = judged(nodes, {"r": rule}, {"mem-bw/h2d_bw": 26.0})
    assert (found["b"].state, found["b"].categories) == (State.INCOMPLETE, ("FailedTest",))


def test_the_benchmark_of_a_pattern_is_no_pattern() -> None:
    nodes = {"a": {"mem-bw:numa0/h2d_bw": 1.0, "mem-bandwidth/h2d_bw": 1.0}}
    rule = {"function": "value", "criteria": "lambda x:x<5", "categories": "Mem", "metrics": ["mem-bw:.*/h2d_bw"]}
    assert details(judged(nodes, {"r": rule}, {})["a"]) == {("mem-bw:numa0/h2d_bw", "value")}


# What is known to go wrong there.


def test_a_previous_baseline_is_merged() -> None:
    table = assemble(read_nodes(DATA / "results-summary.jsonl"))
    made = baselines.make_baseline(table, names="superbench")
    previous = Baseline(names="superbench", metrics={"gemm-flops/FP32": Reference(value=18318.4)})
    merged = json.loads(baselines.as_superbench(baselines.extend(previous, made)))
    assert merged["gemm-flops/FP32"] == 18318.4
    assert merged.keys() == made.metrics.keys() | {"gemm-flops/FP32"}


def test_two_rules_of_one_category_are_both_asked() -> None:
    rules = {
        name: {"function": "value", "criteria": "lambda x:x<5", "categories": "Mem", "metrics": [f"mem-bw/{name}_bw"]}
        for name in ("h2d", "d2h")
    }
    found = judged({"a": {"mem-bw/h2d_bw": 1.0, "mem-bw/d2h_bw": 1.0}}, rules, {})["a"]
    assert {finding.rule for finding in found.findings} == {"h2d", "d2h"}
    assert found.categories == ("Mem",)


def test_metrics_without_ranks_stay_apart_in_a_baseline() -> None:
    nodes = {f"n{index}": {"mem-bw/h2d_bw": 26.0 + index, "mem-bw/d2h_bw": 20.0 + index} for index in range(3)}
    made = baselines.make_baseline(assemble([nodes_results(node, told) for node, told in nodes.items()]))
    assert {name: one.value for name, one in made.metrics.items()} == {"mem-bw/h2d_bw": 27.0, "mem-bw/d2h_bw": 21.0}


@pytest.mark.parametrize(
    ("value", "criteria", "state"),
    [
        (0.0, "lambda x:x>0.05", State.HEALTHY),
        (3.0, "lambda x:x>0.05", State.DEFECTIVE),
        (3.0, "lambda x:x<-0.05", State.HEALTHY),
        (-3.0, "lambda x:x<-0.05", State.DEFECTIVE),
        (3.0, "lambda x:x!=0", State.DEFECTIVE),
    ],
)
def test_a_baseline_of_zero_ends_nothing(value: float, criteria: str, state: State) -> None:
    rule = {"function": "variance", "criteria": criteria, "categories": "K", "metrics": ["a/.*"]}
    found = judged({"n": {"a/errors": value, "a/other": 1.0}}, {"r": rule}, {"a/errors": 0.0, "a/other": 1.0})["n"]
    assert found.state is state
    assert all(math.isinf(finding.change or 0.0) for finding in found.findings)


def test_a_metric_without_a_baseline_is_told_and_the_others_are_judged() -> None:
    rule = {"function": "variance", "criteria": "lambda x:x<-0.05", "categories": "Mem", "metrics": ["mem-bw/.*_bw"]}
    nodes = {"a": {"mem-bw/h2d_bw": 20.0, "mem-bw/d2h_bw": 20.0}}
    found = diagnosis(nodes, {"r": rule}, {"mem-bw/h2d_bw": 26.0})
    assert details(found.verdicts[0]) == {("mem-bw/h2d_bw", "variance")}
    assert [caveat.kind for caveat in found.caveats] == ["no baseline"]
    assert "mem-bw/d2h_bw" in found.caveats[0].message


def test_files_in_their_form_are_read_unmodified() -> None:
    table = assemble(read_nodes(DATA / "results-summary.jsonl"))
    found = diagnose(table, read_rules(DATA / "rules.yaml"), baselines.read_baseline(DATA / "baseline.json"))
    assert {verdict.node: verdict.categories for verdict in found.defective} == {
        "node-03": ("Mem", "MemBalance"),
        "node-06": ("FailedTest",),
    }
    assert len(found.verdicts) == 8


def _value(name: str, criteria: str, *metrics: str, **more: Any) -> dict[str, Any]:
    return {name: {"function": "value", "criteria": criteria, "categories": "K", "metrics": list(metrics)} | more}


def test_what_any_node_measured_is_expected_of_all_by_their_rules() -> None:
    nodes = {f"n{place}": {"a/x": 1.0} for place in range(5)} | {"more": {"a/x": 1.0, "a/y": 1.0}}
    states = {node: one.state for node, one in judged(nodes, _value("r", "lambda x:x>5", "a/.*"), {}).items()}
    assert states == {f"n{place}": State.INCOMPLETE for place in range(5)} | {"more": State.HEALTHY}


def test_a_pattern_for_the_name_of_a_benchmark_matches_nothing_and_the_warning_says_why() -> None:
    found = diagnosis(
        {"a": {"a/return_code": 3}, "b": {"a/return_code": 0}},
        _value("r", "lambda x:x>0", ".*/return_code", "a/x|a/r"),
        {},
    )
    (caveat,) = [one for one in found.caveats if one.kind == "no match"]
    assert caveat.message == "nothing matches the patterns r: .*/return_code"
    assert caveat.remedy.endswith("what is before the first '/' is a benchmark's name, not a pattern")


FAILURES = {"function": "failure_check", "criteria": "lambda x:x!=0", "categories": "Fail"}


def test_a_check_of_failures_tells_each_missing_metric_once_and_each_pattern_that_matches_nothing() -> None:
    nodes = {"a": {"a/return_code": 0, "a/x:1": 1.0, "a/x:0": 1.0}, "b": {"a/return_code": 2}}
    rules = _value("v", "lambda x:x>5", "a/x.*") | {"f": {**FAILURES, "metrics": ["a/return_code", "a/x.*", "gone/x"]}}
    both = judged(nodes, rules, {})
    assert [(one.rule, one.kind, one.category, one.metric, one.text, one.accuses) for one in both["b"].findings] == [
        ("f", "value", "Fail", "a/return_code", "lambda x:x!=0", True),
        ("f", "missing", "FailedTest", "a/x:0", "it is missing", True),
        ("f", "missing", "FailedTest", "a/x:1", "it is missing", True),
        ("f", "missing", "Fail", "gone/x", "no metric matches it", True),
    ]
    assert [(one.metric, one.text) for one in both["a"].findings if one.kind == "missing"] == [
        ("gone/x", "no metric matches it")
    ]


@pytest.mark.parametrize(("least", "bad"), [(1, {"b", "c", "d"}), (2, {"c", "d"}), (3, {"d"}), (4, set())])
def test_a_stored_check_of_failures_counts_bad_codes_and_patterns_without_all(least: int, bad: set[str]) -> None:
    nodes = {
        "a": {"a/return_code": 0, "b/return_code": 0, "b/x": 1.0, "b/y": 1.0},
        "b": {"a/return_code": 0, "b/return_code": 0, "b/x": NAN, "b/y": NAN},
        "c": {"a/return_code": 3, "b/return_code": 0, "b/x": 0.0, "b/y": NAN},
        "d": {"a/return_code": 3, "b/return_code": 4, "b/x": 0.0, "b/y": NAN},
    }
    rules = {
        "f": {**FAILURES, "store": True, "metrics": ["a/return_code", "b/return_code", "b/[xy]"],
              "criteria": "lambda x:x>1"},
        "m": {"function": "multi_rules", "criteria": f'lambda label:label["f"]>={least}', "categories": "M"},
    }  # fmt: skip
    verdicts = judged(nodes, rules, {})
    assert {node for node, one in verdicts.items() if one.state is State.DEFECTIVE} == bad
    assert all(one.categories == ("FailedTest", "M") for node, one in verdicts.items() if node in bad)
    assert verdicts["a"].findings == ()
    assert verdicts["b"].state in (State.INCOMPLETE, State.DEFECTIVE)
    assert not any(one.accuses for one in verdicts["b"].findings if one.kind == "missing")
