"""Runs of a suite as checks of nodes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from paceline.analysis.baseline import make_baseline
from paceline.analysis.diagnose.early import DefectRules
from paceline.analysis.diagnose.rules import default_rules, rules_from_text
from paceline.analysis.diagnose.table import assemble, results_of
from paceline.analysis.select import history_of, judge_round, learn, rounds_of
from paceline.core.metric import Better, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome, Record, RecordWarning
from paceline.core.run import RunRecords
from support.records import STARTED, case, record, run_of

RATE = Metric(name="compute_rate", unit="FLOP/s", better=Better.HIGHER)
FAILED: dict[str, Any] = {"outcome": Outcome.FAILED, "cause": Cause(kind=CauseKind.ERROR, message="wrong result")}


def measured(place: int, benchmark: str, value: float = 1e12, **more: Any) -> Record:
    return record(case(place, benchmark, "fp32"), [Measurement.of_value(RATE, value)], **more)


def run(host: str, day: float, *records: Record, name: str = "node-check", **more: Any) -> RunRecords:
    begun = STARTED + timedelta(days=day)
    ended = begun + timedelta(minutes=5)
    values = {"name": name, "environment": {"host": host}, "started_at": begun, "ended_at": ended} | more
    made = run_of(list(records), **values)
    made.run.id = f"{name}-{host}-{day}"
    return made


def rounds(*runs: RunRecords) -> list[tuple[list[str], list[str]]]:
    """The runs that are judged, and those that they are compared with, of each round."""
    found = rounds_of([one.run for one in runs], "node-check")
    return [([run.id for run in one.runs], [run.id for run in one.others]) for one in found]


def test_a_round_has_each_node_once_within_a_day() -> None:
    runs = [run(host, day, measured(0, "gemm")) for day in (0.0, 0.1, 9.0) for host in ("a", "b")]
    runs.append(run("a", 9.0, name="mine"))
    assert [ids for ids, _ in rounds(*runs)] == [
        [f"node-check-{host}-{day}" for host in ("a", "b")] for day in (0.0, 0.1, 9.0)
    ]


def test_all_that_was_selected_on_one_day_is_one_round() -> None:
    sets = {"a": 1, "b": 1, "c": 2, "d": 3}
    runs = [run(host, 0.1 * number, name=f"node-check select {number}") for host, number in sets.items()]
    (ids, others), *rest = rounds(*runs)
    assert len(ids) == 4 and not others and not rest


def test_nodes_that_measure_twice_in_a_row_make_two_rounds() -> None:
    runs = [run(host, 0.1 * place + 0.01 * again) for place, host in enumerate("abcd") for again in (0, 1)]
    assert [len(ids) for ids, _ in rounds(*runs)] == [4, 4]


def test_a_round_is_compared_with_the_latest_of_many_others() -> None:
    whole = [run(f"n{place}", 0.001 * place) for place in range(100)]
    ids, others = rounds(*whole, run("n99", 0.2))[-1]
    assert ids == ["node-check-n99-0.2"]
    assert others == [one.run.id for one in whole[35:99]]


def test_what_no_rule_looks_at_is_no_proof_of_health() -> None:
    rules = rules_from_text("rules: {products: {check: outlier, metrics: ['^gemm']}}", "rules.yaml")
    both = [run(f"n{place}", 0.0, measured(0, "gemm"), measured(1, "copy")) for place in range(8)]
    assert {check.judged for check in judge_round(both, DefectRules(rules))} == {frozenset({"gemm"})}
    copies = [run(f"n{place}", 0.0, measured(0, "copy")) for place in range(8)]
    assert {check.judged for check in judge_round(copies, DefectRules(rules))} == {frozenset()}


def test_a_node_that_is_checked_again_is_compared_with_the_others_of_that_day() -> None:
    whole = [run(host, 0.0) for host in ("a", "b", "c")]
    ids, others = rounds(*whole, run("b", 0.4, name="node-check select 1"))[-1]
    assert (ids, others) == (["node-check select 1-b-0.4"], ["node-check-a-0.0", "node-check-c-0.0"])
    assert rounds(*whole, run("b", 1.1, name="node-check select 1"))[-1][1] == [], "a day later they say nothing"


def test_a_benchmark_is_judged_among_the_nodes_that_were_asked_for_it() -> None:
    """Four nodes were asked for the copy, one of them for gemm as well, and two others for gemm alone."""
    copies = [measured(1, "copy", 1e12 * value) for value in (1.0, 1.001, 0.7, 0.999)]
    runs = [run(f"n{place}", 0.0, one, name="node-check select 1") for place, one in enumerate(copies[:3])]
    runs.append(run("n3", 0.0, copies[3], measured(0, "gemm"), name="node-check select 2"))
    runs += [run(f"n{place}", 0.0, measured(0, "gemm"), name="node-check select 3") for place in (4, 5)]
    checks = {check.node: check for check in judge_round(runs, DefectRules(default_rules()))}
    assert {node: set(check.found) for node, check in checks.items() if check.found} == {"n2": {"copy"}}
    assert checks["n0"].judged == {"copy"} and checks["n3"].judged == {"copy", "gemm"}
    assert checks["n5"].judged == {"gemm"}


def test_a_node_is_judged_by_others_that_are_not_judged_again() -> None:
    others = [run(f"n{place}", 0.0, measured(0, "gemm"), measured(1, "copy")) for place in range(5)]
    again = run("n9", 0.3, measured(0, "gemm", 5e11), name="node-check select 1")
    (check,) = judge_round([again], DefectRules(default_rules()), others)
    assert (check.node, check.found, check.judged) == ("n9", {"gemm"}, {"gemm"})


def test_a_check_that_was_interrupted_lacks_nothing() -> None:
    """It was asked for two sizes and measured one."""
    small = [measured(0, "gemm") for _ in range(4)]
    large = [record(case(1, "gemm", "large", size=8192), [Measurement.of_value(RATE, 2e12)]) for _ in range(4)]
    runs = [run(f"n{place}", 0.0, *both) for place, both in enumerate(zip(small[:3], large[:3], strict=True))]
    runs.append(run("n3", 0.0, small[3], not_run=[large[3].case], status="interrupted"))
    assert {check.node: check.found for check in judge_round(runs, DefectRules(default_rules())) if check.found} == {}
    runs[3].run.cases.pop()
    found = {check.node: check.found for check in judge_round(runs, DefectRules(default_rules())) if check.found}
    assert found == {"n3": {"gemm"}}, "a node that has less than the others lacks it"


def test_nodes_are_judged_by_each_other_and_by_what_failed() -> None:
    usual = [1.0, 1.001, 0.999, 1.002, 0.8, 1.0]
    runs = [
        run(f"n{place}", 0.0, measured(0, "gemm", 1e12 * value), measured(1, "copy"), measured(2, "disk", **bad))
        for place, value in enumerate(usual)
        for bad in [FAILED if place == 1 else dict[str, Any]()]
    ]
    checks = {check.node: check for check in judge_round(runs, DefectRules(default_rules()))}
    assert {node: set(check.found) for node, check in checks.items() if check.found} == {"n4": {"gemm"}, "n1": {"disk"}}
    assert checks["n0"].seconds == {name: pytest.approx(21.4) for name in ("gemm", "copy", "disk")}


def test_few_nodes_are_not_judged_by_each_other_but_failures_count() -> None:
    runs = [
        run("a", 0.0, measured(0, "gemm", 1e12)),
        run("b", 0.0, measured(0, "gemm", 1e9), measured(1, "copy", **FAILED)),
    ]
    found = {check.node: check.found for check in judge_round(runs, DefectRules(default_rules()))}
    assert found == {"a": frozenset(), "b": {"copy"}}


def test_only_what_could_have_accused_a_node_is_judged() -> None:
    """Three nodes ran gemm, two of them copy, and one the disk, which failed there."""
    others = ([measured(1, "copy")], [measured(1, "copy")], [measured(2, "disk", **FAILED)])
    runs = [run(f"n{place}", 0.0, measured(0, "gemm"), *more) for place, more in enumerate(others)]
    judged = {check.node: check.judged for check in judge_round(runs, DefectRules(default_rules()))}
    assert judged == {"n0": {"gemm"}, "n1": {"gemm"}, "n2": {"gemm", "disk"}}


def test_one_node_is_judged_by_a_baseline_where_that_has_a_figure() -> None:
    baseline = make_baseline(assemble(results_of([run("good", 0.0, measured(0, "gemm"))])))
    alone = run("a", 0.0, measured(0, "gemm"), measured(1, "copy"), record(case(2, "answers", "all")))
    rules = default_rules()
    (by_baseline,), (by_nobody,) = (judge_round([alone], DefectRules(rules, one)) for one in (baseline, None))
    assert by_baseline.judged == {"gemm", "answers"}, "what measures nothing says by its outcome all that it says"
    assert by_nobody.judged == {"answers"}


def test_a_check_that_nobody_could_judge_is_no_proof_of_health() -> None:
    """Each of six nodes is checked with the others, and then one of them four times alone, at half of its speed."""
    together = [run(f"n{place}", 0.0, measured(0, "gemm")) for place in range(6)]
    alone = [[run("n3", float(day), measured(0, "gemm", 5e11))] for day in (4, 5, 6, 7)]
    checks = [check for one in (together, *alone) for check in judge_round(one, DefectRules(default_rules()))]
    now = STARTED + timedelta(days=8)
    history = history_of(checks, [], {"gemm": 9.0}, now)
    assert history.checks.node.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.ptp(learn(history).probability) < 1e-9
    assert history.minutes == pytest.approx([21.4 / 60]), "what it takes is known all the same"


def test_a_history_has_minutes_what_is_possible_and_events() -> None:
    warning = RecordWarning(kind="throttled", message="hot", remedy="cool it")
    cannot: dict[str, Any] = {
        "outcome": Outcome.UNSUPPORTED,
        "cause": Cause(kind=CauseKind.UNSUPPORTED, message="no NIC"),
    }
    first = run("a", 0.0, measured(0, "gemm", warnings=[warning]), measured(1, "rdma", **cannot))
    runs = [first, run("b", 1.0, measured(0, "gemm"), measured(1, "gemm"))]
    baseline = make_baseline(assemble(results_of([runs[1]])))
    checks = [check for one in runs for check in judge_round([one], DefectRules(default_rules(), baseline))]
    now = STARTED + timedelta(days=10)
    lost = [("b", STARTED + timedelta(days=4)), ("unknown", STARTED)]
    history = history_of(checks, lost, {"gemm": 9.0, "rdma": 2.0}, now)
    assert (history.nodes, history.benchmarks) == (("a", "b"), ("gemm", "rdma"))
    assert history.minutes == pytest.approx([1.5 * 21.4 / 60, 2.0])  # the median of one and two cases, and the guess
    assert history.possible.tolist() == [[True, False], [True, True]]
    assert history.now == pytest.approx(10.0)
    assert history.checks.incident.tolist() == [False, False, True]
    assert (history.event_node.tolist(), bool(history.event_day[0] > 0)) == ([0], True)
    assert np.all(history.first_seen == [0.0, 1.0])
