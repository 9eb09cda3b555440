"""A document that is no suite is refused, with what it is instead and what to write."""

from __future__ import annotations

import pytest

from paceline.core.errors import InputError
from paceline.core.suite import Suite


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "a suite is a mapping with 'name' and 'cases', but this is empty"),
        ([1], "but this is a list"),
        ("gemm", "but this is a str"),
        ({"name": "x"}, "the suite has no cases"),
        ({"name": "x", "cases": []}, "the suite has no cases"),
        ({"name": "x", "cases": None}, "the suite has no cases"),
        ({"name": "x", "cases": "gemm"}, "'cases' must be a list of mappings"),
        (
            {"name": "x", "cases": [{"benchmark": "gemm"}, "gemm"]},
            "case 2 is 'gemm', but must be a mapping; write '- b",
        ),
        ({"name": "x", "cases": [None]}, "case 1 is empty, but must be a mapping"),
        ({"name": "x", "cases": [{"benchmark": "gemm", 1: 2}]}, "case 1: the key 1 is no name of a parameter"),
        (
            {"name": "x", "cases": [{"benchmark": "gemm"}], "size": 5},
            "unknown key 'size': what belongs to a case stands",
        ),
        ({"name": "x", "cases": {"benchmark": "gemm"}}, "'cases' must be a list of mappings"),
        ({"cases": [{"benchmark": "gemm"}]}, "'name' is missing; add 'name: ...' at the top"),
        ({"name": 5, "cases": [{"benchmark": "gemm"}]}, "'name' = 5: must be a text"),
        ({"name": "x", "case": [{"benchmark": "gemm"}]}, "unknown key 'case': did you mean 'cases'?"),
        ({"name": "x", "cases": [{"benchmark": "gemm"}], "origin": "local"}, "unknown key 'origin'"),
    ],
)
def test_a_document_of_another_shape_is_refused(document: object, words: str) -> None:
    with pytest.raises(InputError) as refused:
        Suite.read(document, "mine.yaml")
    assert str(refused.value).startswith("mine.yaml")
    assert words in str(refused.value)
