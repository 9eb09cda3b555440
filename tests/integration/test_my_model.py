"""A user's own model, file of benchmarks or command, as they are typed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.cli import Sandbox
from support.model_forms import write_forms, write_onnx

SHORT = ("--steps", "3", "--warm-up", "0s", "--span", "0s", "--no-report", "--target", "cpu")
BENCH = """
from paceline.core.benchmark import Benchmark
from paceline.core.metric import Metric
from paceline.core.parameters import Parameters
from paceline.core.record import Measurement, Result

METRIC = Metric(name="answer", unit="s", description="what it gives")

class AnswerParameters(Parameters):
    size: int = 1

class Answer(Benchmark[AnswerParameters]):
    name, summary, metrics = "answer", "an answer", (METRIC,)

    def measure(self, parameters, context):
        return Result(measurements=[Measurement.of_value(METRIC, 6.0 * parameters.size)])

class Other(Answer):
    name, summary = "other-answer", "another answer"
"""


def test_a_file_of_benchmarks_and_a_command(sandbox: Sandbox) -> None:
    (sandbox.work / "bench.py").write_text(BENCH)
    done = sandbox.run("run", "./bench.py", "--size", "7", "--no-report")
    assert done.returncode == 0, done.stderr
    assert "answer size=7: 42 s" in done.stdout and "other-answer size=7: 42 s" in done.stdout
    done = sandbox.ask("run", "command", "--exec", "true 1,2", "--exec", "sleep 0.01; true", *SHORT[:2], "--no-report")
    assert done.returncode == 0, done.stderr
    assert "✓ command true 1,2" in done.stdout and "✓ command sleep 0.01; true" in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs it: pip install '.[torch]'")
def test_a_file_of_benchmarks_imports_torchvision_where_the_zoo_does(sandbox: Sandbox) -> None:
    """Also where the compiled operators of torchvision do not fit torch, and Python alone fails to import it."""
    (sandbox.work / "bench.py").write_text(f"import torchvision.models\n{BENCH}")
    done = sandbox.run("run", "./bench.py", "--size", "7", "--no-report")
    assert done.returncode == 0, done.stderr
    assert "answer size=7: 42 s" in done.stdout


@pytest.mark.parametrize(
    ("code", "said"),
    [("x = 1", "has no benchmark"), ("1 / 0", "ZeroDivisionError"), (None, "does not exist")],
)
def test_a_wrong_file_of_benchmarks(sandbox: Sandbox, code: str | None, said: str) -> None:
    if code is not None:
        (sandbox.work / "wrong.py").write_text(code)
    done = sandbox.ask("run", "./wrong.py", "--dry-run")
    assert done.returncode == 2
    assert said in done.stderr


def test_a_dry_run_refuses_a_wrong_model_with_an_example(sandbox: Sandbox) -> None:
    (sandbox.work / "net.py").write_text("")
    done = sandbox.ask("run", "train", "--model", "./net.py", "--dry-run")
    assert done.returncode == 2
    assert "as in ./net.py:make" in done.stderr
    assert len(done.stderr.partition("for example:\n")[2].splitlines()) == 4


def test_an_onnx_file_is_measured_by_one_command(sandbox: Sandbox) -> None:
    write_onnx(sandbox.work / "net.onnx", "n", 8)
    done = sandbox.ask("run", "inference", "--model", "./net.onnx", "--engine", "onnxruntime", *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 case measured" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ("inference", "--model", "./net.py:make", "--input", "2x8"),
        ("train", "--model", "./net.py:with_inputs"),
        ("train", "--model", "net:with_loss"),
        ("train", "--model", "./net.pt2"),
        ("inference", "--model", "./tiny"),
    ],
    ids=lambda arguments: arguments[2],
)
def test_each_form_is_measured_by_one_command(sandbox: Sandbox, arguments: tuple[str, ...]) -> None:
    if "./tiny" in arguments and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: no config is tested")
    write_forms(Path(sandbox.work))
    done = sandbox.run("run", *arguments, *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 case measured" in done.stdout


@pytest.mark.long
def test_an_onnx_file_is_served_by_one_command(sandbox: Sandbox) -> None:
    write_onnx(sandbox.work / "net.onnx", "n", 8)
    load = ("--load.rate", "20", "--load.duration", "1s", "--warm-up", "0.2s", "--no-report", "--target", "cpu")
    done = sandbox.run("run", "serve", "--model", "./net.onnx", "--server.engine", "onnxruntime", *load)
    assert done.returncode == 0, done.stdout + done.stderr
    done = sandbox.run("run", "serve", "--model", "./net.onnx", *load, "--dry-run")
    assert done.returncode == 2
    assert "is served with engine = onnxruntime" in done.stderr
