"""Suites by name and from files; YAML in which a mistake is refused with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.core.yaml_text import read_yaml
from paceline.runner import suite_file
from paceline.runner.suite_file import load_suite, shipped
from support.refused import refused

SUITE = "name: {}\ncases: [{{benchmark: copy}}]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1, {b: 2}]", {"a": [1, {"b": 2}]}),
        ("x: &x {a: 1, b: 2}\ny: {<<: *x, a: 3}", {"x": {"a": 1, "b": 2}, "y": {"a": 3, "b": 2}}),
        ("{1: a, '1': b, 1.5: c, ~: d}", {1: "a", "1": "b", 1.5: "c", None: "d"}),
        ("a: {b: 1}\nc: {b: 1}", {"a": {"b": 1}, "c": {"b": 1}}),
    ],
)
def test_yaml_is_read(text: str, expected: Any) -> None:
    assert read_yaml(text, "suite.yaml") == expected


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("a: 1\nb: 2\na: 3", "duplicate-key", "s.yaml, line 3"),
        ("x:\n  - {a: 1, a: 2}", "duplicate-key", "s.yaml, line 2"),
        ("1: a\n1: b", "duplicate-key", "s.yaml, line 2"),
        ("true: a\ntrue: b", "duplicate-key", "s.yaml, line 2"),
        ("a: 1\nb: [", "not-yaml", "s.yaml, line 2"),
        ("? [a]\n: 1", "not-yaml", "s.yaml, line 1"),
        ("? {a: 1}\n: 1", "not-yaml", "s.yaml, line 1"),
        ("a: 2026-13-45", "not-yaml", "s.yaml, line 1"),
        ("a: !!bool x", "not-yaml", "s.yaml, line 1"),
        ("~: a\n~: b", "duplicate-key", "s.yaml, line 2"),
        ("a: 1\nb: !mine 2", "forbidden-tag", "s.yaml, line 2"),
        ("a: \x00", "not-yaml", "s.yaml"),
        ("&a {x: [*a]}", "endless-anchor", "s.yaml, line 1"),
        ("[" * 2_000, "too-deep", "s.yaml, line 1"),
    ],
)
def test_a_mistake_is_refused_with_its_line(text: str, code: str, where: str) -> None:
    with refused(code, where=where):
        read_yaml(text, "s.yaml")


@pytest.mark.parametrize(("text", "has_hint"), [("a:\n\tb: 1", True), ("a: [", False)])
def test_tabs_are_named_where_they_are_the_mistake(text: str, has_hint: bool) -> None:
    with pytest.raises(InputError) as caught:
        read_yaml(text, "s.yaml")
    assert ("indented with spaces, not with tabs" in str(caught.value)) is has_hint


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
