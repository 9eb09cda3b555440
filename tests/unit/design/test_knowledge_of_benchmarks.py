"""Analysis, reports, service and pages know no benchmark by name, and look into no untyped dictionary of a record."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline
from paceline.core.benchmark import BENCHMARKS

SRC = Path(paceline.__file__).parent
ROOMS = ("analysis", "report", "service", "web")
UNTYPED = ("facts", "parameters", "environment")


def modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((SRC / room).rglob("*.py"))]


def holder(node: ast.expr) -> str:
    """The last name of what is looked into: `record.case.parameters` is parameters."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def looks_into(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a literal key is used on what has no types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_text(node.slice) and holder(node.value) in UNTYPED:
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            asks = node.func.attr in ("get", "pop", "setdefault")
            if asks and holder(node.func.value) in UNTYPED and is_text(node.args[0]):
                yield node.lineno, ast.unparse(node)
        is_asked = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn) and is_text(node.left)
        if is_asked and holder(node.comparators[0]) in UNTYPED:
            yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_no_benchmark_is_known_by_name(path: Path) -> None:
    names = set(BENCHMARKS.registry().entries)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = [
        (node.lineno, node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not said


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_no_literal_key_is_looked_up_in_what_has_no_types(path: Path) -> None:
    assert not list(looks_into(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "code",
    ["record.facts['device']", "facts.get('a')", "run.environment.pop('x', 1)", "'a' in case.parameters"],
)
def test_the_check_would_notice(code: str) -> None:
    assert list(looks_into(ast.parse(code)))


@pytest.mark.parametrize("code", ["record.facts[name]", "at['size']", "facts.items()", "name in case.parameters"])
def test_the_check_lets_the_rest_pass(code: str) -> None:
    assert not list(looks_into(ast.parse(code)))
