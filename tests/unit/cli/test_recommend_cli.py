"""The verbs `recommend` and `leaderboard`: what they take, what they refuse, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.main import paceline
from paceline.core.errors import InputError
from paceline.core.run import RunRecords
from paceline.report.export import jsonl
from paceline.store import open_store
from support.records import literal_run, run_of, sample_run
from support.serving_records import ENGINES, rates_run, served


def written(folder: Path, source: RunRecords) -> str:
    path = folder / "results.jsonl"
    path.write_text(jsonl.render(source), encoding="utf-8")
    return str(path)


def kept(folder: Path, *sources: RunRecords) -> str:
    store = str(folder / "paceline.db")
    with open_store(store) as opened:
        for place, source in enumerate(sources):
            run = source.run.model_copy(update={"id": f"2026010{place + 1}-000000-aaaa"})
            opened.begin(run)
            for record in source.records:
                opened.add(record.model_copy(update={"run_id": run.id}))
            opened.finish(run.id)
    return store


def run(*arguments: str) -> Result:
    return CliRunner().invoke(paceline, list(arguments))


def test_a_file_of_results_gives_a_recommendation(tmp_path: Path) -> None:
    result = run("recommend", written(tmp_path, rates_run()), "--slo", "p99=50ms")
    assert result.exit_code == 0
    assert result.output.startswith("Take onnxruntime")


def test_nothing_that_qualifies_ends_with_one(tmp_path: Path) -> None:
    result = run("recommend", written(tmp_path, rates_run()), "--slo", "p99=1ms")
    assert result.exit_code == 1
    assert "No configuration meets p99 ≤ 1 ms; the nearest is" in result.output


def test_what_only_perhaps_meets_the_slo_ends_with_three(tmp_path: Path) -> None:
    few = run_of([served(0, "torch", 50.0, count=400, **ENGINES["torch"])])
    result = run("recommend", written(tmp_path, few), "--slo", "p99=50ms")
    assert result.exit_code == 3
    assert result.output.startswith("Nothing meets p99 ≤ 50 ms with 95 % confidence; ")
    assert run("recommend", written(tmp_path, few), "--slo", "p99=50ms", "--strict").exit_code == 1


def test_without_a_name_it_is_about_the_last_run(tmp_path: Path) -> None:
    store = kept(tmp_path, literal_run(), rates_run())
    result = run("recommend", "--store", store, "--json")
    assert result.exit_code == 0
    (document,) = json.loads(result.output)
    assert document["work"] == "serve resnet18 poisson"


def test_training_is_recommended_by_cost(tmp_path: Path) -> None:
    arguments = ("recommend", written(tmp_path, literal_run()), "--by", "cost", "--price", "3.6 USD/h", "--json")
    (document,) = json.loads(run(*arguments).output)
    assert document["recommended"]["configuration"] == "fp16"
    assert document["recommended"]["figures"]["usd_per_1000"]["value"] == pytest.approx(0.003125)


def test_the_page_and_the_picture_are_written(tmp_path: Path) -> None:
    source = written(tmp_path, rates_run())
    for name, begin in (
        ("a.html", b"<!doctype html>"),
        ("a.png", b"\x89PNG"),
        ("a.md", b"**Take"),
        ("a.csv", b"work,"),
    ):
        result = run("recommend", source, "--slo", "p99=50ms", "-o", str(tmp_path / name))
        assert result.exit_code == 0, result.output
        assert (tmp_path / name).read_bytes().lstrip().startswith(begin)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--slo", "p98=1s"), "unknown-metric"),
        (("--slo", "p99=soon"), "not-a-bound"),
        (("--budget", "5"), "not-a-budget"),
        (("--rate", "0/s"), "out-of-range"),
        (("--price", "H300=2 USD/h"), "unknown-machine"),
        (("--carbon", "green"), "not-a-carbon-intensity"),
        (("--case", "llama"), "nothing-to-recommend"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, flags: tuple[str, ...], code: str) -> None:
    result = run("recommend", written(tmp_path, rates_run()), *flags)
    assert isinstance(result.exception, InputError)
    assert result.exception.code == code


def test_a_leaderboard_is_over_all_runs(tmp_path: Path) -> None:
    store = kept(tmp_path, literal_run(), sample_run())
    result = run("leaderboard", "--store", store, "--json")
    assert result.exit_code == 0, result.output
    documents = {one["work"]: one for one in json.loads(result.output)}
    entries = documents["train resnet50"]["entries"]
    assert [entry["place"] for entry in entries] == [1, 1, 1, 1]  # one run of each decides nothing
    assert {run for entry in entries for run in entry["runs"]} == {"20260101-000000-aaaa", "20260102-000000-aaaa"}


def test_a_leaderboard_may_be_of_one_case_and_metric(tmp_path: Path) -> None:
    source = written(tmp_path, sample_run())
    result = run("leaderboard", source, "--case", "train resnet50", "--metric", "step_time")
    assert result.exit_code == 0
    assert "Step time" in result.output
    assert "bert" not in result.output
    page = run("leaderboard", source, "-o", str(tmp_path / "board.html"))
    assert page.exit_code == 0
    assert (tmp_path / "board.html").stat().st_size > 5000


def test_nothing_to_rank_is_refused(tmp_path: Path) -> None:
    result = run("leaderboard", written(tmp_path, sample_run()), "--case", "nowhere")
    assert "there is no result that has 'nowhere' in its name" in str(result.exception)
    unknown = run("leaderboard", written(tmp_path, sample_run()), "--metric", "speed")
    assert "unknown metric 'speed'" in str(unknown.exception)
