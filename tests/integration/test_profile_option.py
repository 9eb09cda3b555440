"""`paceline run --profile`: a trace of every model case, at no cost to what was measured."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from paceline.benchmarks._model.measuring import DETAILED_STEPS
from paceline.core.record import Outcome
from paceline.measure.trace import STEPS
from support.cli import Sandbox

MODEL = '''
import os
import torch
from torch import nn
from paceline.models import Batch, Workload

LOG = "steps.log"

def is_traced():
    return torch._C._autograd._profiler_enabled()

class Watched(nn.Linear):
    """Writes down whether each step is traced."""
    def forward(self, rows):
        with open(LOG, "a") as log:
            log.write("traced\\n" if is_traced() else "plain\\n")
        return super().forward(rows)

class Aborts(nn.Linear):
    def forward(self, rows):
        if is_traced():
            os.abort()
        return super().forward(rows)

class Hungry(nn.Linear):
    def forward(self, rows):
        if is_traced():
            raise MemoryError("the profiler has it all")
        return super().forward(rows)

def make_batch(samples, generator):
    return Batch((torch.randn(samples, 8, generator=generator),), (torch.zeros(samples, dtype=torch.int64),))

def workload(kind) -> Workload:
    return Workload(kind(8, 4), make_batch, lambda output, batch: output.square().mean())

def watched() -> Workload:
    return workload(Watched)

def aborts() -> Workload:
    return workload(Aborts)

def hungry() -> Workload:
    return workload(Hungry)
'''
SHORT = ("--steps", "10", "--warm-up", "50ms", "--batch-size", "2")


@pytest.fixture
def mine(sandbox: Sandbox) -> Sandbox:
    sandbox.write("mine.py", MODEL)
    return sandbox


def test_the_trace_is_taken_after_the_measurement_and_kept(mine: Sandbox) -> None:
    report = mine.folder / "report.html"
    done = mine.run("run", "train", "--model", "mine:watched", *SHORT, "--profile", "--report", str(report))
    assert done.returncode == 0, done.stderr
    run = mine.load()
    (record,) = run.records
    file = mine.folder / "data" / "paceline" / "traces" / run.run.id / "01-train-mine-watched-fp32-b2.json.gz"
    told = record.facts["trace"]
    assert told["file"] == str(file)
    assert told["spent"]["steps"] == STEPS
    assert sum(told["spent"]["shares"].values()) == pytest.approx(1.0)

    # No measured step was traced: what was traced are the last steps of two traces, and one before those of each.
    steps = (mine.work / "steps.log").read_text().split()
    traced = STEPS + 1 + DETAILED_STEPS + 1
    assert steps[-traced:] == ["traced"] * traced
    assert set(steps[:-traced]) == {"plain"}
    step_time = record.measurement("step_time")
    assert step_time is not None
    assert step_time.summary.count == 10

    trace = json.loads(gzip.decompress(file.read_bytes()))
    assert any(event["name"] == "aten::addmm" for event in trace["traceEvents"])
    assert "Where the time went" in done.stdout
    assert file.name in done.stdout
    assert ">Where the time went</h2>" in report.read_text()

    file.unlink()  # the store has the answer, whatever becomes of the file
    again = mine.run("report", "last")
    assert "of the step is" in again.stdout


@pytest.mark.long
def test_every_model_case_of_a_suite_into_a_folder_of_ones_own(mine: Sandbox) -> None:
    short = {"steps": 3, "warm_up": "50ms"}
    model = short | {"model": "generated/fc:layers=1,width=16", "batch_size": 2}
    shape = {"layers": 1, "hidden": 16, "heads": 2, "sequence": 8, "vocabulary": 64, "precision": "fp32"}
    suite = mine.suite(
        {"benchmark": "nap"},
        {"benchmark": "inference"} | model,
        {"benchmark": "train", "ranks": 2} | model,
        {"benchmark": "parallel", "model": "gpt2", "tensor": 2, "micro_batch": 1, "global_batch": 1} | shape | short,
    )
    done = mine.run("run", suite, "--profile", "out", "--no-report")
    assert done.returncode == 0, done.stdout + done.stderr
    nap, *models = mine.load().records
    assert nap.case.trace == ""
    files = sorted((mine.work / "out").rglob("*.json.gz"))
    assert files == [Path(one.facts["trace"]["file"]) for one in models]
    inference, train, parallel = (one.facts["trace"]["spent"] for one in models)
    assert "communication" not in inference["groups"]
    assert "communication" in train["groups"]  # the gradients of two ranks
    assert "communication" in parallel["groups"]
    assert models[-1].measurement("exposed_communication") is not None


@pytest.mark.long
def test_a_trace_that_fails_costs_the_measurement_nothing(mine: Sandbox) -> None:
    short = {"steps": 10, "warm_up": "50ms", "batch_size": 2}
    suite = mine.suite(
        *({"benchmark": "inference", "model": f"mine:{model}"} | short for model in ("aborts", "hungry"))
    )
    done = mine.run("run", suite, "--profile", "--no-report")
    assert done.returncode == 0, done.stdout + done.stderr
    aborted, hungry = mine.load().records
    for record in (aborted, hungry):
        assert record.outcome is Outcome.OK
        step_time = record.measurement("step_time")
        assert step_time is not None
        assert step_time.summary.count == 10
    assert aborted.facts["trace"]["missing"] == "the process ended before it was taken"
    assert "SIGABRT" in aborted.facts["cut_short"]
    assert hungry.facts["trace"]["missing"] == "MemoryError: the profiler has it all"
    shown = " ".join(done.stdout.split())
    assert "was to be traced, but was not: the process ended before it was taken: the process was ended by SIG" in shown
    assert "was to be traced, but was not: MemoryError: the profiler has it all." in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["served.yaml", "--profile"], "paceline run inference --model resnet18 --profile"),
        (["--resume", "last", "--profile"], "leave out --profile"),
        (["train", "--model", "resnet18", "--profile", "mine.py/below"], "cannot be made"),
    ],
)
def test_what_cannot_be_profiled_is_refused_before_anything_runs(mine: Sandbox, words: list[str], said: str) -> None:
    mine.suite({"benchmark": "serve", "model": "resnet18", "slo": {"p99": "100ms"}}, name="served.yaml")
    done = mine.ask("run", *words)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
