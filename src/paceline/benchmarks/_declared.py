"""Reads a word of what a benchmark's class says out of its source, without importing all that it needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from paceline.core.registry import named_like

_DEPTH = 3  # base classes above a benchmark's own


def declared(name: str, attribute: str) -> str | None:
    """The constant of the class with this name in a module that is called like it; None where that does not tell."""
    for module in named_like(name, "benchmarks"):
        for found in _classes(tree := _parsed(module)):
            if _constant(found, "name") == name:
                return _looked_up(found, tree, attribute, _DEPTH)
    return None


def _looked_up(found: ast.ClassDef, tree: ast.Module, attribute: str, depth: int) -> str | None:
    """Its own, or that of its first base class, wherever that comes from."""
    if _says(found, attribute) or not depth or not found.bases:
        return _constant(found, attribute)
    base = found.bases[0]
    base = base.value if isinstance(base, ast.Subscript) else base
    wanted = base.id if isinstance(base, ast.Name) else ""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and wanted in [alias.name for alias in node.names]:
            tree = _parsed(node.module)
            break
    above = next((one for one in _classes(tree) if one.name == wanted), None)
    return _looked_up(above, tree, attribute, depth - 1) if above is not None else None


def _parsed(module: str) -> ast.Module:
    try:
        spec = find_spec(module)
        return ast.parse(Path(spec.origin).read_bytes()) if spec and spec.origin else ast.Module([], [])
    except (ImportError, OSError, SyntaxError, ValueError):
        return ast.Module([], [])  # whoever imports it says what is wrong


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def _assigned(found: ast.ClassDef, attribute: str) -> Iterator[ast.expr]:
    for node in found.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == attribute for t in node.targets):
            yield node.value


def _says(found: ast.ClassDef, attribute: str) -> bool:
    return any(True for _ in _assigned(found, attribute))


def _constant(found: ast.ClassDef, attribute: str) -> str | None:
    values = [one.value for one in _assigned(found, attribute) if isinstance(one, ast.Constant)]
    return values[-1] if values and isinstance(values[-1], str) else None
