"""Completion in a real bash: verbs, benchmarks, suites, models, flags, runs and tags."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.completion import command as completion
from paceline.store import open_store
from support.refused import refused
from support.store_samples import a_run

SCRIPT = """
source <(paceline completion bash)
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
_paceline_completion paceline
echo "${COMPREPLY[*]}"
"""


def complete(store: Path, *words: str) -> list[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PACELINE_STORE": str(store)}
    command = ["bash", "-c", SCRIPT, "bash", "paceline", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (("resu",), {"results"}),
        (("run", "gem"), {"gemm"}),
        (("run", "fabric"), {"fabric-check"}),
        (("run", "train", "--model", "resnet15"), {"resnet152"}),
        (("run", "gemm", "--transpose"), {"--transpose-a", "--transpose-b"}),
        (("report", "bef"), {"before"}),
        (("compare", "before", "run-"), {"run-1"}),
    ],
)
def test_a_word_is_completed(tmp_path: Path, words: tuple[str, ...], answers: set[str]) -> None:
    with open_store(tmp_path / "store.db") as store:
        store.begin(a_run("run-1", tags=["before"]))
    assert set(complete(tmp_path / "store.db", *words)) == answers


def test_a_store_that_is_missing_completes_nothing_and_stays_missing(tmp_path: Path) -> None:
    assert complete(tmp_path / "none.db", "report", "x") == []
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("shell", "file", "word"),
    [
        ("bash", "data/bash-completion/completions/paceline", "complete -o nosort"),
        ("zsh", "zdot/.zfunc/_paceline", "#compdef paceline"),
        ("fish", "config/fish/completions/paceline.fish", "complete --no-files --command paceline"),
    ],
)
def test_the_script_is_installed_for_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, file: str, word: str
) -> None:
    for variable, folder in {"XDG_DATA_HOME": "data", "ZDOTDIR": "zdot", "XDG_CONFIG_HOME": "config"}.items():
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    done = CliRunner().invoke(completion, ["--install"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(str(tmp_path / file))
    assert word in (tmp_path / file).read_text()


def test_a_shell_without_completion_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    with refused("unknown-shell", key="SHELL", value="tcsh"):
        completion.main([], standalone_mode=False)
