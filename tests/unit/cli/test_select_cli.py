"""`paceline select` and `paceline simulate fleet` as a user types them."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from paceline.analysis.baseline import make_baseline
from paceline.analysis.diagnose.table import assemble, results_of
from paceline.analysis.simulation import FleetOutcome, FleetStudy
from paceline.api.cases import find_suite
from paceline.api.sources import read_checks
from paceline.cli.main import paceline
from paceline.core.errors import InputError
from paceline.core.metric import Better, Metric
from paceline.core.record import Measurement, Record
from paceline.report.select import study_answer
from paceline.store import open_store
from paceline.store.store import Store
from support.records import case, record, run_of

RATE = Metric(name="rate", unit="B/s", better=Better.HIGHER)
SECONDS = {"gemm": 120.0, "copy": 60.0, "disk": 600.0}
SUITE = "name: mine\ncases:\n- {benchmark: gemm, precision: fp32}\n- {benchmark: copy}\n- {benchmark: disk}\n"


def run(*words: str) -> Result:
    return CliRunner().invoke(paceline, list(words))


def node_records(slow: str) -> list[Record]:
    return [
        record(
            case(place, name, "usual", category="memory"),
            [Measurement.of_value(RATE, 1e9 * (0.7 if name == slow else 1.0 + 0.0001 * place))],
            seconds=seconds,
        )
        for place, (name, seconds) in enumerate(SECONDS.items())
    ]


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(SUITE)
    return str(path)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Six nodes in five weekly rounds; the copies of gpu-3 are slow in two of them."""
    location = str(tmp_path / "paceline.db")
    begun = datetime.now(UTC) - timedelta(days=36)
    with open_store(location) as opened:
        for week in range(5):
            for node in range(6):
                records = node_records("copy" if node == 3 and week in (1, 3) else "")
                at = begun + timedelta(days=7 * week, minutes=node)
                tags = ["left" if node < 4 else "right"]
                add_run(opened, f"run-{week}-{node}", f"gpu-{node}", at, records, tags=tags)
    return location


def add_run(store: Store, run_id: str, host: str, at: datetime, records: list[Record], **more: Any) -> None:
    values = {"name": "mine", "environment": {"host": host}} | more
    made = run_of(records, started_at=at, **values)
    made.run.id, made.run.ended_at = run_id, at + timedelta(minutes=13)
    store.begin(made.run)
    for one in records:
        one.run_id = run_id
        store.add(one)
    store.finish(run_id)


