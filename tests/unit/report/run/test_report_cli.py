"""`paceline report` and `paceline results` against a store of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.report import command as report
from paceline.cli.results import command as results
from paceline.core.errors import InputError
from paceline.store import open_store
from support.records import RUN_ID, literal_run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    path = str(tmp_path / "results.db")
    run = literal_run()
    with open_store(path) as opened:
        opened.begin(run.run)
        for record in run.records:
            opened.add(record)
        opened.finish(RUN_ID)
    return path


@pytest.mark.parametrize("run", ["last", RUN_ID, RUN_ID[:-2]])
def test_a_table_by_id_prefix_or_last(store: str, run: str) -> None:
    done = CliRunner().invoke(report, [run, "--store", store])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("All 2 cases measured")


@pytest.mark.parametrize(
    ("flag", "name"), [("--html", f"paceline-report-{RUN_ID}.html"), ("--superbench", "results-summary.jsonl"),
                       ("--png", f"paceline-report-{RUN_ID}.png")],
)  # fmt: skip
def test_files_land_here_and_their_path_is_told(store: str, flag: str, name: str) -> None:
    done = CliRunner().invoke(report, ["last", flag, "--store", store])
    assert done.exit_code == 0, done.output
    assert done.output == f"{name}\n"
    assert Path(name).stat().st_size > 100


@pytest.mark.parametrize(("flag", "start"), [("--md", "# node-check"), ("--csv", "run,case,"), ("--jsonl", "{")])
def test_texts_go_to_standard_output(store: str, flag: str, start: str) -> None:
    done = CliRunner().invoke(report, ["last", flag, "--store", store])
    assert done.output.startswith(start)


def test_the_name_of_the_file_tells_the_format(store: str) -> None:
    done = CliRunner().invoke(report, ["last", "-o", "a.md", "--store", store])
    assert done.exit_code == 0, done.output
    assert Path("a.md").read_text().startswith("# node-check")
    done = CliRunner().invoke(report, ["last", "--html", "-o", "-", "--store", store])
    assert done.output.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "told"), [(["--md", "--csv"], "exclude each other"), (["-o", "a.xyz"], "--html")]
)
def test_what_cannot_be_meant_is_refused(store: str, arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(report, ["last", *arguments, "--store", store])
    assert done.exit_code == 2
    assert told in done.output


def test_a_place_that_cannot_be_written_is_told(store: str) -> None:
    done = CliRunner().invoke(report, ["last", "-o", "absent/a.html", "--store", store])
    assert isinstance(done.exception, InputError)
    assert "absent/a.html" in str(done.exception)


def test_an_unknown_run_is_refused(store: str) -> None:
    done = CliRunner().invoke(report, ["nothing-like-it", "--store", store])
    assert isinstance(done.exception, InputError)
    assert done.exception.code == "unknown-run"


def test_past_runs_as_a_table_and_as_json(store: str) -> None:
    done = CliRunner().invoke(results, ["--store", store])
    assert done.exit_code == 0, done.output
    assert RUN_ID in done.output and "2026-03-14 09:26" in done.output
    (row,) = json.loads(CliRunner().invoke(results, ["--store", store, "--json"]).output)
    assert (row["id"], row["status"], row["cases"], row["ok"], row["not_ok"]) == (RUN_ID, "finished", 2, 2, 0)


def test_no_runs_yet(tmp_path: Path) -> None:
    open_store(tmp_path / "empty.db").close()
    done = CliRunner().invoke(results, ["--store", str(tmp_path / "empty.db")])
    assert "no runs yet" in done.output
