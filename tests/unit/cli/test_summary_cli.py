"""`paceline summary` shows a fleet in one table, in every format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from support.cli import Sandbox

RESULTS = str(Path(__file__).parents[2] / "data/superbench/results-summary.jsonl")
RULES = """
superbench:
  rules:
    launch:
      statistics: [count, mean]
      aggregate: true
      categories: KernelLaunch
      metrics: [kernel-launch/event_time]
"""


@pytest.mark.parametrize("flag", ["--md", "--html", "--csv", "--json"])
def test_every_format_has_the_category_and_the_metric(sandbox: Sandbox, flag: str) -> None:
    rules = sandbox.write("rules.yaml", RULES)
    done = sandbox.ask("summary", RESULTS, "--rules", rules, flag, "-o", "-")
    assert done.returncode == 0, done.stderr
    for word in ("KernelLaunch", "kernel-launch/event", "16"):
        assert word in done.stdout


def test_programs_read_the_figures(sandbox: Sandbox) -> None:
    rules = sandbox.write("rules.yaml", RULES)
    rows = list(csv.DictReader(io.StringIO(sandbox.ask("summary", RESULTS, "--rules", rules, "--csv").stdout)))
    assert [(row["statistic"], row["unit"]) for row in rows] == [("count", ""), ("mean", "ms")]
    answer = json.loads(sandbox.ask("summary", RESULTS, "--rules", rules, "--json", "--round", "5").stdout)
    assert len(answer["nodes"]) == 8
    assert answer["summary"][1]["value"] == pytest.approx(0.0055, rel=0.02)


def test_a_workbook_is_written(sandbox: Sandbox) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="needs it: pip install '.[exports]'")
    done = sandbox.ask("summary", RESULTS, "-o", "fleet.xlsx")
    assert done.returncode == 0, done.stderr
    sheet = openpyxl.load_workbook(sandbox.work / "fleet.xlsx")["Summary"]
    assert [cell.value for cell in sheet[1]] == ["category", "metric", "statistics", "values", "unit"]


def test_rules_of_diagnosing_are_refused_with_the_key(sandbox: Sandbox) -> None:
    rules = sandbox.write("rules.yaml", "rules: {odd: {check: outlier}}")
    done = sandbox.ask("summary", RESULTS, "--rules", rules)
    assert done.returncode == 2
    assert "unknown key 'check'" in done.stderr


def test_a_pattern_that_matches_nothing_is_told(sandbox: Sandbox) -> None:
    rules = sandbox.write("rules.yaml", RULES.replace("kernel-launch/event_time", ".*/return_code"))
    done = sandbox.ask("summary", RESULTS, "--rules", rules, "--csv")
    assert done.returncode == 0
    assert "Nothing matches the patterns launch: .*/return_code" in done.stderr
    assert "Nothing matches" not in sandbox.ask("summary", RESULTS, "--csv").stderr


def test_one_value_has_no_deviation(sandbox: Sandbox) -> None:
    results = sandbox.write("one.jsonl", '{"node": "a", "mem-bw/h2d_bw": 26.0}\n')
    done = sandbox.ask("summary", results, "--json")
    values = {row["statistic"]: row["value"] for row in json.loads(done.stdout)["summary"]}
    assert (values["std"], values["mean"], values["count"]) == (None, 26.0, 1.0)


@pytest.mark.parametrize("entry", ["statistics: 5", "statistics: [[mean]]", "metrics: 5", "metrics: {a: b}"])
def test_what_is_no_list_of_texts_is_refused(sandbox: Sandbox, entry: str) -> None:
    done = sandbox.ask("summary", RESULTS, "--rules", sandbox.write("rules.yaml", f"rules: {{a: {{{entry}}}}}"))
    assert done.returncode == 2, done.stderr
    assert "rule 'a'" in done.stderr


def test_several_results_of_one_host_are_runs(sandbox: Sandbox) -> None:
    results = sandbox.write("one.jsonl", '{"node": "a", "mem-bw/h2d_bw": 26.0}\n' * 3)
    assert sandbox.ask("summary", results).stdout.startswith("3 runs.")
