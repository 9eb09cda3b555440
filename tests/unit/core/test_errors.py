"""A refusal is data: it keeps its fields on its way out, between processes, and when it is told where it happened."""

from __future__ import annotations

import pickle

import pytest

from paceline.core.errors import InputError, located, nearest, unknown
from support.refused import refused

FIELDS = {"where": "mine.yaml", "case": 2, "key": "size", "value": 13, "suggestion": "12"}


def test_a_refusal_says_where_and_what() -> None:
    assert str(InputError("too-small", "too small")) == "too small"
    assert str(InputError("too-small", "too small", where="mine.yaml")) == "mine.yaml: too small"


def test_a_refusal_keeps_its_fields_between_processes() -> None:
    error = InputError("too-small", "too small", **FIELDS)  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is InputError
    assert vars(copy) == vars(error) and str(copy) == str(error)


def test_outside_fills_in_only_what_was_not_known_inside() -> None:
    bare = InputError("too-small", "too small").within("mine", case=1, key="model")
    assert (bare.where, bare.case, bare.key) == ("mine", 1, "model")
    full = InputError("too-small", "too small", **FIELDS).within("mine", case=1, key="model")  # type: ignore[arg-type]
    assert (full.where, full.case, full.key) == ("mine, mine.yaml", 2, "size")


def test_a_subclass_stays_itself() -> None:
    class Special(InputError):
        pass

    assert type(Special("a", "b").within("c")) is Special


def test_places_are_named_from_the_outside_in() -> None:
    with refused("too-small", where="mine, line 3", case=1), located("mine", case=1), located("line 3"):
        raise InputError("too-small", "too small")


def test_what_is_not_a_refusal_passes_through() -> None:
    with pytest.raises(KeyError), located("mine"):
        raise KeyError("x")


@pytest.mark.parametrize(
    ("kind", "code"), [("benchmark in --set", "unknown-benchmark"), ("Report Section", "unknown-report-section")]
)
def test_the_code_of_an_unknown_name_is_its_kind(kind: str, code: str) -> None:
    error = unknown(kind, "gem", ["gemm", "train"], key="benchmark")
    assert (error.code, error.key, error.value, error.suggestion) == (code, "benchmark", "gem", "gemm")
    assert unknown(kind, "zzz", ["gemm"]).suggestion is None


def test_of_many_names_twenty_are_listed() -> None:
    names = [f"{letter * 9}" for letter in "abcdefghijklmnopqrstu"]
    assert str(unknown("model", "?", names[:20])) == f"unknown model '?': known are {', '.join(names[:20])}"
    assert str(unknown("model", "?", names)) == f"unknown model '?': known are {', '.join(names[:20])} and 1 more"


def test_no_name_is_near_that_shares_less_than_half() -> None:
    assert nearest("GEM", ["train", "Gemm"]) == "Gemm"
    assert nearest("abcd", ["cdef"]) == "cdef"
    assert nearest("abcd", ["defg"]) is None
