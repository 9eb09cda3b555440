"""Our own rules over our own records: who is defective, why, and the warnings."""

from __future__ import annotations

import pytest

from paceline.analysis import baseline as baselines
from paceline.analysis.diagnose.judge import Diagnosis, Kind, NodeFinding, NodeVerdict, State, diagnose
from paceline.analysis.diagnose.rules import default_rules, rules_from_text
from paceline.analysis.diagnose.superbench import nodes_results
from paceline.analysis.diagnose.table import Failure, MetricColumn, NodeResults, NodeTable, assemble, results_of
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
    assert (reason.metric, reason.category, reason.unit) == ("gemm fp32 4096/compute_rate", "gemm", "FLOP/s")
    assert (reason.value, reason.baseline) == (90.0, pytest.approx(100.25))
    assert reason.change == pytest.approx(-0.1022, abs=1e-4)
    assert found.verdicts[0].node == "slow"  # defective nodes come first


def test_only_the_bad_direction_counts() -> None:
    found = judged(*good(6), node("fast", 120.0), node("late", 100.0, latency=1.2e-6))
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
    days = [node("host", 100.0 + 0.2 * place, tags=(f"day-{place}",)) for place in range(5)]
    found = judged(*days, node("host", 80.0))
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
    rules = "rules: {slow: {check: variance, worse_by: 5%}}"
    found = judged(*(node(f"n{place}", rate) for place, rate in enumerate(rates)), rules=rules)
    assert "wide spread" in {caveat.kind for caveat in found.caveats}
    assert "wide spread" not in {caveat.kind for caveat in judged(*good(6), rules=rules).caveats}


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


# Tables whose numbers can be checked by eye.

UP = MetricColumn("a/up", "B/s", Better.HIGHER)
DOWN = MetricColumn("a/down", "s", Better.LOWER)
FREE = MetricColumn("b/free", "W", Better.NEITHER)
NAN = float("nan")


def table_of(
    nodes: dict[str, list[float]], columns: list[MetricColumn], failures: dict[str, list[Failure]] | None = None
) -> NodeTable:
    by_name = {column.name: column for column in columns}
    return assemble(
        [
            NodeResults(name, dict(zip(by_name, values, strict=True)), by_name, (failures or {}).get(name, []))
            for name, values in nodes.items()
        ]
    )


def ask(
    rules: str,
    nodes: dict[str, list[float]],
    *columns: MetricColumn,
    baseline: dict[str, float] | None = None,
    failures: dict[str, list[Failure]] | None = None,
) -> Diagnosis:
    """The verdict of these rules, written as the inside of `rules`."""
    references = {name: baselines.Reference(value=value) for name, value in (baseline or {}).items()}
    return diagnose(
        table_of(nodes, list(columns), failures),
        rules_from_text(f"rules: {{{rules}}}", "rules.yaml"),
        baselines.Baseline(metrics=references) if baseline is not None else None,
    )


def verdicts(diagnosis: Diagnosis) -> dict[str, NodeVerdict]:
    return {verdict.node: verdict for verdict in diagnosis.verdicts}


def caveats(diagnosis: Diagnosis) -> dict[str, str]:
    return {caveat.kind: caveat.message for caveat in diagnosis.caveats}


SLOW = "slow: {check: variance, worse_by: 5%}"


@pytest.mark.parametrize(
    ("column", "value", "is_bad"),
    [
        (UP, 95.0, False),
        (UP, 94.9, True),
        (UP, 105.1, False),
        (DOWN, 105.0, False),
        (DOWN, 105.1, True),
        (DOWN, 94.9, False),
    ],
)
def test_worse_by_exactly_the_limit_is_not_worse(column: MetricColumn, value: float, is_bad: bool) -> None:
    diagnosis = ask(SLOW, {"n": [value]}, column, baseline={column.name: 100.0})
    assert bool(diagnosis.defective) is is_bad
    (judged_metric,) = diagnosis.judged
    assert (judged_metric.column, judged_metric.baseline, judged_metric.rule.name) == (column, 100.0, "slow")
    assert judged_metric.changes.tolist() == [pytest.approx((value - 100.0) / 100.0)]


