"""`paceline results` as a list: what each run measured and where, filtered and searched, never cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli import report as report_verb
from paceline.cli.report import command as report
from paceline.cli.results import command as results
from paceline.core.case import Case
from paceline.report.run_list import ListedRun, RunGlances, listed
from paceline.store import open_store
from paceline.store.store import Store
from support.refused import refused
from support.store_samples import RATE, a_case, a_failed_record, a_record, a_run

H200 = {"host": "node-a", "gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]}
ARM = {"host": "node-b", "cpu": {"model": "Neoverse-N1"}}
LONG = "a suite whose name alone is as long as many a line on a terminal is, and which a pipe must not cut anywhere"


def model_case() -> Case:
    return Case(index=1, benchmark="train", parameters={}, title="resnet50 bf16", category="training")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "results.db"
    with open_store(path) as opened:
        opened.begin(a_run("run-1", 2, environment=H200, tags=["before"], name=LONG))
        opened.add(a_record("run-1", case=a_case(0).model_copy(update={"category": "compute"})))
        opened.add(a_record("run-1", 1, case=model_case(), primary=RATE.name, warnings=[]))
        opened.finish("run-1")
        opened.begin(a_run("run-2", 1, minutes=1, environment=ARM, tags=["after", "nightly"]))
        opened.add(a_failed_record("run-2", 0))
        opened.finish("run-2")
    return path


def ask(store: Path, *words: str) -> str:
    done = CliRunner().invoke(results, ["--store", str(store), *words])
    assert done.exit_code == 0, done.output
    return done.output


def found(store: Path, **wanted: str) -> list[str]:
    with open_store(store) as opened:
        return [run.row.id for run in listed(RunGlances(opened), 20, **wanted)]


def test_a_line_has_tags_machine_figure_and_warnings_and_is_whole_in_a_pipe(store: Path) -> None:
    head, newest, oldest = ask(store).splitlines()
    first = ["Run", "Suite", "Started,", "UTC", "Took", "Ok", "Not", "ok", "Status"]
    assert head.split() == [*first, "Figure", "Machine", "Tags", "Warnings"]
    assert LONG in oldest
    assert "node-a, 2 x NVIDIA H200" in oldest
    assert "train resnet50 bf16: 313.7 samples/s" in oldest and "and 1 more" in oldest
    assert "before" in oldest and "short 1" in oldest
    assert "node-b, Neoverse-N1" in newest and "after, nightly" in newest
    assert "…" not in head + newest + oldest


def test_the_same_for_programs(store: Path) -> None:
    newest, oldest = json.loads(ask(store, "--json"))
    assert oldest["machine"] == "node-a, 2 x NVIDIA H200"
    assert (oldest["figure"]["case"], oldest["figure"]["metric"]) == ("train resnet50 bf16", "throughput")
    assert oldest["warnings"] == {"short": 1}
    assert newest["figure"] is None


@pytest.mark.parametrize(
    ("wanted", "runs"),
    [
        ({}, ["run-2", "run-1"]),
        ({"tag": "before"}, ["run-1"]),
        ({"machine": "h200"}, ["run-1"]),
        ({"status": "finished"}, ["run-2", "run-1"]),
        ({"status": "running"}, []),
        ({"search": "RESNET50 h200"}, ["run-1"]),
        ({"search": "nightly"}, ["run-2"]),
        ({"search": "short"}, ["run-2", "run-1"]),
        ({"search": "resnet50", "tag": "after"}, []),
    ],
)
def test_runs_are_filtered_and_searched(store: Path, wanted: dict[str, str], runs: list[str]) -> None:
    assert found(store, **wanted) == runs


def test_a_limit_is_of_what_was_looked_for(store: Path) -> None:
    assert ask(store, "--search", "h200", "--limit", "1").count("run-") == 1
    assert "No run is like that" in ask(store, "--search", "tpu")


def test_a_narrow_terminal_has_the_figures_below(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from paceline.cli.results import show_runs
    from paceline.report.render import terminal

    monkeypatch.setattr(terminal, "open_console", lambda: Console(width=80, force_terminal=True, no_color=True))
    with open_store(store) as opened:
        show_runs(listed(RunGlances(opened), 20))
    printed = " ".join(capsys.readouterr().out.split())
    assert LONG in printed
    assert "tagged before" in printed and "warnings: short 1" in printed
    assert "…" not in printed


def test_a_run_without_an_environment_is_listed(tmp_path: Path) -> None:
    with open_store(tmp_path / "bare.db") as opened:
        opened.begin(a_run("run-1", 1, environment={}))
        (run,) = listed(RunGlances(opened), 20)
    assert isinstance(run, ListedRun)
    assert run.figure == ""
    assert run.warnings == {}


# ---- runs and tags by name


@pytest.mark.parametrize(("typed", "meant"), [("befor", "before"), ("nigthly", "nightly"), ("rum-2", "run-2")])
def test_a_misspelt_run_or_tag_is_answered_with_the_nearest(store: Path, typed: str, meant: str) -> None:
    with open_store(store) as opened:
        for find in (opened.find_run, opened.find_runs):
            with refused("unknown-run", suggestion=meant, says=f"did you mean '{meant}'"):
                find(typed)


def test_a_tag_names_the_only_run_that_carries_it(store: Path) -> None:
    with open_store(store) as opened:
        assert opened.find_run("before") == "run-1"
        tag_both(opened)
        with refused("ambiguous-run", value="both", says="'both' is the tag of 2 runs: run-2, run-1"):
            opened.find_run("both")


def tag_both(opened: Store) -> None:
    from paceline.store.retention import change_run

    for run_id in ("run-1", "run-2"):
        change_run(opened, run_id, tags=["both"])


# ---- report --open


@pytest.mark.parametrize(("can_open", "said"), [(True, ""), (False, "there is no browser here")])
def test_a_report_is_opened_in_a_browser(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_open: bool, said: str
) -> None:
    opened: list[str] = []

    def browser(address: str) -> bool:
        opened.append(address)
        return can_open

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("webbrowser.open", browser)
    done = CliRunner().invoke(report, ["before", "--open", "--store", str(store)])
    assert done.exit_code == 0, done.output
    page = tmp_path / "data" / "paceline" / "reports" / "run-1.html"
    assert page.read_text().startswith("<!doctype html>")
    assert opened == [page.as_uri()]
    assert said in done.stderr


@pytest.mark.parametrize("others", [["--csv"], ["--charts", "d"], ["-o", "-"]])
def test_only_a_page_is_opened(store: Path, others: list[Any]) -> None:
    done = CliRunner().invoke(report_verb.command, ["last", "--open", *others, "--store", str(store)])
    assert done.exit_code == 2
