"""How the values of flags are read."""

from __future__ import annotations

import pytest

from paceline.cli._flags import read_value


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("64", "64"),
        ("64,128", ["64", "128"]),
        ("a, b", ["a", "b"]),
        ("generated/fc:layers=2,width=64", "generated/fc:layers=2,width=64"),
        ("resnet50,generated/fc:layers=2, width=64,lstm", ["resnet50", "generated/fc:layers=2, width=64", "lstm"]),
        ("generated/fc,generated/fc:width=8", ["generated/fc", "generated/fc:width=8"]),
        ("uniform(1, 8),uniform(1, 4)", ["uniform(1, 8)", "uniform(1, 4)"]),
        ("[1, 2]", [1, 2]),
    ],
)
def test_a_comma_parts_values_unless_it_is_within_one(text: str, read: object) -> None:
    assert read_value([text]) == read
