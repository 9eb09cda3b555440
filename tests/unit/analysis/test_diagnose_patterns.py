"""Patterns of metrics mean what Python's regular expressions mean, up to limits that are exact."""

from __future__ import annotations

import itertools
import re
import warnings

import pytest

from paceline.analysis.diagnose import patterns
from paceline.analysis.diagnose.patterns import read_pattern
from support.refused import refused

# Names of a line at most: what follows a second line end is no name.
TEXTS = ("".join(chars) for length in range(4) for chars in itertools.product("ab0-\n", repeat=length))
NAMES = [text for text in TEXTS if not text.endswith("\n\n")]

PATTERNS = [
    "a", "ab", "a|b", "a|b0|", "^a", "a$", "^a$", "^$", "$", "^", "$a", "a^", "a^b", "a$b", "^ab$", "a$|^b", "(^a|b)0",
    "a*b", "^a*$", "^a+$", "^a?$", "^ba?$", "^a*?b", "^a+?$", "^a??b", "^(ab)*$", "^(?:a|b)+$", "^(a|b0)?-$", "^(a*)*$",
    "^a{2}$", "^a{0}$", "^a{1}$", "^a{1,}$", "^a{2,}$", "^a{,2}$", "^a{,0}$", "^a{,}$", "^a{0,1}b$", "^a{1,2}$",
    "^a{2,2}$", "^a{2}?$", "^ab{2}$", "^(a|b){2}$", "^(ab?){1,2}$", "^a{0002}$",
    ".", "^.$", "^.{2}$", "a.b", "a.$", r"a\n", r"\n$", r"^\d$", r"^\D$", r"^\w+$", r"^\W$", r"^\s$", r"^\S+$", r"\Aa",
    r"\Ab0|a$", r"a\-", r"a\.", "^[ab]$", "^[^ab]$", "^[a-b]+$", "^[a-a]$", "^[^a-b]$", "^[0-9]$", "^[a-]$", "^[a-]b",
    "^[-a]$", "^[]a]$", "^[^]a]$", r"^[\da]+$", r"^[^\da]$", r"^[\-a]$", r"^[+-\.]$", r"[\n]", "^[b^]$",
]  # fmt: skip


