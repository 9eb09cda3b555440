"""A document that is no suite is refused, with what it is instead and what to write."""

from __future__ import annotations

import pytest

from paceline.core.errors import InputError
from paceline.core.suite import Suite
from support.refused import refused


@pytest.mark.parametrize(
    ("document", "code", "key"),
    [
        (None, "not-a-suite", None),
        ([1], "not-a-suite", None),
        ("gemm", "not-a-suite", None),
        ({"name": "x"}, "no-cases", "cases"),
        ({"name": "x", "cases": []}, "no-cases", "cases"),
        ({"name": "x", "cases": None}, "no-cases", "cases"),
        ({"name": "x", "cases": "gemm"}, "not-a-list", "cases"),
        ({"name": "x", "cases": {"benchmark": "gemm"}}, "not-a-list", "cases"),
        ({"name": "x", "cases": [{"benchmark": "gemm"}], "size": 5}, "unknown-key", "size"),
        ({"name": "x", "cases": [{"benchmark": "gemm"}], "origin": "local"}, "unknown-key", "origin"),
        ({"cases": [{"benchmark": "gemm"}]}, "missing-key", "name"),
        ({"name": 5, "cases": [{"benchmark": "gemm"}]}, "invalid-value", "name"),
    ],
)
def test_a_document_of_another_shape_is_refused(document: object, code: str, key: str | None) -> None:
    with refused(code, key=key, where="mine.yaml", case=None):
        Suite.read(document, "mine.yaml")


@pytest.mark.parametrize(
    ("cases", "number", "code", "key"),
    [
        ([{"benchmark": "gemm"}, "gemm"], 2, "not-a-mapping", None),
        ([None], 1, "not-a-mapping", None),
        ([{"benchmark": "gemm", 1: 2}], 1, "not-a-name", "1"),
    ],
)
def test_an_entry_of_another_shape_is_refused(cases: list[object], number: int, code: str, key: str | None) -> None:
    with refused(code, key=key, where=f"mine.yaml, case {number}", case=number):
        Suite.read({"name": "x", "cases": cases}, "mine.yaml")


def test_a_document_is_refused_with_what_it_is_instead() -> None:
    with pytest.raises(InputError, match="a suite is a mapping with 'name' and 'cases', but this is a list"):
        Suite.read([1], "mine.yaml")


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    with refused("unknown-key", key="case", suggestion="cases"):
        Suite.read({"name": "x", "case": [{"benchmark": "gemm"}]}, "mine.yaml")
