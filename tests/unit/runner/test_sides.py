"""What two sides are, by how they are written, and what each of them then is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paceline.core.errors import InputError
from paceline.runner.sides import Ended, Side, commit_of, commit_side, make_side, package_side, read_kind, run_command
from support.refused import refused
from support.repository import commit, repository

RUN = ["run", "train"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two commits, in which everything here is done."""
    made = repository(tmp_path / "work")
    commit(made, {"figure": "1", "inner/figure": "1"})
    commit(made, {"figure": "2"})
    monkeypatch.chdir(made)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


@pytest.mark.parametrize(
    ("texts", "words", "kind"),
    [
        (("HEAD~1", "HEAD"), RUN, "commit"),
        (("main", "."), ["./train.sh"], "commit"),
        (("numpy==1.26", "numpy==2.1"), RUN, "packages"),
        (("numpy<2 scipy", "numpy>=2"), ["./train.sh"], "packages"),
        (("OMP_NUM_THREADS=1", "OMP_NUM_THREADS=2"), RUN, "env"),
        (("pause=1", "pause=2"), ["./train.sh"], "env"),
        (("batch_size=8", "batch_size=16"), RUN, "set"),
        (("train.batch-size=8", "compile=on,batch_size=16"), RUN, "set"),
        (("http://one:8000", "http://two:8000/v1"), ["run", "serve", "--server.model", "m"], "server"),
        (("sleep 1", "sh -c 'sleep 2'"), [], "command"),
        (("env:batch_size=8", "batch_size=16"), RUN, "env"),
        (("commit:HEAD", "commit:HEAD~1"), RUN, "commit"),
    ],
)
def test_sides_are_what_they_look_like(folder: Path, texts: tuple[str, str], words: list[str], kind: str) -> None:
    assert read_kind(texts, words)[0] == kind


@pytest.mark.parametrize(
    ("texts", "words", "code"),
    [
        (("HEAD", "numpy==1"), RUN, "unknown-sides"),
        (("nothing", "of-this"), RUN, "unknown-sides"),
        (("env:A=1", "set:a=1"), RUN, "two-kinds"),
        (("command:./a", "command:./b"), RUN, "command-with-words"),
        (("HEAD", "HEAD~1"), [], "nothing-to-measure"),
        (("set:a=1", "set:a=2"), ["./train.sh"], "not-a-run"),
        (("http://a:1", "http://b:1"), ["./train.sh"], "not-a-run"),
        (("http://a:1", "http://b:1"), ["run", "serve", "--load.rate", "9"], "missing-model"),
        (("sleep '1", "sleep 1"), [], "unreadable-command"),
    ],
)
def test_what_is_no_pair_is_refused(folder: Path, texts: tuple[str, str], words: list[str], code: str) -> None:
    with refused(code):
        read_kind(texts, words)


def test_what_may_be_two_things_is_asked_for(folder: Path) -> None:
    for name in ("a=1", "a=2"):
        os.system(f"git branch '{name}'")  # a name that git takes
    with refused("ambiguous-sides", value="a=1", suggestion="commit:a=1"):
        read_kind(("a=1", "a=2"), ["./train.sh"])


def test_settings_variables_servers_and_commands_need_no_folder() -> None:
    made = [make_side("A", "set", "batch_size=8,compile=on", RUN, None, print)]
    made.append(make_side("B", "server", "http://one:8000", RUN, None, print))
    assert made[0].settings == ("--set", "batch_size=8", "--set", "compile=on")
    assert made[1].settings == ("--set", "server.kind=url", "--set", "server.url=http://one:8000")
    assert make_side("A", "env", "A=1,B=x,y", RUN, None, print).variables == {"A": "1", "B": "x,y"}
    assert make_side("A", "env", "", RUN, None, print) == Side("A", "as-is")
    assert make_side("B", "command", "sh -c 'exit 3'", [], None, print).command == ("sh", "-c", "exit 3")
    with refused("not-a-setting", value="A"):
        make_side("A", "env", "A", RUN, None, print)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "serve", "--server.model", "m"],
        ["run", "serve", "--server.model=m"],
        ["run", "serve", "--set", "server.model=m"],
        ["run", "serve", "--server", "{model: m}"],
        ["run", "mine.yaml"],
    ],
)
def test_what_servers_call_their_model_may_be_said_in_many_ways(words: list[str]) -> None:
    assert read_kind(("http://a:1", "http://b:1"), words) == ("server", ["http://a:1", "http://b:1"])


