"""`paceline compare` as a user types it: words, formats, exit codes, and nothing heavy loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.compare import command
from paceline.core.errors import InputError
from paceline.report.export import jsonl
from paceline.store import open_store
from support.compare_records import before_and_after


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = str(tmp_path / "results.db")
    with open_store(path) as opened:
        for runs, tag in zip(before_and_after(), ("main", "branch"), strict=True):
            for run in runs:
                opened.begin(run.run.model_copy(update={"tags": [tag]}))
                for record in run.records:
                    opened.add(record)
                opened.finish(run.run.id)
    return path


def compare(store: str, *words: str) -> Result:
    return CliRunner().invoke(command, [*words, "--store", store])


@pytest.mark.parametrize("sides", [("main", "branch"), ("main", "last"), ("20260314-090000", "20260315-090000-bbbb")])
def test_tags_prefixes_and_last(store: str, sides: tuple[str, str]) -> None:
    done = compare(store, *sides)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("1 of 5 worse (train bert-large bf16, slower by 4.")


@pytest.fixture
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of a run a side, and no others."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = str(tmp_path / "two.db")
    with open_store(path) as opened:
        for (run, *_), tag in zip(before_and_after(), ("main", "branch"), strict=True):
            opened.begin(run.run.model_copy(update={"tags": [tag]}))
            for record in run.records[:5]:
                opened.add(record)
            opened.finish(run.run.id)
    return path


def test_one_run_each_without_history_is_undecided(two_runs: str) -> None:
    done = compare(two_runs, "main", "branch")
    assert done.exit_code == 0, done.output
    first = " ".join(done.output.splitlines()[:3])
    assert first.startswith(
        "All 5 cannot be decided from one run each: repeat with at least 3 runs of each side within an hour"
    )


def test_a_gate_on_one_run_each_neither_passes_nor_fails(two_runs: str) -> None:
    gated = compare(two_runs, "main", "branch", "--fail-on", "throughput<0.9")
    assert gated.exit_code == 3
    lines = [line for line in gated.output.splitlines() if line.startswith("paceline: cannot decide")]
    assert len(lines) == 5
    assert (
        "throughput<0.9: train resnet50 bf16: throughput cannot be decided from one run each: repeat with" in lines[0]
    )
    assert compare(two_runs, "main", "branch", "--fail-on", "throughput<0.9", "--strict").exit_code == 0
    assert len(json.loads(compare(two_runs, "main", "branch", "--fail-on", "*<0.9", "--json").stdout)["undecided"]) == 5


def test_earlier_runs_of_the_machine_decide_one_run_each(store: str) -> None:
    done = compare(store, "20260314-090000", "20260315-090000", "--json")
    rows = json.loads(done.stdout)["comparisons"][0]["rows"]
    assert [row["verdict"] for row in rows][:2] == ["no significant change", "worse"]
    assert {(row["reference_runs"], row["new_runs"], row["level"]) for row in rows} == {(1, 1, "session")}


def test_a_case_that_fails_wins_over_what_cannot_be_decided(store: str) -> None:
    assert compare(store, "main", "branch", "--fail-on", "throughput<0.9999").exit_code == 1


def test_files_are_compared_like_runs(store: str, tmp_path: Path) -> None:
    paths = []
    for name, runs in zip("ab", before_and_after(), strict=True):
        (tmp_path / f"{name}.jsonl").write_text("".join(map(jsonl.render, runs)))
        paths.append(f"{name}.jsonl")
    assert compare(store, *paths).output.splitlines()[0] == compare(store, "main", "branch").output.splitlines()[0]


def test_a_gate_decides_the_exit_code(store: str) -> None:
    passed = compare(store, "last", "main", "--fail-on", "throughput<0.9")
    assert passed.exit_code == 0, passed.output
    failed = compare(store, "main", "last", "--fail-on", "throughput<0.97")
    assert failed.exit_code == 1
    lines = [line for line in failed.output.splitlines() if line.startswith("paceline: fails on")]
    assert len(lines) == 2
    assert "throughput<0.97: train bert-large bf16" in lines[0]


def test_without_a_gate_worse_is_no_failure(store: str) -> None:
    assert compare(store, "main", "last").exit_code == 0


def test_a_gate_may_name_another_metric_than_the_headline(store: str) -> None:
    done = compare(store, "main", "last", "--fail-on", "step_time>1.03", "--json")
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert "train bert-large bf16" in [one["case"] for one in document["violations"]]


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        (("main",), "one-side", "main"),
        (("main", "nobody"), "unknown-run", "nobody"),
        (("main", "branch", "main"), "same-runs", "main"),
        (("main", "last", "--fail-on", "fast"), "not-a-limit", "fast"),
        (("main", "last", "--fail-on", "troughput<0.9"), "unknown-metric", "troughput"),
        (("main", "last", "--metric", "nothing"), "unknown-metric", "nothing"),
        (("main", "last", "--strict"), "strict-without-fail-on", None),
        (("main", "published:lib"), "unknown-published-figures", "lib"),
        (("main", "published:libai"), "no-case-in-common", "published:libai"),
        (("main", "absent/file.jsonl"), "unreadable-file", "absent/file.jsonl"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(store: str, words: tuple[str, ...], code: str, value: str | None) -> None:
    done = compare(store, *words)
    assert isinstance(done.exception, InputError)
    assert (done.exception.code, done.exception.value) == (code, value)
    assert "\n" not in str(done.exception)


@pytest.mark.parametrize(("kind", "start"), [("md", "**1 of 5"), ("csv", "reference,new,"), ("json", "{")])
def test_texts_go_to_standard_output(store: str, kind: str, start: str) -> None:
    assert compare(store, "main", "last", f"--{kind}").output.startswith(start)


@pytest.mark.parametrize("kind", ["html", "png"])
def test_pages_and_pictures_go_to_files(store: str, kind: str) -> None:
    done = compare(store, "main", "last", f"--{kind}", "-o", f"here.{kind}")
    assert done.exit_code == 0, done.output
    assert Path(f"here.{kind}").stat().st_size > 1000


def test_published_tables_compare_with_each_other(store: str) -> None:
    done = compare(store, "published:libai", "published:megatron")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("All 42 cannot be decided from one published figure each: measure")
    assert max(len(line) for line in done.output.splitlines()) <= 100


def test_nothing_heavy_is_loaded(store: str) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from paceline.cli.compare import command; "
        f"done = CliRunner().invoke(command, ['main', 'last', '--store', {store!r}]); "
        "assert done.exit_code == 0, done.output; "
        "heavy = {'torch', 'scipy', 'vl_convert', 'pyarrow', 'onnxruntime', 'ray'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_that_was_cut_off_is_said_to_be_ours(store: str, tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text(jsonl.render(before_and_after()[0][0])[:500])
    done = compare(store, str(path), "last")
    assert isinstance(done.exception, InputError)
    assert (done.exception.code, done.exception.where) == ("not-a-record", f"line 1 of '{path}'")
