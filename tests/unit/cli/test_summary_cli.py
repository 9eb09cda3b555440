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