@pytest.mark.parametrize("source", PATTERNS)
def test_a_pattern_finds_all_that_pythons_finds_and_no_more(source: str) -> None:
    pattern, theirs = read_pattern(source), re.compile(source)
    expected = [name for name in NAMES if theirs.search(name)]
    assert [name for name in NAMES if pattern.search(name)] == expected
    assert [name for name in reversed(NAMES) if pattern.search(name)] == expected[::-1]  # whatever it was asked before


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a12}", ["a12}"]),
        ("a{22", ["a{22"]),
        ("a{x}", ["a{x}"]),
        ("a{}", ["a{}"]),
        ("a{1,x}", ["a{1,x}"]),
        ("a{x,1}", ["a{x,1}"]),
        ("a{²}", ["a{²}"]),
        ("aA", ["aA"]),
        ("[a:]", ["a", ":"]),
        ("[[a]", ["[", "a"]),
        ("[]]", ["]"]),
        (r"[\]a]", ["]", "a"]),
        (r"\t\r\f\v\a", ["\t\r\f\v\a"]),
        (r"\(\[\{\\", ["([{\\"]),
        ("[A-C]", ["A", "B", "C"]),
        ("a{0001}b", ["ab"]),
    ],
)
def test_signs_that_begin_nothing_stand_for_themselves(source: str, names: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, of what may mean something else some day
        theirs = re.compile(source)
    asked = [*names, "", "a", "aa", "ab", "A", "12}", "}", "{", "x", "-", "D", "@", "a{1}", "a}", "2", "\\", "t"]
    pattern = read_pattern(source)
    assert all(pattern.search(name) for name in names)
    assert [name for name in asked if pattern.search(name)] == [name for name in asked if theirs.search(name)]


def test_a_class_of_characters_begins_no_range() -> None:
    pattern = read_pattern(r"^[\d-z]$")
    assert [char for char in "5-zey" if pattern.search(char)] == ["5", "-", "z"]


@pytest.mark.parametrize("text", ["a\n", "a\n\n", "\n", "\n\n", "ba\n", "a\nb", "ab\n"])
@pytest.mark.parametrize("source", ["a$", "^$", "a", "b$", "^a$", "a.$"])
def test_the_end_is_also_before_one_line_end(source: str, text: str) -> None:
    assert read_pattern(source).search(text) == (re.search(source, text) is not None)


def test_letters_and_digits_of_all_scripts_are_word_characters() -> None:
    for source, chars in ((r"^\w$", "é_Z٣"), (r"^\d$", "7٣"), (r"^\s$", "\t\u00a0")):
        assert all(read_pattern(source).search(char) for char in chars)


@pytest.mark.parametrize(
    "source",
    [
        "a" * 500,
        "(" * 30 + "a" + ")" * 30,
        "(a)" * 40,
        "a{200}",
        "a{0,200}",
        "a{200,}",
        "a{200}" * 4 + "a{199}",  # with the state that accepts, a thousand of them
        "(){200}" * 5,
    ],
)
def test_a_pattern_may_be_as_large_as_the_limits(source: str) -> None:
    assert read_pattern(source).search("a" * 1200)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("a" * 501, "too-many-characters"),
        ("(" * 31 + "a" + ")" * 31, "too-deep"),
        ("(a)" * 3 + "(" * 31 + "a" + ")" * 31, "too-deep"),
        ("a{201,}", "too-many-repeats"),
        ("a{,201}", "too-many-repeats"),
        ("a{0,201}", "too-many-repeats"),
        ("a{00001}", "too-many-repeats"),
        ("a{0,00001}", "too-many-repeats"),
        ("a{00001,}", "too-many-repeats"),
        ("a{200}" * 5, "too-large"),
        ("(){200}" * 5 + "(){2}", "too-large"),
        ("(){200}" * 5 + "(){2,}", "too-large"),
        ("a{2,1}", "invalid-range"),
        ("[b-a]", "invalid-range"),
        (r"[a-\d]", "invalid-range"),
        ("$*", "not-repeatable"),
        (r"\A*", "not-repeatable"),
        (r"\A{2}", "not-repeatable"),
        ("a|*", "nothing-to-repeat"),
        ("(+)", "nothing-to-repeat"),
        ("a|{2}", "nothing-to-repeat"),
        ("a??+", "two-quantifiers"),
        ("a?{2}", "two-quantifiers"),
        ("a+*", "two-quantifiers"),
        ("[a[:b]", "unsupported-class"),
        ("(?", "unfinished-pattern"),
        ("[]", "unfinished-pattern"),
        ("[^]", "unfinished-pattern"),
        ("[a-", "unfinished-pattern"),
        (r"\q", "unsupported-escape"),
        (r"\0", "unsupported-escape"),
    ],
)
def test_a_pattern_beyond_a_limit_is_refused(source: str, code: str) -> None:
    with refused(code, key="metrics"):
        read_pattern(source)


@pytest.mark.parametrize("source", [5, None, ["a"]])
def test_what_is_no_text_is_no_pattern(source: object) -> None:
    with refused("not-a-pattern", key="metrics", value=source):
        read_pattern(source)


def test_an_automaton_remembers_no_more_steps_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_MOST_REMEMBERED", 3)
    pattern = read_pattern("^(abcdef)*$")
    most = 0
    for name in ("abcdef", "abcdefabcdef", "abcdefabcdefab", "", "bcdef"):
        assert pattern.search(name) == (re.search("^(abcdef)*$", name) is not None)
        most = max(most, len(pattern._steps))
    assert most == 3
