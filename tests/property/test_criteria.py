"""Whatever stands in a rule file: it is refused, or it means what Python means; and no pattern takes long."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from paceline.analysis.diagnose.rules import Unanswerable, read_document, read_lambda, read_pattern, rules_from_text
from paceline.core.errors import InputError

Pair = tuple[str, Callable[[Any], Any]]  # the source of a term, and what Python makes of it

_NUMBERS = st.one_of(st.integers(-1000, 1000), st.floats(-1e6, 1e6, allow_nan=False))
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def _constant(number: float) -> Pair:
    return f"({number!r})", lambda x: number


def _binary(word: str, operation: Callable[[Any, Any], Any], left: Pair, right: Pair) -> Pair:
    return f"({left[0]} {word} {right[0]})", lambda x: operation(left[1](x), right[1](x))


def _numbers(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(st.sampled_from(list(_ARITHMETIC.items())), pair).map(lambda t: _binary(*t[0], *t[1])),
        inner.map(lambda p: (f"abs({p[0]})", lambda x: abs(p[1](x)))),
        inner.map(lambda p: (f"-{p[0]}", lambda x: -p[1](x))),
        pair.map(lambda p: (f"min({p[0][0]}, {p[1][0]})", lambda x: min(p[0][1](x), p[1][1](x)))),
        pair.map(lambda p: (f"max({p[0][0]}, {p[1][0]})", lambda x: max(p[0][1](x), p[1][1](x)))),
    )


NUMBER = st.recursive(st.one_of(_NUMBERS.map(_constant), st.just(("x", lambda x: x))), _numbers, max_leaves=8)
COMPARISON = st.tuples(st.sampled_from(list(_COMPARE.items())), NUMBER, NUMBER).map(
    lambda t: _binary(t[0][0], t[0][1], t[1], t[2])
)


def _truths(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        inner.map(lambda p: (f"(not {p[0]})", lambda x: not p[1](x))),
        pair.map(lambda p: (f"({p[0][0]} and {p[1][0]})", lambda x: p[0][1](x) and p[1][1](x))),
        pair.map(lambda p: (f"({p[0][0]} or {p[1][0]})", lambda x: p[0][1](x) or p[1][1](x))),
        st.tuples(inner, inner, inner).map(
            lambda p: (f"({p[1][0]} if {p[0][0]} else {p[2][0]})", lambda x: p[1][1](x) if p[0][1](x) else p[2][1](x))
        ),
        inner.map(lambda p: (f"bool({p[0]})", lambda x: bool(p[1](x)))),
    )


TRUTH = st.recursive(COMPARISON, _truths, max_leaves=6)


@settings(max_examples=200)
@given(TRUTH, st.one_of(st.floats(-1e9, 1e9), st.just(float("nan")), st.just(float("inf"))))
def test_a_criterion_means_what_python_means(pair: Pair, x: float) -> None:
    source, oracle = pair
    try:
        criterion = read_lambda(f"lambda x: {source}")
    except InputError as error:
        assert error.code in ("too-many-characters", "too-deep")
        return
    try:
        expected = bool(oracle(x))
    except (ZeroDivisionError, OverflowError):
        with pytest.raises(Unanswerable):
            criterion.holds(x)
        return
    assert criterion.holds(x) is expected


@settings(max_examples=200)
@given(st.text(max_size=80))
@example("lambda x: x.real > 0")
@example("lambda x: " + "[" * 70)
def test_any_text_is_refused_or_is_a_condition(text: str) -> None:
    for source in (text, f"lambda x: {text}"):
        try:
            criterion = read_lambda(source)
        except InputError:
            continue
        with contextlib.suppress(Unanswerable):
            assert criterion.holds(1.0) in (True, False)


_WORDS = "x label values __class__ import lambda for in if else and not min bool"
_PIECES = st.sampled_from([*_WORDS.split(" "), *"()[]{}.,:+*<=", "**", ":=", "1", "0.05", "'a'", "\n", "\\"])
_ALLOWED = (
    ast.Expression, ast.Lambda, ast.arguments, ast.arg, ast.Constant, ast.Name, ast.Load, ast.UnaryOp, ast.BinOp,
    ast.Compare, ast.BoolOp, ast.IfExp, ast.Call, ast.Subscript, ast.Attribute, ast.operator, ast.unaryop, ast.cmpop,
    ast.boolop,
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(_PIECES, max_size=14), st.booleans())
def test_what_is_accepted_has_nothing_but_the_grammar(pieces: list[str], of_rules: bool) -> None:
    source = f"lambda {'label' if of_rules else 'x'}: " + " ".join(pieces)
    try:
        read_lambda(source, of_rules=of_rules)
    except InputError:
        return
    for node in ast.walk(ast.parse(source.strip(), mode="eval")):
        assert isinstance(node, _ALLOWED)
        if isinstance(node, ast.Attribute):
            assert node.attr == "values"
        if isinstance(node, ast.Name):
            assert node.id in ("x", "label", "bool", "abs", "min", "max", "sum", "len")
        assert not isinstance(node, ast.Pow)


_LETTERS = "ab/_0"


def _patterns() -> st.SearchStrategy[str]:
    atoms = st.one_of(
        st.sampled_from([*_LETTERS, ".", r"\d", r"\w", r"\D", r"\.", "[ab]", "[^a]", "[0-9_]", r"[\d/]", "^", "$", ""]),
        st.sampled_from(["a{2}", "b{1,2}", "a{1,}", "0{0}"]),
    )
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda p: f"({p[0]}|{p[1]})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{0,2}"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
        ),
        max_leaves=7,
    )


@settings(max_examples=250)
@given(_patterns(), st.lists(st.text(alphabet=_LETTERS, max_size=8), min_size=1, max_size=4))
def test_a_pattern_matches_where_pythons_does(source: str, names: list[str]) -> None:
    assume(source)
    try:
        theirs = re.compile(source)
    except re.error:
        return
    ours = read_pattern(source)
    for name in names:
        assert ours.search(name) == (theirs.search(name) is not None), (source, name)


@settings(max_examples=300)
@given(
    st.text(alphabet="ab()[]{}|*+?.\\^$0123456789,-dwsAZbB!<=:P", min_size=1, max_size=30), st.text("ab01", max_size=12)
)
def test_any_pattern_is_refused_or_matches_as_pythons(source: str, name: str) -> None:
    try:
        ours = read_pattern(source)
    except InputError:
        return
    try:
        theirs = re.compile(source)
    except (re.error, OverflowError):
        return  # more lenient with what Python finds odd is no harm
    assert ours.search(name) == (theirs.search(name) is not None)


@pytest.mark.parametrize(
    "source",
    [
        "(a+)+$",
        "(a|a)*$",
        "(a*)*b",
        "(.*a){12}$",
        "(a?){30}a{30}",
        "((a+)+)+$",
        "(a|b|ab)*c",
        r"(\w+\s?)*!",
        ".*.*.*.*.*x",
    ],
)
def test_patterns_that_are_catastrophic_elsewhere_match_in_time_that_grows_with_the_name(source: str) -> None:
    pattern = read_pattern(source)

    def seconds(length: int) -> float:
        started = time.process_time()
        pattern.search("a" * length)
        return time.process_time() - started

    # Backtracking would take longer than the age of the world for the second; here both are instants.
    assert seconds(30) + seconds(3000) < 5.0


@settings(max_examples=200)
@given(st.text(max_size=200))
@example("a: &a [*a]")
@example("!!python/object/apply:os.system [ls]")
def test_any_document_is_refused_or_is_plain_data(text: str) -> None:
    try:
        found = read_document(text)
    except InputError:
        return
    _assert_plain(found)


@settings(max_examples=100)
@given(st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20), st.just("lambda x: x > 0")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*"abc", "superbench", "rules", "function", "criteria", "metrics"]), inner),
    ),
    max_leaves=12,
))  # fmt: skip
def test_any_file_of_rules_is_refused_or_read(document: object) -> None:
    with contextlib.suppress(InputError):
        rules_from_text(json.dumps(document), "r")


def _assert_plain(value: object) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            assert type(key) is str
            _assert_plain(inner)
    elif isinstance(value, list):
        for inner in value:
            _assert_plain(inner)
    else:
        assert value is None or type(value) in (str, int, float, bool)
