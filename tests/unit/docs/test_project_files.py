"""What a project needs around its code agrees with it: versions, commit messages, forms, hooks and workflows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.version import VERSION
from support.docs_markdown import ROOT
from support.project_tools import tool

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The files that a release is checked by, with a date in the changelog."""
    for name in ("CHANGELOG.md", "CITATION.cff", "src/paceline/version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(changelog.read_text(encoding="utf-8").replace("- unreleased", "- 2026-12-01", 1))
    return tmp_path


def test_the_changelog_has_this_version_first_and_uses_three_headings() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\S+) - (?:unreleased|\d{4}-\d{2}-\d{2})$", text, re.MULTILINE)
    assert versions[0] == VERSION
    assert len(versions) == text.count("\n## ")
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= {"Added", "Changed", "Fixed"}


def test_the_citation_and_the_security_policy_name_this_version() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == VERSION
    assert {"cff-version", "message", "title", "authors", "license"} <= citation.keys()
    minor = VERSION.rpartition(".")[0]
    assert f"| {minor}.x | yes |" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_a_release_is_checked_before_it_is_built(copied: Path) -> None:
    release = tool("check_release")
    assert release.problems(f"v{VERSION}", copied) == []
    (tag,) = release.problems("v99.0.0", copied)
    assert "v99.0.0" in tag
    (copied / "CITATION.cff").write_text("version: 0.0.1\n")
    (copied / "CHANGELOG.md").write_text(f"## {VERSION} - unreleased\n\n- a line\n")
    assert [problem.split()[0] for problem in release.problems(f"v{VERSION}", copied)] == [
        "CITATION.cff",
        "CHANGELOG.md",
    ]
    (copied / "CHANGELOG.md").write_text(f"## {VERSION} - 2026-12-01\n\n## 0.0.1 - 2026-11-01\n\n- a line\n")
    assert "says nothing" in release.problems(f"v{VERSION}", copied)[1]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (f"{'x' * 72}\n\nwhy\n", None),
        (f"{'x' * 73}\n", "73 characters"),
        (f"fixup! {'x' * 72}\n", None),
        (f"Merge branch '{'x' * 80}'\n", None),
        ("Refuse it.\n", "full stop"),
        ("Refuse it\nat once\n", "second line"),
        ("# only a comment\n\n", "empty"),
        (f"Refuse it\n# ------------------------ >8 -----\n{'x' * 90}\n", None),
        (f"\n# a comment\nRefuse it\n\n{'x' * 90}\n", None),
    ],
)
def test_commit_messages(message: str, words: str | None) -> None:
    found = tool("check_commit_message").problems(message)
    assert (words is None) == (found == [])
    assert words is None or words in found[0]


def test_git_refuses_a_long_subject_with_the_hooks_of_pre_commit(tmp_path: Path) -> None:
    pytest.importorskip("pre_commit", reason="install it with: pip install '.[dev]'")
    shutil.copy(ROOT / ".pre-commit-config.yaml", tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    def commit(subject: str) -> subprocess.CompletedProcess[str]:
        author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        return run("git", *author, "commit", "--allow-empty", "-m", subject)

    assert run("git", "init", "-q").returncode == 0
    assert commit("First").returncode == 0
    installed = run(sys.executable, "-m", "pre_commit", "install")
    assert installed.returncode == 0, installed.stdout + installed.stderr
    refused = commit("x" * 73)
    assert refused.returncode != 0
    assert "at most 72 are allowed" in refused.stdout + refused.stderr
    accepted = commit("Refuse control characters in request paths")
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    checked = run(sys.executable, "tools/check_commit_message.py", "--range", "HEAD~1..HEAD")
    assert checked.returncode == 0, checked.stderr


def test_the_hooks_run_what_make_lint_runs() -> None:
    recipe = re.search(r"^LINT := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe
    linted = {" ".join(part.split()[:2]) for part in re.findall(r"\$\(BIN\)/([^&]*)", recipe[1])}
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    entries = {hook["entry"] for hook in local["hooks"] if hook["entry"].startswith(".venv/bin/")}
    assert {" ".join(entry.removeprefix(".venv/bin/").split()[:2]) for entry in entries} == linted
    assert all(hook["language"] == "system" for hook in local["hooks"])


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_forms_are_what_code_hosts_take(form: Path) -> None:
    content = read(form)
    if form.stem == "config":
        assert content.keys() <= {"blank_issues_enabled", "contact_links"}
        return
    assert content.keys() == {"name", "description", "labels", "body"}
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_there_is_a_form_for_a_bug_a_wrong_number_and_a_new_benchmark() -> None:
    assert {form.stem for form in FORMS} == {"bug", "config", "new-benchmark", "wrong-number"}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_what_workflows_call_exists(workflow: Path) -> None:
    text = workflow.read_text(encoding="utf-8")
    assert read(workflow)["permissions"] == {"contents": "read"}
    for name in re.findall(r"python3? (tools/\S+)|(?<=run: )(\.ci/\S+)", text):
        assert (ROOT / "".join(name)).is_file()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?<=run: )make (\S+)", text):
        assert f"\n{target}:" in makefile


def test_only_a_tag_publishes_and_without_a_stored_secret() -> None:
    release = ROOT / ".github" / "workflows" / "release.yml"
    jobs = read(release)["jobs"]
    assert read(release)[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads 'on' as true
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in release.read_text(encoding="utf-8")