def test_the_node_with_defects_comes_first_with_what_showed_them(store: str, suite: str) -> None:
    result = run("select", "--budget", "2m", "--suite", suite, "--store", store, "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output)
    assert plan["defects_learned_from"] == 2
    assert plan["nodes"][0]["node"] == "gpu-3" and "copy" in plan["nodes"][0]["benchmarks"]
    assert plan["minutes"] <= plan["budget_minutes"] == pytest.approx(12.0)
    assert plan["whole_minutes"] == pytest.approx(6 * 13.0)
    assert 0 < plan["share"] < 1 and plan["worth"] <= plan["bound"]


def test_runs_that_nobody_could_judge_leave_the_order_as_it_is(store: str, suite: str) -> None:
    words = ("select", "--budget", "2m", "--suite", suite, "--store", store)
    before = json.loads(run(*words, "--json").output)
    with open_store(store) as opened:
        for day in range(4, 0, -1):
            at = datetime.now(UTC) - timedelta(days=day)
            add_run(opened, f"alone-{day}", "gpu-3", at, node_records("copy"), name="mine select 1")
    after = json.loads(run(*words, "--json").output)
    assert after["nodes"][0]["node"] == before["nodes"][0]["node"] == "gpu-3"
    assert after["nodes"][0]["probability"] == pytest.approx(before["nodes"][0]["probability"], rel=0.01)
    assert (after["checks_learned_from"], after["checks_without_a_verdict"]) == (30, 4)
    assert "4 more checks do not show that a node is healthy: fewer than 3 nodes" in run(*words).output


def test_a_selection_is_judged_by_what_else_ran_on_that_day(store: str, suite: str) -> None:
    """Two nodes of two sets, on the last day on which all nodes ran the whole suite."""
    with open_store(store) as opened:
        begun = max(row.started_at for row in opened.runs(limit=None)) + timedelta(hours=6)
        for node, slow in ((4, ""), (5, "copy")):
            add_run(opened, f"set-{node}", f"gpu-{node}", begun, node_records(slow)[:2], name=f"mine select {node}")
    plan = json.loads(run("select", "--budget", "2m", "--suite", suite, "--store", store, "--json").output)
    assert (plan["defects_learned_from"], plan["checks_learned_from"]) == (3, 32)
    assert plan["checks_without_a_verdict"] == 0


def test_the_answer_says_what_is_not_tested(store: str, suite: str) -> None:
    output = run("select", "--budget", "1m", "--suite", suite, "--store", store).output
    assert "of 6 nodes" in output.splitlines()[0]
    assert "Benchmarks that run on no node: " in output and "disk." in output
    assert "Learned from 2 defects in 30 checks" in output


def test_nodes_are_chosen_by_pattern_and_by_tag(store: str, suite: str) -> None:
    words = ("select", "--budget", "20m", "--suite", suite, "--store", store, "--json")
    some = json.loads(run(*words, "gpu-[01]").output)
    assert {row["node"] for row in some["nodes"]} == {"gpu-0", "gpu-1"}
    text = run(*words[:-1], "gpu-[01]").output
    assert "on 2 of 2 nodes" in text and "in 30 checks of 6 nodes." in text, "it was learned from all of them"
    right = json.loads(run(*words, "--group", "right").output)
    assert {row["node"] for row in right["nodes"]} == {"gpu-4", "gpu-5"}
    assert right["share"] == pytest.approx(1.0)


def test_sets_of_few_hosts_say_what_they_do_not_show(store: str, suite: str, tmp_path: Path) -> None:
    words = ["select", "--budget", "10s", "--suite", suite, "--store", store]
    result = run(*words, "-o", str(tmp_path / "plan.yaml"))
    assert (tmp_path / "plan.hosts").read_text() == "gpu-3\n"
    assert "1 host is in commands for fewer than 3, whose checks end early only at a case that fails" in result.stderr
    assert "copy runs on fewer than 3 hosts in all, where only a case that fails is a defect" in result.stderr
    assert json.loads(run(*words, "--json").output)["not_compared"] == ["copy"]
    assert "This plan runs copy on fewer than 3 nodes" in " ".join(run(*words).output.split())
    good = make_baseline(assemble(results_of([run_of(node_records(""))])))
    (tmp_path / "baseline.json").write_text(good.model_dump_json())
    judged = [*words, "--baseline", str(tmp_path / "baseline.json")]
    assert "fewer than 3" not in run(*judged, "-o", str(tmp_path / "plan.yaml")).stderr
    assert not json.loads(run(*judged, "--json").output)["not_compared"]


def test_hosts_are_listed_as_they_were_reached(store: str, suite: str, tmp_path: Path) -> None:
    """By the newest run that says it; two nodes are entered by another shell, and of two nobody knows how."""
    shell = "ssh -F ~/cluster {host}"
    now = datetime.now(UTC)
    ways: dict[str, dict[str, str]] = {
        "gpu-0": {"host": "me@one"},
        "gpu-1": {"host": "two", "shell": shell, "python": "~/venv/bin/python"},
        "gpu-2": {"host": "three", "shell": shell, "python": "~/venv/bin/python"},
        "gpu-3": {"host": "one"},
        "gpu-4": {"host": "localhost"},
    }
    with open_store(store) as opened:
        early = {"host": "gpu-0", "reached": {"host": "one"}}
        add_run(opened, "early", "gpu-0", now - timedelta(days=5), node_records(""), environment=early)
        for place, (host, way) in enumerate(ways.items()):
            environment = {"host": host, "reached": way}
            at = now - timedelta(days=4, minutes=-place)
            add_run(opened, f"of-{host}", host, at, node_records(""), environment=environment)
    words = ["select", "--budget", "20m", "--suite", suite, "--store", store]
    result = run(*words, "-o", str(tmp_path / "plan.yaml"))
    commands = [shlex.split(line) for line in result.stdout.splitlines()]
    entered = {(*Path(words[5]).read_text().split(), *words[7:-2]) for words in commands}
    options = ("--remote-shell", f"ssh -F {Path.home()}/cluster {{host}}")
    python = ("--remote-python", f"{Path.home()}/venv/bin/python")
    assert entered == {("me@one", "one", "gpu-4", "gpu-5"), ("two", "three", *options, *python)}
    assert "how to reach gpu-4, gpu-5 is not in the store" in result.stderr


def test_nodes_that_are_long_gone_take_no_time(store: str, suite: str) -> None:
    words = ["select", "--budget", "2m", "--suite", suite, "--store", store]
    now = datetime.now(UTC)
    with open_store(store) as opened:
        for node in range(3):
            add_run(opened, f"old-{node}", f"old-{node}", now - timedelta(days=400, minutes=node), node_records(""))
        add_run(opened, "other", "old-2", now - timedelta(days=3), node_records(""), name="another suite")
    plan = json.loads(run(*words, "--json").output)
    assert {row["node"] for row in plan["nodes"]} == {*(f"gpu-{node}" for node in range(6)), "old-2"}
    assert set(plan["not_seen"]) == {"old-0", "old-1"}
    assert plan["budget_minutes"] == pytest.approx(7 * 2.0), "so much for each node that is there"
    text = " ".join(run(*words).output.split())
    assert f"no run of the last 90d: old-0 (last seen on {now - timedelta(days=400):%Y-%m-%d}), old-1" in text
    longer = json.loads(run(*words, "--seen-within", "500d", "--json").output)
    assert len(longer["nodes"]) == 9 and longer["not_seen"] == {}


def test_suites_are_written_that_run_takes(store: str, suite: str, tmp_path: Path) -> None:
    target = tmp_path / "plan.yaml"
    result = run("select", "--budget", "2m", "--suite", suite, "--store", store, "-o", str(target))
    assert result.exit_code == 0, result.output
    commands = [line.split() for line in result.stdout.splitlines()]
    hosts = [host for words in commands for host in Path(words[5]).read_text().split()]
    assert len(hosts) == len(set(hosts)) and "gpu-3" in hosts
    for number, words in enumerate(commands, start=1):
        assert words[:2] == ["paceline", "run"] and words[3:5] == ["--each", "--hosts"]
        assert words[6:] == ["--until-defect", "--store", store]
        written = find_suite(words[2])
        assert written.name == f"mine select {number}"
        assert all(entry in yaml.safe_load(SUITE)["cases"] for entry in written.cases)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--budget", "soon"), "not-a-duration"),
        (("--budget", "0"), "no-budget"),
        (("--budget", "9s"), "budget-too-small"),
        (("--budget", "5m", "--seen-within", "90"), "not-a-duration"),
        (("--budget", "5m", "--seen-within", "1h"), "no-node-left"),
        (("--budget", "5m", "--group", "lift"), "unknown-tag"),
        (("--budget", "5m", "gpu-9"), "unknown-node"),
    ],
)
def test_bad_input_is_refused(store: str, suite: str, words: tuple[str, ...], code: str) -> None:
    result = run("select", "--suite", suite, "--store", store, *words)
    assert isinstance(result.exception, InputError) and result.exception.code == code


