"""Our own rules over our own records: who is defective, why, and the warnings."""

from __future__ import annotations

import pytest

from paceline.analysis import baseline as baselines
from paceline.analysis.diagnose.judge import Diagnosis, State, diagnose
from paceline.analysis.diagnose.rules import default_rules, rules_from_text
from paceline.analysis.diagnose.superbench import nodes_results
from paceline.analysis.diagnose.table import NodeTable, assemble, results_of
from paceline.core.metric import Better, Metric
from paceline.core.record import Cause, CauseKind, Measurement, Outcome
from paceline.core.run import RunRecords
from support.records import case, record, run_of
from support.refused import refused

RATE = Metric(name="compute_rate", unit="FLOP/s", better=Better.HIGHER)
LATENCY = Metric(name="latency", unit="s", better=Better.LOWER)
MEMORY = Metric(name="peak_memory", unit="B", better=Better.LOWER)


def node(
    name: str, rate: float, latency: float = 1e-6, *, broken: bool = False, tags: tuple[str, ...] = ()
) -> RunRecords:
    """A node with two cases; a broken one could not measure the second."""
    gemm = record(
        case(0, "gemm", "gemm fp32 4096", size=4096),
        [Measurement.of_value(RATE, rate), Measurement.of_value(MEMORY, 1e9 * rate)],
    )
    launch = case(1, "kernel-launch", "kernel-launch")
    second = record(launch, [Measurement.of_value(LATENCY, latency)])
    if broken:
        cause = Cause(kind=CauseKind.ERROR, message="no such device")
        second = record(launch, outcome=Outcome.FAILED, cause=cause)
    made = run_of([gemm, second], environment={"host": name, "kernel": "6.8" if broken else "6.1"}, tags=list(tags))
    made.run.id = f"run-{name}-{rate:g}"
    return made


def judged(*runs: RunRecords, rules: str = "") -> Diagnosis:
    return diagnose(assemble(results_of(runs)), rules_from_text(rules, "rules.yaml") if rules else default_rules())


def good(count: int) -> list[RunRecords]:
    return [node(f"good-{place}", 100.0 + 0.1 * place) for place in range(count)]


def test_a_slow_node_is_found_among_the_others() -> None:
    found = judged(*good(6), node("slow", 90.0))
    assert [verdict.node for verdict in found.defective] == ["slow"]
    (reason,) = found.defective[0].findings
    assert (reason.metric, reason.category, reason.unit) == ("gemm fp32 4096/compute_rate", "Performance", "FLOP/s")
    assert (reason.value, reason.baseline) == (90.0, pytest.approx(100.25))
    assert reason.change == pytest.approx(-0.1022, abs=1e-4)
    assert found.verdicts[0].node == "slow"  # defective nodes come first


def test_only_the_bad_direction_counts() -> None:
    found = judged(*good(6), node("fast", 120.0, latency=0.5e-6), node("late", 100.0, latency=1.2e-6))
    assert [verdict.node for verdict in found.defective] == ["late"]


def test_by_default_only_what_leads_a_case_is_judged() -> None:
    found = judged(*good(6))
    assert {one.column.name for one in found.judged} == {"gemm fp32 4096/compute_rate", "kernel-launch/latency"}


def test_a_failed_case_is_told_once_with_its_cause() -> None:
    found = judged(*good(4), node("broken", 100.0, broken=True))
    (reason,) = found.defective[0].findings
    assert (reason.category, reason.metric, reason.text) == ("FailedTest", "kernel-launch", "failed: no such device")


def test_a_metric_that_most_nodes_have_must_not_be_missing() -> None:
    short = node("short", 100.0)
    short.records.pop()
    (verdict,) = judged(*good(4), short).defective
    assert [(one.kind, one.category, one.metric) for one in verdict.findings] == [
        ("missing", "FailedTest", "kernel-launch/latency")
    ]
    more = judged(short, *(node(f"n{place}", 100.0) for place in range(1)), *_short(4))
    assert not more.defective  # what one node measured beyond the others is no lack of theirs


def _short(count: int) -> list[RunRecords]:
    made = [node(f"short-{place}", 100.0) for place in range(count)]
    for run in made:
        run.records.pop()
    return made


def test_what_a_machine_cannot_do_is_no_failure_but_is_missing() -> None:
    unable = node("unable", 100.0)
    cause = Cause(kind=CauseKind.UNSUPPORTED, message="no GPU")
    unable.records[1] = record(unable.records[1].case, outcome=Outcome.UNSUPPORTED, cause=cause)
    (verdict,) = judged(*good(4), unable).defective
    assert [finding.kind for finding in verdict.findings] == ["missing"]


