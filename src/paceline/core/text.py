"""Text that others wrote, such as a case's error or its output: made fit for every store, file and terminal.

Escape sequences drive a terminal, PostgreSQL takes no NUL, and a half of a surrogate pair, which is how Python reads a
byte that is not UTF-8, has no form in any file. Such characters are written out instead, as in `\\x1b`, so that they
stay visible.
"""

from __future__ import annotations

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
