"""`paceline tune` with a benchmark whose figures are known: what it finds, says and stores, and how it goes on."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from support.cli import Sandbox, sandbox_in

MADE = """
import os, time
from pydantic import Field
from paceline.core.benchmark import Benchmark
from paceline.core.metric import Better, Metric
from paceline.core.parameters import Parameters
from paceline.core.record import Measurement, Result

class MadeParameters(Parameters):
    size: int = 1
    depth: int = 1
    budget: float = 9.0

class Made(Benchmark[MadeParameters]):
    name = "made"
    summary = "figures that are known"
    metrics = (Metric(name="throughput", unit="items/s", better=Better.HIGHER, description="known"),)

    def measure(self, parameters, context):
        if parameters.size == 16:
            raise ValueError("no room for a size of 16")
        if os.environ.get("SLOWLY") and context.case.index >= 3:
            time.sleep(600)
        value = 100.0 * parameters.size / (1 + abs(parameters.depth - 2)) + 0.01 * context.case.index
        samples = [value, value * 1.001, value * 0.999] * 5
        return Result(measurements=[Measurement.of_samples(self.metrics[0], samples)])
"""
WORDS = ("tune", "made.py", "--size", "1,2,4,8,16", "--depth", "1,2,3", "--json")


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sandbox, dict[str, Any]]]:
    with sandbox_in(tmp_path_factory.mktemp("tune") / "sandbox") as sandbox:
        sandbox.write("made.py", MADE)
        done = sandbox.run(*WORDS)
        assert done.returncode == 0, done.stderr + done.stdout
        yield sandbox, events(done.stdout)[-1]


def test_the_best_setting_is_found_and_shown_to_be_better(tuned: tuple[Sandbox, dict[str, Any]]) -> None:
    _, answer = tuned
    assert answer["winner"] == "size=8 depth=2"
    assert answer["is_better"]
    assert answer["ratio"] == pytest.approx(16.0, rel=0.01)
    assert "size=8 depth=2 is better than size=1 depth=1 (the first setting)" in answer["answer"]
    assert len({one["setting"] for one in answer["trials"] if one["rung"] == 1}) < 15


def test_a_setting_that_fails_is_shown_and_not_tried_again(tuned: tuple[Sandbox, dict[str, Any]]) -> None:
    _, answer = tuned
    failed = [one for one in answer["trials"] if one["problem"]]
    assert failed
    assert all("size=16" in one["setting"] and "no room for a size of 16" in one["problem"] for one in failed)
    assert len({one["setting"] for one in failed}) == len(failed)


@pytest.mark.long
def test_every_trial_is_a_stored_case(tuned: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, answer = tuned
    records = events(sandbox.ask("report", "--jsonl", "-o", "-").stdout)
    assert len(records) == len(answer["trials"])
    assert {record["case"]["parameters"]["budget"] for record in records} >= {1.0, 9.0}
    assert "tune made" in sandbox.ask("results").stdout
    assert "size=8 depth=2" in sandbox.ask("report").stdout


@pytest.mark.long
def test_a_finished_tuning_is_shown_again_without_new_trials(tuned: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, answer = tuned
    again = sandbox.run(*WORDS, "--resume", "last")
    assert again.returncode == 0, again.stderr
    shown = events(again.stdout)
    assert shown[-1] == answer
    assert not [one for one in shown if one.get("event") == "case_started"]
    other = sandbox.ask("tune", "made.py", "--size", "2,4", "--depth", "1,2,3", "--resume", "last")
    assert other.returncode == 2
    assert "give the same settings" in other.stderr


@pytest.mark.long
def test_an_interrupted_tuning_goes_on_where_it_was(sandbox: Sandbox) -> None:
    sandbox.write("made.py", MADE)
    process = sandbox.start(*WORDS, env={"SLOWLY": "1"})
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event.get("event") == "case_started" and event["case"]["index"] == 3:
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "paceline tune --resume" in said
    done = sandbox.run(*WORDS, "--resume", "last")
    assert done.returncode == 0, done.stderr
    started = [one["case"]["index"] for one in events(done.stdout) if one.get("event") == "case_started"]
    assert min(started) == 3
    answer = events(done.stdout)[-1]
    assert answer["winner"] == "size=8 depth=2"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("made.py", "--size", "1"), "one setting only"),
        (("made.py", "--size", "1,2", "--objective", "goodput"), "--slo p99=50ms"),
        (("made.py", "--size", "1,2", "--objective", "cost"), "price"),
        (("made.py", "--size", "1,2", "--budget", "soon"), "soon"),
        (("--slo", "p98=50ms", "--server.max-batch", "1,2"), "p98"),
    ],
)
def test_what_cannot_be_tuned_is_refused(sandbox: Sandbox, words: tuple[str, ...], said: str) -> None:
    sandbox.write("made.py", MADE)
    refused = sandbox.ask("tune", *words)
    assert refused.returncode == 2, refused.stdout
    assert said in refused.stderr
