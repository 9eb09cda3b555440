"""Text of others, as every store, file and terminal takes it; and JSON of others, with bounds."""

from __future__ import annotations

import os
from typing import Any

import pytest

from paceline.core.text import clean, clean_all, parse_json


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("as it was: äöü 漢 🙂 \u200d\ta\nb", "as it was: äöü 漢 🙂 \u200d\ta\nb"),
        (os.fsdecode(b"d\xff"), r"d\udcff"),
        ("\x00\x1b[31m\x7f\x9b", r"\x00\x1b[31m\x7f\x9b"),
        ("windows\r\nand\rmac\x00", "windows\nand\\rmac\\x00"),
        (r"\x00 written out", r"\x00 written out"),
    ],
)
def test_what_is_unfit_is_written_out(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
    assert clean_all({text: [text, {"n": (text, 1.5, None)}]}) == {cleaned: [cleaned, {"n": [cleaned, 1.5, None]}]}
    assert clean(cleaned) == cleaned
    cleaned.encode()


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_json_is_plain_data_with_clean_text() -> None:
    assert parse_json(r'{"a\u0000": "\ud800", "b": "\ud83d\ude42"}') == {r"a\x00": r"\ud800", "b": "🙂"}
    assert parse_json(nested(100).encode()) is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (nested(101), "more than 100 deep"),
        (nested(100_000), "more than 100 deep"),
        ('{"a":' * 200 + "1" + "}" * 200, "more than 100 deep"),
        ("{", "Expecting property name"),
        (b"\xff\xff", "decode"),
        ("9" * 5000, "digits"),
    ],
)
def test_what_is_no_json_or_too_deep_is_a_value_error(text: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text)
