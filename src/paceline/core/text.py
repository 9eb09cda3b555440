"""Text that others wrote, such as a case's error or its output: made fit for every store, file and terminal.

Escape sequences drive a terminal, PostgreSQL takes no NUL, and a half of a surrogate pair, which is how Python reads a
byte that is not UTF-8, has no form in any file. Such characters are written out instead, as in `\\x1b`, so that they
stay visible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    """Text without control characters and surrogates; line ends, as line feeds, and tabs stay."""
    if _UNFIT.search(text) is None:
        return text
    return _UNFIT.sub(lambda match: match[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def clean_all(value: Any) -> Any:
    """Plain data with every text in it clean, its keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean_all(key): clean_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_all(item) for item in value]
    return value


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
