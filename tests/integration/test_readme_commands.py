"""The commands of README's first screen, typed one after another as they stand there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from support import docs_markdown as markdown
from support.cli import Sandbox, sandbox_in
from support.docs_markdown import ROOT

README = ROOT / "README.md"
# Figures of this machine are not asked for: every case is measured, for an instant each.
INSTANT = ("--set", "budget=100ms", "--set", "warm_up=50ms", "--set", "span=0s")
MINUTES = 900.0


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sandbox, dict[str, str]]]:
    """A folder in which all of them were typed, and what each printed."""
    printed = {}
    with sandbox_in(tmp_path_factory.mktemp("readme") / "sandbox") as sandbox:
        for line in markdown.commands(README):
            words = shlex.split(line)[1:]
            more = INSTANT if words[0] == "run" else ()
            done = sandbox.run(*words, *more, timeout=MINUTES)
            assert done.returncode == 0, f"{line}: {done.stdout} {done.stderr}"
            printed[line] = done.stdout
        yield sandbox, printed


@pytest.mark.long
def test_every_command_of_the_first_screen_works(typed: tuple[Sandbox, dict[str, str]]) -> None:
    sandbox, printed = typed
    assert len(printed) == 3
    page = (sandbox.work / "report.html").read_text(encoding="utf-8")
    assert "resnet50" in page
    assert "https://" not in re.sub(r"<!--.*?-->", "", page), "it needs no network"


@pytest.mark.long
def test_the_output_is_what_such_a_run_prints(typed: tuple[Sandbox, dict[str, str]]) -> None:
    """Figures differ from machine to machine; titles, columns and cases do not."""
    (shown,) = markdown.blocks(README, "text")
    ours = next(text for line, text in typed[1].items() if line == "paceline run")

    def frame(text: str) -> list[str]:
        """Headings, what the names share, and the cases: all that has no figure."""
        lines = [re.split(r"\s{2,}| \| ", line.strip())[0].strip() for line in text.splitlines()]
        return [line for line in lines if line and not re.fullmatch(r"[-─+]+", line)]

    expected = frame(shown.text)[2:]  # without the sentence, on two lines
    found = frame(ours.partition("cases measured")[2])
    assert [line for line in expected if line not in found] == []
