"""YAML that people write: plain data, or a mistake that is refused with its line."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.errors import InputError
from paceline.core.yaml_text import read_yaml
from support.refused import refused

# Each line is flat, and all of them together are nested as deep as there are lines.
CHAIN = "x0: &x0 [1]\n" + "".join(f"x{n}: &x{n} [*x{n - 1}]\n" for n in range(1, 600))


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
        (CHAIN, "too-deep", "s.yaml, line 1"),
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


def test_what_is_nested_as_deep_as_allowed_is_read() -> None:
    lines = CHAIN.splitlines(keepends=True)
    assert len(read_yaml("".join(lines[:28]))) == 28
