"""Outputs of programs that were recorded, and ways to spoil them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DATA = Path(__file__).parent.parent / "data"

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
)


def recorded(name: str) -> str:
    """What a program wrote."""
    return (DATA / name).read_text(encoding="utf-8")


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a JSON value."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def replaced(text: str, path: tuple[str | int, ...], value: Any) -> str:
    """The JSON text with another value at one place."""
    whole = json.loads(text)
    if not path:
        return json.dumps(value)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(whole)