def test_a_commit_is_a_worktree_that_is_made_once(folder: Path) -> None:
    said: list[str] = []
    first = commit_side("HEAD~1", None, sys.executable, "A (HEAD~1)", said.append)
    assert first.folder is not None
    assert (first.folder / "figure").read_text() == "1"
    assert (first.python, first.variables) == (None, {})
    assert first.label.startswith("HEAD~1@")
    assert len(said) == 1
    assert commit_side("HEAD~1", None, sys.executable, "A (HEAD~1)", said.append) == first
    assert len(said) == 1


def test_a_command_runs_in_the_same_folder_of_the_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "inner")
    monkeypatch.setenv("PYTHONPATH", f"{folder}/inner{os.pathsep}/elsewhere")
    side = commit_side("HEAD", None, sys.executable, "B (HEAD)", print)
    assert side.folder is not None
    assert (side.folder.name, side.folder.parent.name) == ("inner", "tree")
    assert side.variables["PYTHONPATH"] == f"{side.folder}{os.pathsep}/elsewhere"  # not the code of both


def test_the_working_tree_is_what_is_tracked_now(folder: Path) -> None:
    clean = commit_of(".")
    assert clean == commit_of("HEAD")
    (folder / "figure").write_text("3")
    (folder / "stray").write_text("")
    said: list[str] = []
    side = commit_side(".", None, sys.executable, "B (.)", said.append)
    assert side.folder is not None
    assert (side.folder / "figure").read_text() == "3"
    assert not (side.folder / "stray").exists()
    assert "git does not track" in said[0]
    assert side.label.startswith("working-tree@")
    assert (folder / "figure").read_text() == "3"


def test_a_build_that_fails_says_how_and_is_tried_again(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(InputError) as error:
            commit_side("HEAD", "echo missing header; exit 3", sys.executable, "A (HEAD)", print)
        assert (error.value.code, error.value.value) == ("build-failed", "A (HEAD)")
        assert str(error.value).startswith("A (HEAD) could not be built (exit code 3)")
        assert str(error.value).endswith("missing header")


def test_a_built_commit_has_an_environment_with_the_packages_that_are_here(folder: Path) -> None:
    side = commit_side("HEAD", "python -c 'import numpy' && touch built", sys.executable, "A (HEAD)", print)
    assert side.folder is not None
    assert (side.folder / "built").exists()
    assert side.python is not None
    assert side.python.startswith(side.variables["VIRTUAL_ENV"])
    assert side.variables["PATH"].startswith(side.variables["VIRTUAL_ENV"])


def test_there_is_no_such_commit(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for revision in ("absent", "--help", ""):
        with refused("unknown-commit", value=revision):
            commit_side(revision, None, sys.executable, "A", print)
    monkeypatch.chdir(tmp_path)
    assert commit_of("HEAD") is None
    assert commit_of(".") is None


def test_packages_that_cannot_be_installed_are_said(folder: Path) -> None:
    with pytest.raises(InputError) as error:
        package_side(["./absent"], sys.executable, "A (./absent)", print)
    assert error.value.code == "build-failed"
    assert "A (./absent) could not be installed" in str(error.value)


def test_a_command_gets_the_folder_and_the_variables_of_its_side(tmp_path: Path) -> None:
    side = Side("A", "x", folder=tmp_path, variables={"WORD": "hello"})
    ended = run_command(["sh", "-c", "pwd; echo $WORD >&2; exit 4"], side)
    assert ended.output.splitlines() == [str(tmp_path.resolve()), "hello"]
    assert (ended.code, ended.problem) == (4, "it exited with 4: hello")
    assert ended.seconds > 0
    assert Ended(1.0, "", -9).problem == "it was ended by SIGKILL"
    assert Ended(1.0, "fine", 0).problem == ""
    with refused("cannot-start", value="./absent"):
        run_command(["./absent"], side)