def test_a_finding_of_a_change_has_its_baseline_and_one_of_a_value_has_none() -> None:
    rules = "slow: {check: variance, worse_by: 5%, category: P}, hot: {check: value, when: x > 90, metrics: [b/.*]}"
    diagnosis = ask(rules, {"n": [80.0, 95.0]}, UP, FREE, baseline={"a/up": 100.0})
    assert diagnosis.verdicts[0].findings == (
        NodeFinding(
            "slow", "variance", "P", "a/up", "worse by more than 5 %", "B/s", 80.0, 100.0, pytest.approx(-0.2), True
        ),
        NodeFinding("hot", "value", "hot", "b/free", "x > 90", "W", 95.0, None, None, True),
    )
    assert diagnosis.verdicts[0].categories == ("P", "hot")


def test_accusations_are_what_failed_then_the_worst_change_then_what_is_missing() -> None:
    def finding(kind: Kind, metric: str, change: float | None = None, *, accuses: bool = True) -> NodeFinding:
        return NodeFinding("r", kind, "" if metric == "b" else "K", metric, "", change=change, accuses=accuses)

    verdict = NodeVerdict(
        "n",
        State.DEFECTIVE,
        (
            finding("missing", "g"),
            finding("value", "f"),
            finding("variance", "e", 0.1),
            finding("variance", "d", -0.5),
            finding("variance", "x", 0.9, accuses=False),
            finding("multi", "b"),
            finding("failure", "a"),
        ),
    )
    assert [one.metric for one in verdict.accusations] == ["a", "b", "d", "e", "f", "g"]
    assert verdict.categories == ("K",)


def test_defective_nodes_come_first_the_worst_before_the_others_and_names_by_their_numbers() -> None:
    nodes = {f"node-{number}": [100.0, 1.0] for number in (10, 9, 2)}
    nodes |= {
        "0x": [100.0, 1.0],
        "bad-1": [80.0, 1.0],
        "bad-2": [80.0, 2.0],
        "short": [NAN, 1.0],
        "bad-10": [80.0, 1.0],
    }
    rules = f"kept: {{check: variance, worse_by: 1%, store: true, metrics: [a/up]}}, {SLOW}"
    diagnosis = ask(rules, nodes, UP, DOWN)
    order = ["bad-2", "bad-1", "bad-10", "short", "node-2", "node-9", "node-10", "0x"]
    assert [verdict.node for verdict in diagnosis.verdicts] == order
    assert [verdict.node for verdict in diagnosis.defective] == order[:4]


def test_a_rule_that_stores_does_not_hide_a_lack_from_a_later_one() -> None:
    nodes = {"whole": [100.0], "other": [100.0], "short": [NAN]}
    stored = "s: {check: value, when: x > 5, metrics: ['.*'], store: true}"
    assert verdicts(ask(stored, nodes, UP))["short"].state is State.INCOMPLETE
    for later in (SLOW, "f: {check: failure}", "hot: {check: value, when: x > 500}", "odd: {check: outlier}"):
        short = verdicts(ask(f"{stored}, {later}", nodes, UP))["short"]
        assert short.state is State.DEFECTIVE
        assert [(one.kind, one.metric, one.accuses) for one in short.findings] == [("missing", "a/up", True)]


