"""`paceline results --trend` against a store of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.results import command as results
from paceline.core.errors import InputError
from support.cli import Sandbox
from support.trend_records import levels, runs_of, stored


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    series = {"resnet50 fp16": levels(24, (16, 1.1), seed=1), "gpt2 bf16": levels(24, seed=2)}
    runs = runs_of(series)
    for place, records in enumerate(runs):
        records.run.tags = ["nightly"] if place % 2 else ["weekly"]
    return stored(tmp_path_factory.mktemp("store") / "results.db", runs)


def invoke(store: str, *arguments: str) -> Result:
    return CliRunner().invoke(results, ["--store", store, *arguments])


def test_the_history_of_a_metric(store: str) -> None:
    done = invoke(store, "--trend", "throughput")
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert text.startswith("1 of 2 series of throughput over 24 runs got worse: train resnet50 fp16: throughput ")
    assert "It began with run run-016" in text
    assert max(len(line) for line in done.output.splitlines()) <= 100


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--trend", "throughput"], 1),
        (["--trend", "step_time"], 1),
        (["--trend", "step_time", "--case", "gpt2"], 0),
        (["--trend", "step_time", "--limit", "7"], 0),
    ],
)
def test_a_regression_fails_where_it_is_asked_to(store: str, arguments: list[str], code: int) -> None:
    assert invoke(store, *arguments).exit_code == 0
    done = invoke(store, *arguments, "--fail-on-regression")
    assert done.exit_code == code, done.output


def test_the_exit_code_reaches_the_shell(sandbox: Sandbox, store: str) -> None:
    done = sandbox.run("results", "--store", store, "--trend", "throughput", "--fail-on-regression", "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["worse"] == 1


def test_series_are_chosen_by_benchmark_case_tag_and_number(store: str) -> None:
    def runs(*arguments: str) -> dict[str, int]:
        told = json.loads(invoke(store, "--trend", "step_time", "--json", *arguments).output)
        return {series["case"]: len(series["points"]) for series in told["series"]}

    assert runs() == {"train resnet50 fp16": 24, "train gpt2 bf16": 24}
    assert runs("--case", "GPT2") == {"train gpt2 bf16": 24}
    assert runs("--benchmark", "train", "--limit", "5") == {"train resnet50 fp16": 5, "train gpt2 bf16": 5}
    assert runs("--tag", "nightly") == {"train resnet50 fp16": 12, "train gpt2 bf16": 12}
    newest = json.loads(invoke(store, "--trend", "step_time", "--json", "--limit", "2").output)
    assert [point["run"] for point in newest["series"][0]["points"]] == ["run-022", "run-023"]


@pytest.mark.parametrize(
    ("flag", "start"), [("--html", b"<!doctype html>"), ("--png", b"\x89PNG"), ("--csv", b"metric,unit,case")]
)
def test_files(store: str, tmp_path: Path, flag: str, start: bytes) -> None:
    path = tmp_path / f"trend{flag.replace('--', '.')}"
    done = invoke(store, "--trend", "throughput", "-o", str(path))
    assert done.exit_code == 0, done.output
    assert done.output == f"{path}\n"
    assert path.read_bytes().lstrip().startswith(start)
    assert invoke(store, "--trend", "throughput", flag, "-o", str(path)).exit_code == 0


def test_without_a_place_a_page_lands_here(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(store, "--trend", "throughput", "--html").output == "paceline-trend-throughput.html\n"
    assert invoke(store, "--trend", "throughput", "--png").output == "paceline-trend-throughput.png\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--trend", "throughputs"], "unknown-metric"),
        (["--trend", "throughput", "--benchmark", "trian"], "unknown-benchmark"),
        (["--trend", "throughput", "--case", "resnet51"], "unknown-case"),
        (["--trend", "throughput", "--tag", "monthly"], "no-runs"),
        (["--trend", "throughput", "--limit", "1"], "no-history"),
        (["--trend", "throughput", "--html", "-o", "/absent/a.html"], "cannot-write"),
        (["--trend", "throughput", "-o", "/absent/a.png"], "cannot-write"),
    ],
)
def test_what_has_no_history_is_refused(store: str, arguments: list[str], code: str) -> None:
    done = invoke(store, *arguments)
    assert isinstance(done.exception, InputError)
    assert done.exception.code == code


@pytest.mark.parametrize(
    "arguments",
    [["--case", "x"], ["--fail-on-regression"], ["--html"], ["--trend", "step_time", "--csv", "--png"]],
)
def test_options_of_a_history_need_one(store: str, arguments: list[str]) -> None:
    done = invoke(store, *arguments)
    assert done.exit_code == 2
    assert "--trend METRIC" in done.output or "exclude each other" in done.output


def test_the_list_is_as_before(store: str) -> None:
    rows = json.loads(invoke(store, "--json").output)
    assert len(rows) == 20
    assert len(json.loads(invoke(store, "--json", "--limit", "3").output)) == 3


def test_no_heavy_library_is_imported(sandbox: Sandbox, store: str) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from paceline.cli.results import command; "
        f"done = CliRunner().invoke(command, ['--store', {store!r}, '--trend', 'throughput']); "
        "assert done.exit_code == 0, done.output; "
        "print([name for name in ('torch', 'pyarrow', 'scipy', 'vl_convert', 'openpyxl') if name in sys.modules])"
    )
    done = sandbox.call([sys.executable, "-c", code])
    assert done.stdout == "[]\n", done.stderr