def test_the_smallest_budget_that_buys_a_benchmark_is_named(store: str, suite: str, tmp_path: Path) -> None:
    """The copy takes a minute on one of the six nodes."""
    words = ("select", "--suite", suite, "--store", store, "-o", str(tmp_path / "plan.yaml"))
    error = run(*words, "--budget", "100ms").exception
    assert isinstance(error, InputError) and error.exit_code == 2
    assert str(error).endswith("the shortest, copy, takes 60 s on one node. Give --budget 10s or more")
    assert run(*words, "--budget", "10s").exit_code == 0
    assert len(list(tmp_path.glob("plan*.hosts"))) == 1


def test_a_check_that_a_baseline_ended_early_counts_as_a_defect(tmp_path: Path) -> None:
    """Its only case is one of two that differ by their device alone, and is named as in the baseline."""
    rate = Metric(name="compute_rate", unit="FLOP/s", better=Better.HIGHER)
    usual, slow = (
        [
            record(case(place, "gemm", "fp32", target=f"cuda:{place}"), [Measurement.of_value(rate, value)])
            for place in range(2)
        ]
        for value in (1e12, 5e11)
    )
    good = run_of(usual, name="mine", environment={"host": "node"})
    reference = tmp_path / "baseline.json"
    reference.write_text(make_baseline(assemble(results_of([good]))).model_dump_json())
    with open_store(tmp_path / "paceline.db") as opened:
        opened.begin(good.run)
        opened.add(slow[0].model_copy(update={"run_id": good.run.id}))
        opened.finish(good.run.id)
    (check,) = read_checks("mine", "mine", None, reference, str(tmp_path / "paceline.db")).checks
    assert check.found == {"gemm"}


