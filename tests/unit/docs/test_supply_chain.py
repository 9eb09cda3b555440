"""The lock has all that the product needs at run time, in the versions that are tested; audits do not pretend."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.docs_markdown import ROOT
from support.project_tools import tool

LOCK = ROOT / "requirements.lock"
SHA = "0123456789abcdef" * 4


def pins(path: Path) -> dict[str, str]:
    found = tool("pin_hashes").pinned(path.read_text(encoding="utf-8"))
    return {canonicalize_name(name): version for name, version in found.items()}


def test_the_lock_has_all_that_is_needed_at_run_time_and_nothing_else() -> None:
    """To mend it: make lock."""
    assert set(pins(LOCK)) == tool("pin_hashes").run_time_names()


def test_the_lock_agrees_with_the_constraints_and_the_project() -> None:
    constraints, locked = pins(ROOT / "constraints.txt"), pins(LOCK)
    assert locked == {name: constraints[name] for name in locked}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [text for name in project["optional-dependencies"] for text in project["optional-dependencies"][name]]
    ranges = [Requirement(text) for text in [*project["dependencies"], *extras]]
    wrong = [str(one) for one in ranges if (at := locked.get(canonicalize_name(one.name))) and at not in one.specifier]
    assert wrong == []
    assert {canonicalize_name(Requirement(text).name) for text in project["dependencies"]} <= set(locked)


def test_every_locked_version_has_hashes() -> None:
    entries = LOCK.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()[1:]
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==\S+( +--hash=sha256:[0-9a-f]{64})+", entry), entry


@pytest.mark.parametrize("is_json", [True, False])
def test_hashes_are_those_of_the_version_for_linux(is_json: bool) -> None:
    files = {
        "some_thing-1.0-py3-none-any.whl": "a" * 64,
        "some_thing-1.0-cp311-cp311-manylinux_2_28_x86_64.manylinux_2_34_x86_64.whl": "b" * 64,
        "some_thing-1.0-cp312-abi3-manylinux_2_28_aarch64.whl": "c" * 64,
        "some_thing-1.0.tar.gz": "d" * 64,
        "some_thing-1.0-cp311-cp311-win_amd64.whl": "1" * 64,
        "some_thing-1.0-cp311-cp311-musllinux_1_2_x86_64.whl": "2" * 64,
        "some_thing-1.0.1-py3-none-any.whl": "3" * 64,
        "some_thing-1.0.exe": "4" * 64,
        "some_thing-1.0-not-a-wheel.whl": "5" * 64,
    }
    page = "".join(
        f'<a href="../../files/{name.replace("_", "%5F")}#sha256={sha}">x</a>' for name, sha in files.items()
    )
    if is_json:
        page = json.dumps({"files": [{"filename": name, "hashes": {"sha256": sha}} for name, sha in files.items()]})
    hashing = tool("pin_hashes")
    assert hashing.files_of(page) == files
    assert hashing.hashes(hashing.files_of(page), "1.0") == ["a" * 64, "b" * 64, "c" * 64, "d" * 64]


def test_what_an_index_has_no_hash_of_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashing = tool("pin_hashes")
    listed = {"good": {"good-1.0.tar.gz": SHA}, "bad": {"bad-2.0.tar.gz": SHA}}
    monkeypatch.setattr(hashing, "_listed", lambda name: listed[name])
    path = tmp_path / "pins.txt"
    path.write_text("# why\ngood==1.0\n")
    hashing.main([str(path)])
    assert path.read_text() == f"# why\ngood==1.0 \\\n    --hash=sha256:{SHA}\n"
    path.write_text("# why\ngood==1.0\nbad==1.0\n")
    with pytest.raises(SystemExit, match=r"no SHA-256 of: bad==1\.0; nothing was written"):
        hashing.main([str(path)])
    assert path.read_text() == "# why\ngood==1.0\nbad==1.0\n"


FLAW = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
FINE = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("answers", "code", "words"),
    [
        ([FINE, FINE], 0, "no known vulnerability in 2 packages"),
        ([FINE, FLAW], 1, "b 2: CVE-1, mended in 3"),
        ([FINE, SKIPPED], 3, "NOT AUDITED: the advisory service gave no answer about 1 of 2 packages"),
        ([FINE], 3, "NOT AUDITED: the advisory service gave no answer about 1 of 2 packages"),
    ],
)
def test_an_audit_without_an_answer_is_not_a_clean_one(answers: list[Any], code: int, words: str) -> None:
    assert tool("audit").verdict({"dependencies": answers}, 2) == (code, words)


def test_audited_is_what_the_sbom_lists_without_local_builds() -> None:
    components = [
        {"name": "torch", "version": "2.13.0+cpu"},
        {"name": "paceline", "version": "0.2.0"},
        {"name": "click", "version": "8.5.1"},
    ]
    assert tool("audit").pins({"components": components}) == ["click==8.5.1", "torch==2.13.0"]
