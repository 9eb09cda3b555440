"""Patterns of metrics mean what Python's regular expressions mean, or are refused."""

from __future__ import annotations

import itertools
import re

import pytest

from paceline.analysis.diagnose.rules import read_pattern
from support.refused import refused

TEXTS = ["".join(chars) for length in range(4) for chars in itertools.product("ab0-", repeat=length)]

PATTERNS = [
    "a", "ab", "a|b", "a|b0|", "^a", "a$", "^a$", "^$", "$", "^", "$a", "a^", "^ab$", "a$|^b", "(^a|b)0",
    "a*b", "^a*$", "^a+$", "^a?$", "^a*?b", "^a+?$", "^a??b", "^(ab)*$", "^(?:a|b)+$", "^(a|b0)?-$", "^(a*)*$",
    "^a{2}$", "^a{0}$", "^a{1,}$", "^a{0,1}b$", "^a{1,2}$", "^a{2}?$", "^(a|b){2}$", "^(ab?){1,2}$",
    ".", "^.{2}$", "a.b", r"^\d$", r"^\D$", r"^\w+$", r"^\W$", r"\Aa", r"\Ab0|a$", r"a\-", r"a\.", "^[ab]$", "^[^ab]$",
    "^[a-b]+$", "^[^a-b]$", "^[0-9]$", "^[a-]$", "^[-a]$", "^[]a]$", "^[^]a]$", r"^[\da]+$", r"^[^\da]$", "^[b^]$",
    r"\bb", "[:b]",
]  # fmt: skip


@pytest.mark.parametrize("source", PATTERNS)
def test_a_pattern_finds_all_that_pythons_finds_and_no_more(source: str) -> None:
    pattern, theirs = read_pattern(source), re.compile(source)
    assert [text for text in TEXTS if pattern.search(text)] == [text for text in TEXTS if theirs.search(text)]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("a" * 501, "too-many-characters"),
        ("((a{100}){100}){100}", "invalid-pattern"),
        ("a{2,1}", "invalid-pattern"),
        ("[b-a]", "invalid-pattern"),
        ("a|*", "invalid-pattern"),
        ("a+*", "invalid-pattern"),
        ("(", "invalid-pattern"),
        ("a)", "invalid-pattern"),
        ("[a-", "invalid-pattern"),
        (r"(a)\1", "invalid-pattern"),
        ("a(?=b)", "invalid-pattern"),
        ("(?<!a)b", "invalid-pattern"),
        (r"\q", "invalid-pattern"),
        (r"\pL", "invalid-pattern"),
        ("a{,2}", "ambiguous-pattern"),
        ("[[:alpha:]]", "ambiguous-pattern"),
        ("[a[:b]", "ambiguous-pattern"),
    ],
)
def test_what_is_no_pattern_or_means_several_things_is_refused(source: str, code: str) -> None:
    with refused(code, key="metrics"):
        read_pattern(source)


@pytest.mark.parametrize("source", [5, None, ["a"], ""])
def test_what_is_no_text_is_no_pattern(source: object) -> None:
    with refused("not-a-pattern", key="metrics", value=source):
        read_pattern(source)


def test_the_refusal_names_the_pattern_and_why() -> None:
    with refused("invalid-pattern", says=r"the pattern 'mem\(bw' cannot be used: missing \)"):
        read_pattern("mem(bw")


def test_a_pattern_that_tries_everything_takes_no_longer() -> None:
    assert not read_pattern("^(a+)+$").search("a" * 100_000 + "b")
