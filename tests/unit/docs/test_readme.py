"""What README says is so: install line, commands, output, picture, extras, exit codes and what `make` does."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli import run
from paceline.cli._running import INTERRUPTED
from paceline.cli.main import paceline
from paceline.core.errors import InputError
from support import docs_markdown as markdown
from support.docs_markdown import ROOT

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What a reader has, and a test that only asks does not.
PLACEHOLDERS = {"RUN", "before", "fleet", "./net.py:make", "hosts.txt"}
INLINE = [line for line in re.findall(r"`(paceline [^`]+)`", TEXT) if "\n" not in line]


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The lines of a table, without its head."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def test_the_first_screen_is_installing_three_commands_output_and_a_picture() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (_, install), (_, commands), (kind, output) = blocks[:3]
    target = shlex.split(install, comments=True)[2]
    assert target.startswith(".["), "a clone: nothing is published"
    assert set(target[2:-1].split(",")) <= PROJECT["optional-dependencies"].keys()
    assert len(commands.splitlines()) == 3 and all(line.startswith("paceline ") for line in commands.splitlines())
    assert kind == "text" and 12 <= len(output.splitlines()) <= 24
    assert "resnet50" in output
    assert TEXT.index("![") < TEXT.index("\n## "), "the picture comes before all headings"
    assert TEXT.index(output) < 60 * 80


@pytest.mark.parametrize("page", markdown.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_package_is_named_that_nobody_published(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    once_released = "pip install 'paceline[all]==0.2.0'" if page == ROOT / "CONTRIBUTING.md" else ""
    assert not re.findall(r"pip install '?paceline", text.replace(once_released, "") if once_released else text)


def test_no_message_names_a_package_that_nobody_published() -> None:
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".html", ".js")]
    assert not [path for path in sources if re.search(r"pip install '?paceline", path.read_text(encoding="utf-8"))]


def test_it_is_no_list_of_commands() -> None:
    lines = [line for block in markdown.blocks(README, "sh") for line in block.text.splitlines()]
    assert len(lines) <= 8


@pytest.mark.parametrize("line", INLINE)
def test_every_command_in_a_sentence_is_accepted(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (suite,) = markdown.blocks(README, "yaml")
    (tmp_path / "my-check.yaml").write_text(suite.text, encoding="utf-8")
    shutil.copy(ROOT / "tests" / "data" / "superbench" / "config.yaml", tmp_path / "azure_ndv4.yaml")
    monkeypatch.setattr(run.command, "params", list(run.command.params))  # a run adds flags of its own
    words = shlex.split(line)[1:]
    inner = words[words.index("--") + 1 :] if "--" in words else []
    for part in filter(None, (words[: words.index("--")] if inner else words, inner)):
        can_ask = part[0] == "run" and not PLACEHOLDERS & set(part)
        asked = CliRunner().invoke(paceline, [*part, "--dry-run" if can_ask else "--help"])
        assert asked.exit_code == 0, f"{line}: {asked.output}"


def test_extras_are_those_of_the_project() -> None:
    table = rows(section("What to install"))
    extras = {name: words for names, words in table for name in re.findall(r"\[(\w+)\]", names)}
    assert extras.keys() == PROJECT["optional-dependencies"].keys() - {"dev"}
    (every,) = PROJECT["optional-dependencies"]["all"]
    left_out = extras.keys() - set(re.findall(r"[\w]+", every.partition("[")[2])) - {"all", "site"}
    assert {word.strip("`[]") for word in re.findall(r"`\[\w+\]`", extras["all"])} == left_out


def test_the_oldest_python_is_that_of_the_project() -> None:
    assert set(re.findall(r"Python (3\.\d+) or newer", TEXT)) == {PROJECT["requires-python"].removeprefix(">=")}


def test_exit_codes_are_those_of_the_code() -> None:
    codes = {int(code): meaning for code, meaning in rows(section("A suite"))}
    assert codes.keys() == {0, 1, InputError.exit_code, 3, INTERRUPTED}
    assert codes[InputError.exit_code] == "the input was refused"


def test_make_has_the_two_commands_and_says_the_same_of_them() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    helped = dict(re.findall(r"^([a-z-]+):.*## (.*)$", makefile, re.MULTILINE))
    block = next(block.text for block in markdown.blocks(README, "sh") if "make run" in block.text)
    said = dict(re.findall(r"^make (\w+) +# (.*)$", block, re.MULTILINE))
    assert said.keys() == {"run", "test"}
    assert "paceline-report.html" in said["run"] and "--report paceline-report.html" in makefile
    minutes = re.findall(r"\d+ minutes on two cores", said["test"])
    assert minutes and minutes[0] in helped["test"]


def test_every_guide_is_linked_from_it_or_from_one_that_is() -> None:
    pages = {README, *((ROOT / link.partition("#")[0]).resolve() for link in markdown.links(README))}
    reached = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in pages
        if page.suffix == ".md"
        for link in markdown.links(page)
    }
    assert {path for path in (ROOT / "docs" / "guide").glob("*.md") if path not in pages | reached} == set()


def test_the_picture_is_there_and_described() -> None:
    found = re.search(r"!\[([^\]]+)\]\(([^)]+)\)", TEXT)
    assert found is not None
    assert len(found[1]) > 60
    assert (ROOT / found[2]).read_bytes().startswith(b"\x89PNG")
