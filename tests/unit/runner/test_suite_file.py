"""Suites by name and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.runner import suite_file
from paceline.runner.suite_file import load_suite, shipped
from support.refused import refused

SUITE = "name: {}\ncases: [{{benchmark: copy}}]\n"


def test_suites_come_with_every_provider_and_the_first_of_a_name_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for package in ("first_provider", "second_provider"):
        (tmp_path / package / "suites").mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "suites" / "shared.yaml").write_text(SUITE.format(package))
    (tmp_path / "second_provider" / "suites" / "more.yaml").write_text(SUITE.format("more"))
    (tmp_path / "one_module.py").touch()
    (tmp_path / "broken_provider").mkdir()
    (tmp_path / "broken_provider" / "__init__.py").write_text("raise SystemExit(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("broken_provider.inner", "no_such_provider", "one_module", "first_provider", "second_provider")
    monkeypatch.setattr(suite_file, "providers", lambda: names)
    shipped.cache_clear()
    try:
        assert list(shipped()) == ["shared", "more"]
        assert load_suite("shared").name == "first_provider"
        assert load_suite("more").name == "more"
        with refused("unknown-suite", value="mor", suggestion="more"):
            load_suite("mor")
    finally:
        shipped.cache_clear()


@pytest.mark.parametrize("name", ["mine.yaml", "mine.yml", "folder/mine"])
def test_a_path_is_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with refused("missing-file", value=name):
        load_suite(name)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(SUITE.format("mine"))
    assert load_suite(name).name == "mine"
    path.write_bytes(b"\xff\xfe")
    with refused("not-text", value=name):
        load_suite(name)


def test_a_suite_that_ships_is_found() -> None:
    name = next(iter(shipped()))
    assert load_suite(name).cases
