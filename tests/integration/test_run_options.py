"""The flags of `paceline run`: what they change, and what a pipe, a program and a person get to read."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from paceline.core.case import Case
from paceline.core.record import CauseKind, Outcome
from support.cli import Sandbox, ended, events

MODEL = '''
import os
import torch
from torch import nn
from paceline.models import Batch, Workload

def make_batch(samples, generator):
    rows = torch.randn(samples, 8, generator=generator)
    return Batch(inputs=(rows,), targets=(torch.zeros(samples, dtype=torch.int64),))

def loss(output, batch):
    return nn.functional.cross_entropy(output, batch.targets[0])

class Noisy(nn.Linear):
    def forward(self, rows):
        return super().forward(rows) * (1 + int.from_bytes(os.urandom(2), "little") / 65536)

def small() -> Workload:
    """A layer."""
    return Workload(module=nn.Linear(8, 4), make_batch=make_batch, loss=loss)

def noisy() -> Workload:
    """A layer that no seed rules."""
    return Workload(module=Noisy(8, 4), make_batch=make_batch, loss=loss)

class Hollow(nn.Linear):
    def forward(self, rows):
        output = super().forward(rows)
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * float("nan"))
        return output

def hollow() -> Workload:
    """A layer whose output is fine and whose gradient is not."""
    return Workload(module=Hollow(8, 4), make_batch=make_batch, loss=loss)

def frozen() -> Workload:
    """Two layers of which one trains."""
    module = nn.Sequential(nn.Linear(8, 8, bias=False).requires_grad_(False), nn.Linear(8, 4, bias=False))
    return Workload(module=module, make_batch=make_batch, loss=loss)
'''


def test_flags_and_settings_override_every_case_that_has_the_parameter(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "nap", "steps": 7}, {"benchmark": "exits"})
    options = ("--set", "nap.duration=10ms,20ms", "--timeout", "2min", "--repeat", "2")
    done = sandbox.ask("run", suite, *options, "--dry-run", "--json")
    assert done.returncode == 0
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    naps, exits = [c for c in cases if c["benchmark"] == "nap"], [c for c in cases if c["benchmark"] == "exits"]
    expected = [(0.01, 1), (0.01, 2), (0.02, 1), (0.02, 2)]
    assert [(case["parameters"]["duration"], case["repeat"]) for case in naps] == expected
    assert [case["repeat"] for case in exits] == [1, 2]
    assert {case["timeout"] for case in cases} == {120.0}
    assert {case["parameters"]["steps"] for case in naps} == {7}
    assert [case["index"] for case in cases] == list(range(6))
    assert not sandbox.store.exists()


def test_only_leaves_what_has_all_words_of_one_of_them(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "nap", "duration": ["10ms", "20ms", "30ms"]}, {"benchmark": "refuses"})
    done = sandbox.ask("run", suite, "--only", "NAP 0.02", "--only", "refuses", "--peer", "doze", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    cases = [Case.model_validate_json(line) for line in done.stdout.splitlines()]
    assert [(case.index, case.benchmark) for case in cases] == [(0, "nap"), (1, "doze"), (2, "refuses")]
    assert cases[0].parameters["duration"] == 0.02


def test_a_run_of_some_cases_is_whole_with_them(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "nap", "duration": ["10ms", "20ms"]})
    assert sandbox.ask("run", suite, "--only", "0.02", "--no-report").returncode == 0
    stored = sandbox.load()
    assert [record.case.parameters["duration"] for record in stored.records] == [0.02]
    assert stored.missing == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("nap", "--only", "nap", "--only", "naps"), "--only 'naps' is in the name of no case of 'nap': the first one"),
        (("--resume", "last", "--only", "nap"), "leave out the suite, its parameters, --only"),
    ],
)
def test_only_what_there_is_can_be_left(sandbox: Sandbox, options: tuple[str, ...], says: str) -> None:
    done = sandbox.ask("run", *options)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_dry_run_for_people_has_one_line_per_case_and_stores_nothing(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "nap", "--duration", "10ms,20ms", "--dry-run")
    assert done.returncode == 0
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        ["1", "nap", "duration=0.01"],
        ["2", "nap", "duration=0.02"],
    ]
    assert done.stderr.startswith("2 cases, about ")
    assert not sandbox.store.exists()


def test_every_repetition_is_a_case_with_a_record_of_its_own(sandbox: Sandbox) -> None:
    assert sandbox.ask("run", "nap", "--duration", "5ms", "--repeat", "3", "--no-report").returncode == 0
    records = sandbox.load().records
    assert [(record.case.index, record.case.repeat, record.outcome) for record in records] == [
        (0, 1, Outcome.OK),
        (1, 2, Outcome.OK),
        (2, 3, Outcome.OK),
    ]
    assert len({record.case.key for record in records}) == 1


def test_a_program_gets_one_json_object_per_line_that_tells_the_whole_story(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", "nap", "--duration", "20ms", "--steps", "4", "--json")
    said = events(done.stdout)
    kinds = [event["event"] for event in said]
    assert kinds[:2] == ["run_started", "case_started"]
    assert kinds[2:-2] == ["case_progress"] * 5  # preparing, then each step
    assert kinds[-2:] == ["case_ended", "run_ended"]
    (record,) = ended(said)
    assert record.outcome is Outcome.OK
    assert said[-1]["ok"] is True
    report = said[-1]["report"]
    assert report.endswith(".html")
    assert "<html" in (sandbox.work / report).read_text(encoding="utf-8")
    assert done.stderr == ""


def test_a_pipe_gets_plain_lines(sandbox: Sandbox) -> None:
    done = sandbox.ask("run", sandbox.suite({"benchmark": "nap"}, {"benchmark": "exits"}), "--report", "mine.html")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    lines = done.stdout.splitlines()
    assert re.match(r"\[1/2\] ✓ nap: .*ms", lines[1])
    assert re.match(r"\[2/2\] ✗ exits: failed: the process exited with code 3", lines[2])
    assert any("mine.html" in line for line in lines)
    assert (sandbox.work / "mine.html").exists()


def test_repetitions_are_spread_over_the_run_and_over_processes(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "nap", "duration": ["5ms", "6ms", "7ms"], "repeat": 2})
    assert sandbox.ask("run", suite, "--no-report").returncode == 0
    records = sorted(sandbox.load().records, key=lambda record: record.started_at)
    assert [record.case.position for record in records] == list(range(6))
    assert [record.case.repeat for record in records] == [1, 1, 1, 2, 2, 2]
    durations = [record.case.parameters["duration"] for record in records]
    assert set(durations[:3]) == set(durations[3:]) == {0.005, 0.006, 0.007}


def test_a_reader_that_leaves_early_does_not_turn_an_unfinished_run_into_success(sandbox: Sandbox) -> None:
    suite = sandbox.suite({"benchmark": "nap", "duration": "50ms", "repeat": 3})
    command = f"set -o pipefail; paceline run {suite} --no-report --json | head -n 1"
    done = sandbox.call(["bash", "-c", command], env={"PATH": _path()})
    assert done.stdout.count("\n") == 1
    stored = sandbox.load()
    assert (done.returncode == 0) == stored.all_ok
    assert sandbox.left_behind() == []


def test_two_computations_from_one_seed_agree_unless_the_model_is_noisy(sandbox: Sandbox) -> None:
    sandbox.write("my_model.py", MODEL)
    models = "gpt2-small,my_model:small,my_model:noisy"
    options = ("--scale", "tiny", "--batch-size", "2", "--steps", "3", "--warm-up", "100ms", "--deterministic")
    done = sandbox.ask("run", "train", "--model", models, *options, "--no-report")
    assert done.returncode == 1, done.stderr
    gpt2, small, noisy = sandbox.load().records
    for record in (gpt2, small):
        assert record.outcome is Outcome.OK, record.cause
        assert record.facts["deterministic"]
        throughput = record.measurement("throughput")
        assert throughput is not None
        assert throughput.value > 0
    assert small.facts["parameter_count"] == 8 * 4 + 4
    assert noisy.outcome is Outcome.FAILED
    assert noisy.cause is not None
    assert noisy.cause.kind is CauseKind.CORRUPTION
    assert "seed" in noisy.cause.message


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.mark.long
def test_steps_that_only_seem_to_train_are_warned(sandbox: Sandbox) -> None:
    sandbox.write("my_model.py", MODEL)
    options = ("--batch-size", "2", "--steps", "5", "--warm-up", "50ms", "--no-report")
    done = sandbox.ask("run", "train", "--model", "my_model:hollow", "--precision", "fp32,fp16", *options)
    assert done.returncode == 0, done.stderr
    single, half = (
        {warning.kind for warning in record.warnings}
        for record in sorted(sandbox.load().records, key=lambda r: r.case.index)
    )
    assert "diverged" in single  # the weights are gone after the first step
    assert "skipped-steps" in half  # the loss scale saves them, and nothing is trained
    assert "diverged" not in half


@pytest.mark.long
def test_a_partly_frozen_model_is_not_credited_with_work_that_it_skips(sandbox: Sandbox) -> None:
    sandbox.write("my_model.py", MODEL)
    done = sandbox.ask("run", "train", "--model", "my_model:frozen", "--batch-size", "2", "--steps", "5", "--no-report")
    assert done.returncode == 0, done.stderr
    [record] = sandbox.load().records
    forward = 2 * (8 * 8 + 8 * 4)
    assert record.facts["flops_per_step"] == 2 * (forward + 2 * 8 * 4)  # and the gradient of the last weight
    assert "counted" in record.facts["flops_formula"]