def test_a_suite_that_never_ran_is_refused_with_what_to_run(store: str) -> None:
    result = run("select", "--budget", "5m", "--suite", "quick", "--store", store)
    assert isinstance(result.exception, InputError) and result.exception.code == "nothing-to-learn-from"
    assert "paceline run quick --each" in str(result.exception)


def test_a_file_that_never_ran_is_what_to_run(store: str, tmp_path: Path) -> None:
    mine = tmp_path / "my checks.yaml"
    mine.write_text("name: checks\ncases: [{benchmark: gemm}]\n")
    result = run("select", "--budget", "5m", "--suite", str(mine), "--store", store)
    assert "no run of 'checks'" in str(result.exception)
    assert f"`paceline run '{mine}' --each" in str(result.exception)


FLEET = (
    "simulate",
    "fleet",
    "--nodes",
    "60",
    "--defects-after",
    "30d",
    "--checks",
    "4",
    "--learning",
    "6",
    "--seeds",
    "2",
)


def test_policies_stand_side_by_side() -> None:
    result = run(*FLEET)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("With the selector a node runs ")
    for policy in ("none", "whole set", "fixed subset", "random subset", "selector"):
        assert policy in result.output


def test_a_fleet_for_programs() -> None:
    document = json.loads(run(*FLEET, "--policy", "none,whole set", "--json").output)
    none, whole = document["policies"]
    assert (none["hours"]["value"], none["times_longer"]["value"]) == (0.0, 1.0)
    assert whole["found_of_whole_set"]["value"] == 1.0 and whole["incidents"]["value"] < none["incidents"]["value"]
    assert document["settings"]["nodes"] == 60 and document["settings"]["seeds"] == [0, 1]


def test_a_fleet_in_which_little_happens_has_no_ratios() -> None:
    words = ("simulate", "fleet", "--seeds", "2", "--nodes", "3", "--learning", "2", "--checks", "2")
    output = run(*words).output
    assert output.startswith("Too little happened to compare policies: ")
    assert "No ratio is made of fewer than 5 incidents or defects found." in " ".join(output.split())
    assert "±" not in "".join(line for line in output.splitlines() if line.startswith("selector"))
    policies = json.loads(run(*words, "--json").output)["policies"]
    assert not any({"times_longer", "found_of_whole_set"} & policy.keys() for policy in policies)


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--policy", "all"), "unknown-policy"), (("--defects-after", "1h"), "out-of-range")],
)
def test_bad_fleets_are_refused(words: tuple[str, ...], code: str) -> None:
    result = run("simulate", "fleet", *words)
    assert isinstance(result.exception, InputError) and result.exception.code == code


@pytest.mark.parametrize("flag", ["--sudden", "--budget"])
def test_what_is_no_number_is_no_part_of_a_fleet(flag: str) -> None:
    result = run("simulate", "fleet", flag, "nan")
    assert result.exit_code == 2
    assert "nan is not a finite number" in result.output


def test_the_first_sentence_of_a_simulation_is_no_surer_than_its_figures() -> None:
    settings = {"nodes": 2, "rate": 0.01, "spread": 1.0, "lasts": 30.0, "sudden": 0.0, "learning": 1, "budget": 0.1}
    none, some, more = (FleetOutcome(100.0, incidents, found=incidents) for incidents in (0, 6, 7))
    nothing = FleetStudy({"none": [none], "whole set": [none], "selector": [none]}, settings, 0.0)
    assert study_answer(nothing).startswith("Too little happened to compare policies: none of them had an incident.")
    same = FleetStudy({"none": [some], "fixed subset": [some]}, settings, 0.0)
    assert study_answer(same) == "All policies have the same number of incidents: 6."
    two = FleetStudy({"none": [some], "whole set": [none], "fixed subset": [none]}, settings, 0.0)
    assert study_answer(two) == "Incidents are fewest under 'whole set', 'fixed subset'."
    both = FleetStudy({name: [some, more] for name in ("none", "whole set", "selector")}, settings, 0.0)
    assert study_answer(both).startswith("With the selector a node runs 1.00 times longer (± <0.1 %) between")