def test_what_half_of_the_nodes_have_is_expected_of_all() -> None:
    rules = f"{SLOW}, failed: {{check: failure}}"
    half = ask(rules, {"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [1.0, NAN], "d": [1.0, NAN]}, UP, DOWN)
    assert [verdict.node for verdict in half.defective] == ["c", "d"]
    assert [(one.metric, one.text, one.rule) for one in half.defective[0].findings] == [
        ("a/down", "it is missing", "slow")
    ]
    fewer = ask(rules, {"a": [1.0, 1.0], "b": [1.0, 1.0], **{name: [1.0, NAN] for name in "cde"}}, UP, DOWN)
    assert not fewer.defective
    assert {verdict.state for verdict in fewer.verdicts} == {State.HEALTHY}


def test_a_stored_rule_makes_a_node_that_lacks_its_metric_incomplete() -> None:
    rules = "s: {check: value, when: x > 5, metrics: ['.*'], store: true}"
    lacking = verdicts(ask(rules, {"a": [9.0, 1.0], "b": [9.0, NAN], "c": [1.0, 1.0]}, UP, DOWN))
    assert {name: verdict.state for name, verdict in lacking.items()} == {
        "a": State.HEALTHY,
        "b": State.INCOMPLETE,
        "c": State.HEALTHY,
    }
    assert [(one.kind, one.category, one.accuses) for one in lacking["b"].findings] == [
        ("missing", "FailedTest", False),
        ("value", "", False),
    ]


def test_one_node_alone_can_be_judged_by_its_values() -> None:
    diagnosis = ask("hot: {check: value, when: x > 5}", {"n": [9.0]}, UP)
    assert [verdict.node for verdict in diagnosis.defective] == ["n"]
    assert diagnosis.caveats == ()
    assert diagnosis.judged == ()
    with refused("one-node-alone"):
        ask(f"hot: {{check: value, when: x > 5}}, {SLOW}", {"n": [9.0]}, UP)


@pytest.mark.parametrize(("count", "words"), [(2, "one other"), (3, "2 others"), (4, "3 others"), (5, "")])
def test_fewer_than_five_nodes_are_few(count: int, words: str) -> None:
    nodes = {f"n{place}": [100.0] for place in range(count)}
    message = f"each node was compared with {words} alone: a bad one may pass for normal, a good one for bad"
    assert caveats(ask(SLOW, nodes, UP)) == ({"few nodes": message} if words else {})
    assert caveats(ask("hot: {check: value, when: x > 500}", nodes, UP)) == {}
    assert caveats(ask(SLOW, nodes, UP, baseline={"a/up": 100.0})) == {}


@pytest.mark.parametrize(
    ("values", "gap", "is_wide"),
    [
        ([98.0, 99.0, 100.0, 101.0, 102.0], 1.0, False),  # 1.5 %
        ([96.8, 98.4, 100.0, 101.6, 103.2], 1.6, False),  # 2.4 %
        ([96.2, 98.1, 100.0, 101.9, 103.8], 1.9, True),  # 2.8 %
        ([-96.2, -98.1, -100.0, -101.9, -103.8], 1.9, True),
        ([98.1, 98.1, 101.9, 101.9], 1.9, False),  # of few, the spread is not known
    ],
)
def test_a_spread_of_more_than_half_the_limit_is_wide(values: list[float], gap: float, is_wide: bool) -> None:
    diagnosis = ask(SLOW, {f"n{place}": [value, 1.0] for place, value in enumerate(values)}, UP, DOWN)
    assert ("wide spread" in caveats(diagnosis)) is is_wide
    if is_wide:
        assert "anyway in a/up (2.8 %): chance" in caveats(diagnosis)["wide spread"]
    spreads = {one.column.name: one.spread for one in diagnosis.judged}
    assert spreads == {"a/up": pytest.approx(1.4826 * gap / 100.0), "a/down": 0.0}


def test_a_condition_or_a_baseline_of_zero_has_no_wide_spread() -> None:
    nodes = {f"n{place}": [float(place)] for place in range(1, 7)}
    assert caveats(ask("s: {check: variance, when: x > 9}", nodes, UP)) == {}
    assert "wide spread" not in caveats(ask(SLOW, nodes, UP, baseline={"a/up": 0.0}))


def test_what_the_baseline_has_and_nobody_measured_is_told() -> None:
    names = [MetricColumn("a/up:0", better=Better.HIGHER), MetricColumn("b/x", better=Better.HIGHER)]
    baseline = {"a/up": 1.0, "b": 1.0, "c/y": 1.0}
    assert caveats(ask(SLOW, {"n": [1.0, 1.0]}, *names, baseline=baseline)) == {
        "not measured": "of the baseline's metrics, no node measured c/y"
    }
    del baseline["c/y"]
    assert caveats(ask(SLOW, {"n": [1.0, 1.0]}, *names, baseline=baseline)) == {}


def test_a_rule_without_metrics_looks_at_those_that_lead() -> None:
    quiet = MetricColumn("c/quiet", "B", Better.HIGHER, leads=False)
    nodes = {f"n{place}": [100.0, 100.0, 100.0] for place in range(5)} | {"odd": [50.0, 50.0, 50.0]}
    worse = ask(SLOW, nodes, UP, FREE, quiet)
    assert [one.metric for one in worse.defective[0].findings] == ["a/up"]
    assert caveats(worse) == {}  # nobody asked for the one without a direction
    changed = ask("s: {check: variance, when: abs(x) > 0.05}", nodes, UP, FREE, quiet)
    assert [one.metric for one in changed.defective[0].findings] == ["a/up", "b/free"]
    value = ask("s: {check: value, when: x < 60}", nodes, UP, FREE, quiet)
    assert [one.metric for one in value.defective[0].findings] == ["a/up", "b/free"]
    named = ask("s: {check: value, when: x < 60, metrics: ['quiet', 'up']}", nodes, UP, FREE, quiet)
    assert [one.metric for one in named.defective[0].findings] == ["a/up", "c/quiet"]


def test_a_metric_without_a_reference_is_told_and_is_not_judged() -> None:
    diagnosis = ask(SLOW, {"a": [1.0, 5.0], "b": [1.0, NAN]}, UP, DOWN, baseline={"a/up": 1.0})
    assert caveats(diagnosis) == {"no baseline": "no reference for a/down"}
    assert [one.column.name for one in diagnosis.judged] == ["a/up"]


STORED = "s: {check: variance, worse_by: 5%, metrics: ['a/.*'], store: true}"


def test_stored_rules_count_metrics_and_are_not_shown_as_judged() -> None:
    nodes = {"one": [80.0, 100.0], "two": [80.0, 120.0], "none": [100.0, 100.0]}
    for wanted, bad in ((1, ["one", "two"]), (2, ["two"]), (3, [])):
        rules = f"{STORED}, m: {{check: multi, when: 'rules[\"s\"] >= {wanted}', category: M}}"
        diagnosis = ask(rules, nodes, UP, DOWN, baseline={"a/up": 100.0, "a/down": 100.0})
        assert sorted(verdict.node for verdict in diagnosis.defective) == bad
        assert diagnosis.judged == ()
        assert all(verdict.categories == ("M",) for verdict in diagnosis.defective)
    assert verdicts(diagnosis)["two"].categories == ()


def test_a_rule_over_rules_can_be_asked_by_another() -> None:
    nodes = {"one": [80.0, 100.0], "two": [80.0, 120.0], "none": [100.0, 100.0]}
    rules = f"""{STORED}, any: {{check: multi, when: 'rules["s"] >= 1', store: true}},
        both: {{check: multi, when: 'rules["s"] + rules["any"] == 3', category: Both}}"""
    diagnosis = ask(rules, nodes, UP, DOWN, baseline={"a/up": 100.0, "a/down": 100.0})
    assert [verdict.node for verdict in diagnosis.defective] == ["two"]
    assert [(one.rule, one.kind, one.category, one.metric, one.text, one.accuses)
            for one in diagnosis.defective[0].findings if one.kind == "multi"] == [
        ("any", "multi", "", "any", 'rules["s"] >= 1', False),
        ("both", "multi", "Both", "both", 'rules["s"] + rules["any"] == 3', True),
    ]  # fmt: skip
    one = verdicts(diagnosis)["one"]
    assert (one.state, one.categories, [finding.rule for finding in one.findings]) == (State.HEALTHY, (), ["s", "any"])


def test_stored_values_are_those_of_the_node() -> None:
    rules = """v: {check: value, store: true, metrics: ['a/.*']},
        m: {check: multi, when: 'rules["v"]["a/up"] > rules["v"]["a/down"] and len(rules["v"]) == 2'}"""
    diagnosis = ask(rules, {"x": [2.0, 1.0, 0.0], "y": [1.0, 2.0, 0.0]}, UP, DOWN, FREE)
    assert [verdict.node for verdict in diagnosis.defective] == ["x"]


def test_what_has_no_answer_accuses_nobody() -> None:
    diagnosis = ask("d: {check: value, when: 1 / (x - 1) > 0}", {"a": [1.0], "b": [2.0], "c": [0.5]}, UP)
    assert [verdict.node for verdict in diagnosis.defective] == ["b"]
    assert caveats(diagnosis) == {"no answer": "rule 'd' has no answer for some nodes: it divides by zero"}


FAILED_CASES = {
    "n1": [Failure("a", "failed", "no device"), Failure("c", "timeout", "")],
    "n2": [Failure("other", "failed", "")],
}
FIVE = {"n1": [NAN, NAN, 1.0], **{f"n{place}": [1.0, 1.0, 1.0] for place in range(2, 6)}}


def test_every_failure_is_told_and_says_what_is_missing_of_its_own_case() -> None:
    columns = (MetricColumn("a/up"), MetricColumn("ab/up"), MetricColumn("c/up"))
    diagnosis = ask("f: {check: failure}", FIVE, *columns, failures=FAILED_CASES)
    assert [(one.kind, one.metric, one.text, one.accuses) for one in verdicts(diagnosis)["n1"].findings] == [
        ("failure", "a", "failed: no device", True),
        ("failure", "c", "timeout", True),
        ("missing", "ab/up", "it is missing", True),
    ]
    assert [(one.metric, one.text) for one in verdicts(diagnosis)["n2"].findings] == [("other", "failed")]
    assert [verdict.node for verdict in diagnosis.defective] == ["n1", "n2"]


def test_a_rule_of_failures_looks_at_cases_that_any_of_its_patterns_has() -> None:
    columns = (MetricColumn("a/up"), MetricColumn("ab/up"), MetricColumn("c/up"))
    rules = "f: {check: failure, metrics: ['^c', '^nothing', '^ab'], category: Gone}"
    diagnosis = ask(rules, FIVE, *columns, failures=FAILED_CASES)
    assert [verdict.node for verdict in diagnosis.defective] == ["n1"]
    assert [(one.kind, one.category, one.metric) for one in diagnosis.defective[0].findings] == [
        ("failure", "Gone", "c"),
        ("missing", "FailedTest", "ab/up"),
    ]
    assert caveats(diagnosis) == {}  # that a pattern of failures matches nothing is as it should be


def test_a_missing_metric_is_told_once_whichever_rules_look_at_it() -> None:
    rules = f"{SLOW}, hot: {{check: value, when: x > 500}}, f: {{check: failure}}"
    diagnosis = ask(rules, FIVE, UP, DOWN, FREE)
    assert [(one.rule, one.metric) for one in verdicts(diagnosis)["n1"].findings] == [
        ("slow", "a/down"),
        ("slow", "a/up"),
    ]


def test_rules_that_look_at_nothing_name_a_metric_unless_something_failed() -> None:
    rules = "s: {check: value, when: x > 0, metrics: [nothing]}"
    with refused("no-metric-matched", says="none of the 2 metrics: write patterns that match names like 'a/down'"):
        ask(rules, {"a": [1.0, 1.0], "b": [1.0, 1.0]}, UP, DOWN)
    with refused("no-metric-matched", says="names like 'benchmark/metric'"):
        ask("f: {check: failure}", {"a": [], "b": []})
    failures = {"a": [Failure("x", "failed", "")]}
    with refused("no-metric-matched"):  # a failure that no rule asks for is no answer
        ask(rules, {"a": [1.0, 1.0], "b": [1.0, 1.0]}, UP, DOWN, failures=failures)
    diagnosis = ask("f: {check: failure}", {"a": [], "b": []}, failures=failures)
    assert [verdict.node for verdict in diagnosis.defective] == ["a"]


@pytest.mark.parametrize(
    ("value", "base", "change"),
    [
        (0.0, 0.0, 0.0),
        (1.0, 0.0, float("inf")),
        (-2.0, 0.0, float("-inf")),
        (2.0, -0.0, float("inf")),
        (0.0, 1.0, -1.0),
        (1.0, 1.0, 0.0),
        (3.0, 2.0, 0.5),
        (-3.0, -2.0, 0.5),
    ],
)
def test_a_change_is_a_part_of_its_baseline(value: float, base: float, change: float) -> None:
    (one,) = ask("s: {check: variance, when: x > 99}", {"n": [value]}, UP, baseline={"a/up": base}).judged
    assert one.changes.tolist() == [change]