def test_several_runs_of_a_host_are_one_node() -> None:
    found = judged(*good(4), node("twice", 80.0), node("twice", 120.0))
    assert len(found.verdicts) == 5
    assert not found.defective  # their median is 100


def test_runs_of_a_single_host_are_judged_one_by_one() -> None:
    found = judged(*(node("host", 100.0 + place, tags=(f"day-{place}",)) for place in range(5)), node("host", 80.0))
    assert [verdict.node for verdict in found.defective] == ["run-host-80"]
    assert {verdict.node for verdict in found.verdicts} >= {"day-0", "day-4"}
    assert "one host" in {caveat.kind for caveat in found.caveats}


def test_one_node_alone_needs_a_baseline() -> None:
    with refused("one-node-alone", value="alone"):
        judged(node("alone", 100.0))
    made = baselines.make_baseline(assemble(results_of(good(6))))
    table = assemble(results_of([node("alone", 90.0)]))
    assert [verdict.node for verdict in diagnose(table, default_rules(), made).defective] == ["alone"]


def test_of_two_nodes_the_worse_one_is_found_with_a_warning() -> None:
    found = judged(node("a", 100.0), node("b", 94.0))
    assert [verdict.node for verdict in found.defective] == ["b"]  # its own vote would have made it 3 %
    assert [caveat.kind for caveat in found.caveats] == ["few nodes"]


def test_a_limit_within_the_noise_is_warned() -> None:
    rates = (90.0, 95.0, 100.0, 105.0, 110.0, 100.0, 92.0)
    found = judged(*(node(f"n{place}", rate) for place, rate in enumerate(rates)))
    assert "wide spread" in {caveat.kind for caveat in found.caveats}
    assert "wide spread" not in {caveat.kind for caveat in judged(*good(6)).caveats}


RULES = """
rules:
  slow: {check: variance, worse_by: 5%, metrics: ["gemm .*/compute_rate"], store: true}
  late: {check: value, when: x > 1.1e-6, metrics: ["launch/latency"], store: true}
  both: {check: multi, when: 'rules["slow"] + rules["late"] >= 2', category: Twice}
"""


def test_a_rule_over_rules() -> None:
    found = judged(*good(5), node("slow", 90.0), node("late", 100.0, 1.2e-6), node("both", 90.0, 1.2e-6), rules=RULES)
    assert [(verdict.node, verdict.categories) for verdict in found.defective] == [("both", ("Twice",))]
    assert {finding.rule for finding in found.defective[0].findings} == {"slow", "late", "both"}
    assert {verdict.state for verdict in found.verdicts[1:]} == {State.HEALTHY}


def test_what_could_not_be_judged_is_told() -> None:
    rules = """
rules:
  a: {check: variance, worse_by: 5%, metrics: [".*peak_memory", "nothing/.*"]}
  b: {check: value, when: 1 / (x - x) > 0, metrics: [".*latency"]}
  c: {check: variance, worse_by: 1%, metrics: ["mystery/.*"]}
"""
    found = judged(*good(5), rules=rules)
    kinds = {caveat.kind: caveat.message for caveat in found.caveats}
    assert kinds.keys() == {"no match", "no answer"}
    assert "nothing/.*" in kinds["no match"]
    assert "divides by zero" in kinds["no answer"]


def test_a_metric_whose_direction_nobody_knows_is_told() -> None:
    parts = [nodes_results(f"n{place}", {"mystery/x": 1.0 + place, "mem-bw/h2d_bw": 1.0}) for place in range(5)]
    rules = rules_from_text("rules: {c: {check: variance, worse_by: 1%, metrics: ['.*']}}", "r")
    found = diagnose(assemble(parts), rules)
    assert not found.defective
    assert "mystery/x" in next(caveat.message for caveat in found.caveats if caveat.kind == "no direction")


def test_rules_that_look_at_nothing_are_refused() -> None:
    with refused("no-metric-matched", value="rules"):
        judged(*good(3), rules="rules: {a: {check: value, when: x > 0, metrics: ['nothing']}}")


def test_cases_with_the_same_title_stay_apart() -> None:
    runs = []
    for place in range(3):
        one = record(case(0, "gemm", "gemm", size=1), [Measurement.of_value(RATE, 1.0)])
        two = record(case(1, "gemm", "gemm", size=2), [Measurement.of_value(RATE, 100.0)])
        runs.append(run_of([one, two] if place else [two, one], environment={"host": f"n{place}"}))
    table: NodeTable = assemble(results_of(runs))
    assert len(table.columns) == 2
    assert (table.values == table.values[0]).all()


def test_what_differs_between_nodes_is_told() -> None:
    table = assemble(results_of([*good(2), node("broken", 1.0, broken=True)]))
    assert table.differences() == {"kernel": {"6.1": ["good-0", "good-1"], "6.8": ["broken"]}}
