"""JSON that others wrote: plain data with clean text, or a ValueError that says what is wrong with it.

Whoever reads it knows best what to call it, and raises the InputError.
"""

from __future__ import annotations

import json
from typing import Any

from paceline.core.text import clean_all

DEEPEST = 100  # levels of lists and objects


def parse_json(text: str | bytes, deepest: int = DEEPEST) -> Any:
    """The value of a text; ValueError for one that is not JSON, or is nested too deep to be handled safely."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep(deepest) from None
    check_depth(value, deepest)
    has_escapes = b"\\u" in text if isinstance(text, bytes) else "\\u" in text
    return clean_all(value) if has_escapes else value


def check_depth(value: Any, deepest: int = DEEPEST) -> None:
    """Refuse, with a ValueError, what is nested too deep to be handled safely."""
    level, depth = [value] if isinstance(value, dict | list) else [], 0
    while level:
        depth += 1
        if depth > deepest:
            raise _too_deep(deepest)
        parts = (part for one in level for part in (one.values() if isinstance(one, dict) else one))
        level = [part for part in parts if isinstance(part, dict | list)]


def _too_deep(deepest: int) -> ValueError:
    return ValueError(f"it is nested more than {deepest} deep")
