"""`paceline run --until-defect` on one machine: what accuses it, said at once or after the last case."""

from __future__ import annotations

import json

import pytest

from support.cli import Sandbox, events

ONE = ["--until-defect", "--no-report"]


@pytest.fixture
def suite(sandbox: Sandbox) -> str:
    """A suite of one case, which has been measured."""
    suite = sandbox.suite({"benchmark": "command", "exec": "sleep 0.02", "steps": 4})
    assert sandbox.ask("run", suite, "--no-report").returncode == 0
    return suite


def baseline_of(sandbox: Sandbox, factor: float) -> str:
    """The last run's figures, times so much."""
    assert sandbox.ask("baseline", "last", "-o", "whole.json").returncode == 0
    document = json.loads((sandbox.work / "whole.json").read_text())
    for reference in document["metrics"].values():
        reference["value"] *= factor
    return sandbox.write("baseline.json", json.dumps(document))


def test_the_last_case_accuses_like_any_other(sandbox: Sandbox, suite: str) -> None:
    done = sandbox.ask("run", suite, *ONE, "--json", "--baseline", baseline_of(sandbox, 0.01))
    assert done.returncode == 1
    assert "this machine is accused: command sleep" in done.stderr
    end = events(done.stdout)[-1]
    assert (end["event"], end["ok"]) == ("run_ended", False)
    assert end["accused"].startswith("command sleep")


def test_a_baseline_of_something_else_is_not_taken_for_a_check(sandbox: Sandbox, suite: str) -> None:
    other = sandbox.write("other.json", json.dumps({"paceline_baseline": 1, "metrics": {"gemm/rate": {"value": 1}}}))
    done = sandbox.ask("run", suite, *ONE, "--baseline", other)
    assert done.returncode == 0
    assert "the baseline has no figure of anything that was measured" in done.stderr


def test_what_is_repeated_is_judged_by_its_new_attempt(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "command", "exec": "test -e fixed", "steps": 1}, {"benchmark": "nap"})
    store = ["--store", "other.db"]
    broken = sandbox.ask("run", suite, *ONE, *store)
    assert broken.returncode == 1
    assert "--store other.db measures the other 1" in broken.stderr
    sandbox.write("fixed", "")
    repaired = sandbox.ask("run", "--resume", "last", "--retry-failed", *ONE, *store)
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
