"""Criteria are read and walked: what SuperBench's files say is understood, everything else is refused at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from paceline.analysis.diagnose.rules import Unanswerable, read_condition, read_lambda
from paceline.core.errors import InputError
from support.refused import refused

HOSTILE = [
    ("lambda x: __import__('os').system('touch owned')", "not-allowed"),
    ("lambda x: x.__class__.__mro__[1].__subclasses__()", "not-allowed"),
    ("lambda x: ().__class__", "not-allowed"),
    ("lambda x: open('owned', 'w')", "not-allowed"),
    ("lambda x: exec('import os')", "not-allowed"),
    ("lambda x: eval('1') > 0", "not-allowed"),
    ("lambda x: [x for x in range(10**9)] == []", "not-allowed"),
    ("lambda x: (lambda: x)() > 0", "not-allowed"),
    ("lambda x: 9**9**9**9 > x", "not-allowed"),
    ("lambda x: 2 ** x > 1", "not-allowed"),
    ("lambda x: x << 10**9 > 0", "not-allowed"),
    ("lambda x: 'a' * 10**10 > x", "not-allowed"),
    ("lambda x: x > " + "9" * 400, "out-of-range"),
    ("lambda x: x > 1e999", "out-of-range"),
    ("lambda x: x > 1j", "not-allowed"),
    ("lambda x: x % 2 == 0", "not-allowed"),
    ("lambda x: x // 2 == 0", "not-allowed"),
    ("lambda x: x in (1, 2)", "not-allowed"),
    ("lambda x: x is True", "not-allowed"),
    ("lambda x: f'{x}' == ''", "not-allowed"),
    ("lambda x: (y := x) > 0", "not-allowed"),
    ("lambda x: x.values() == 0", "not-allowed"),
    ("lambda x: x['rule'] > 0", "not-allowed"),
    ("lambda x: max(x) > 0", "not-values-of-a-rule"),
    ("lambda x: max(*x) > 0", "not-values-of-a-rule"),
    ("lambda x: min(1, 2, key=abs) > 0", "not-allowed"),
    ("lambda x: abs(1, 2) > 0", "wrong-number-of-arguments"),
    ("lambda x: y > 0", "not-allowed"),
    ("lambda x: None", "not-allowed"),
    ("lambda x: ... > 0", "not-allowed"),
    ("lambda x: await_ > 0", "not-allowed"),
    ("lambda x, y: x > y", "not-one-argument"),
    ("lambda *x: x > 0", "not-one-argument"),
    ("lambda **x: x > 0", "not-one-argument"),
    ("lambda x=1: x > 0", "not-one-argument"),
    ("lambda x, /: x > 0", "not-one-argument"),
    ("lambda: 1 > 0", "not-one-argument"),
    ("lambda x: x + 1", "not-a-condition"),
    ("lambda x: x", "not-a-condition"),
    ("lambda x: x if x > 0 else False", "not-a-condition"),
    ("x > 0", "not-a-lambda"),
    (">", "not-an-expression"),
    ("5", "not-a-lambda"),
    ("", "not-an-expression"),
    ("lambda x: x > 0; import os", "not-an-expression"),
    ("lambda x: x >\x00 0", "not-an-expression"),
    ("lambda x: " + "(" * 150 + "x" + ")" * 150 + " > 0", "too-deep"),
    ("lambda x: " + "(" * 900 + "x" + ")" * 900 + " > 0", "too-deep"),
    ("lambda x: " + "-" * 500 + "x > 0", "too-deep"),
    ("lambda x: " + "not " * 400 + "x", "too-deep"),
    ("lambda x: " + "x+" * 900 + "x > 0", "too-deep"),
    ("lambda x: x > 0 or " + "x > 0 and " * 5000 + "x > 0", "too-many-characters"),
]


@pytest.mark.parametrize(("source", "code"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_not_allowed_is_refused_and_runs_nothing(
    source: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = time.process_time()
    with refused(code, key="criteria"):
        read_lambda(source)
    assert time.process_time() - started < 1.0  # a few milliseconds where nothing else computes
    assert list(tmp_path.iterdir()) == []


HOSTILE_OF_RULES = [
    ("lambda label: label.values() > 0", "not-allowed"),
    ('lambda label: label["a"].keys() > 0', "not-allowed"),
    ('lambda label: label["a"].values(1) > 0', "not-allowed"),
    ('lambda label: label["a"].values().__class__ > 0', "not-allowed"),
    ('lambda label: min(label["a"].values) > 0', "not-values-of-a-rule"),
    ("lambda label: label[0] > 0", "not-a-name"),
    ("lambda label: label['" + "a" * 400 + "'] > 0", "not-a-name"),
    ('lambda label: label["a"]["b"]["c"] > 0', "not-allowed"),
    ('lambda label: other["a"] > 0', "not-allowed"),
    ("lambda label: label > 0", "not-allowed"),
    ('lambda label: min(label["a"]) > 0', "not-values-of-a-rule"),
    # As SuperBench's manual has it, with a bracket too many.
    ('lambda label: bool(min(label["rule7"].values()))<1)', "not-an-expression"),
]


@pytest.mark.parametrize(("source", "code"), HOSTILE_OF_RULES, ids=range(len(HOSTILE_OF_RULES)))
def test_of_other_rules_only_counts_and_values_can_be_asked(source: str, code: str) -> None:
    with refused(code, key="criteria", value=source):
        read_lambda(source, of_rules=True)


@pytest.mark.parametrize(
    ("source", "argument", "expected"),
    [
        ("lambda x:x>0.05", 0.06, True),
        ("lambda x:x>0.05", 0.05, False),
        ("lambda x: x < -0.05", -0.06, True),
        ("lambda x:x!=0", 0.0, False),
        ("lambda value: 1 <= value < 2", 1.5, True),
        ("lambda value: 1 <= value < 2", 2.0, False),
        ("lambda x: x < -0.05 or x > 0.05", 0.2, True),
        ("lambda x: not (x > 1 and x < 3)", 2.0, False),
        ("lambda x: abs(x) > 0.1", -0.2, True),
        ("lambda x: True if x >= 2 else False", 2.0, True),
        ("lambda x: max(x, 3) / min(x, 2) > 1.4", 3.0, True),
        ("lambda x: (x + 1) * 2 - 4 == 0", 1.0, True),
        ("lambda x: True", 0.0, True),
    ],
)
def test_conditions_on_a_number_hold_as_in_python(source: str, argument: float, expected: bool) -> None:
    assert read_lambda(source).holds(argument) is expected


COUNTS = {"rule1": 1, "rule2": 1}
VALUES = {"rule7": {"a/x:0": 10.0, "a/x:1": 20.0}}


@pytest.mark.parametrize(
    ("source", "stored", "expected"),
    [
        ('lambda label:True if label["rule1"]+label["rule2"]>=2 else False', COUNTS, True),
        ('lambda label: bool(label["rule1"]+label["rule2"]>=3)', COUNTS, False),
        ('lambda label: bool(min(label["rule7"].values())<11)', VALUES, True),
        ('lambda label: min(label["rule7"].values())/max(label["rule7"].values())<0.95', VALUES, True),
        ("lambda label: sum(label['rule7'].values()) == 30 and len(label['rule7']) == 2", VALUES, True),
        ("lambda label: label['rule7']['a/x:1'] - label['rule7']['a/x:0'] > 5", VALUES, True),
    ],
)
def test_conditions_on_what_rules_stored(source: str, stored: dict[str, object], expected: bool) -> None:
    assert read_lambda(source, of_rules=True).holds(stored) is expected  # type: ignore[arg-type]


def test_a_criterion_says_which_rules_it_asks() -> None:
    found = read_lambda('lambda label: label["a"] > len(label["b"].values())', of_rules=True)
    assert (found.stored, found.collected) == ({"a"}, {"b"})


def test_a_condition_of_ours_needs_no_lambda() -> None:
    assert read_condition("x > 90", argument="x").holds(91.0)
    with refused("not-allowed", key="when"):
        read_condition("lambda x: x > 90", argument="x")


@pytest.mark.parametrize(
    ("source", "stored", "why"),
    [
        ("lambda label: 1 / label['a'] > 2", {"a": 0}, "divides by zero"),
        ("lambda label: min(label['a'].values()) > 2", {"a": {}}, "no values"),
        ("lambda label: label['a']['b'] > 2", {"a": {}}, "'b' was not measured"),
    ],
)
def test_what_has_no_answer_says_why(source: str, stored: dict[str, object], why: str) -> None:
    with pytest.raises(Unanswerable, match=why):
        read_lambda(source, of_rules=True).holds(stored)  # type: ignore[arg-type]


def test_a_missing_value_is_no_extreme_wherever_it_stands() -> None:
    criterion = read_lambda('lambda label: min(label["a"].values()) < 5', of_rules=True)
    nan = float("nan")
    for values in ([nan, 4.0, 9.0], [4.0, nan, 9.0], [9.0, 4.0, nan]):
        assert criterion.holds({"a": dict(zip("bcd", values, strict=True))})


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("lambda x: x > 0 or x", "not-a-condition"),
        ("lambda x: x and x > 0", "not-a-condition"),
        ("lambda x: False if x > 0 else x", "not-a-condition"),
        ("lambda x: abs(x)", "not-a-condition"),
        ("lambda x: -(x > 0)", "not-a-condition"),
        ("lambda x: max(x, 1)", "not-a-condition"),
        ("lambda x: 0 < x is True", "not-allowed"),
        ("lambda x: x is True < 5", "not-allowed"),
        ("lambda x: ~x > 0", "not-allowed"),
        ("lambda x: sum(1, 2) > 0", "wrong-number-of-arguments"),
        ("lambda x: len(1, 2) > 0", "wrong-number-of-arguments"),
        ("lambda x: bool(1, 2)", "wrong-number-of-arguments"),
        ("lambda x: min() > 0", "wrong-number-of-arguments"),
        ("lambda x: abs() > 0", "wrong-number-of-arguments"),
        ("lambda x, *y: x > 0", "not-one-argument"),
        ("lambda x, *, y: x > 0", "not-one-argument"),
        ("lambda x, **y: x > 0", "not-one-argument"),
        ("lambda x: x > 1.1e18", "out-of-range"),
        ("lambda x: x > 1000000000000000001", "out-of-range"),
        ("lambda x: " + "(" * 41 + "x" + ")" * 41 + " > 0", "too-deep"),
        ("lambda x: " + "-" * 40 + "x > 0", "too-deep"),
        ("lambda x: x > 0" + " " * 1986, "too-many-characters"),
    ],
)
def test_what_is_just_beyond_the_grammar_is_refused(source: str, code: str) -> None:
    with refused(code, key="criteria"):
        read_lambda(source)


@pytest.mark.parametrize(
    ("source", "argument", "expected"),
    [
        ("lambda x: x > 0" + " " * 1985, 1.0, True),
        ("lambda x: " + "(" * 40 + "x" + ")" * 40 + " > 0", 1.0, True),
        ("lambda x: max(" + "(x), " * 50 + "(x)) > 0", 1.0, True),  # brackets beside each other are not deep
        ("lambda x: " + "-" * 39 + "x > 0", -1.0, True),
        ("lambda x: x >= 1000000000000000000", 1e18, True),
        ("lambda x: x <= -1e18", -1e18, True),
        ("lambda x: bool(x)", 0.0, False),
        ("lambda x: bool(x)", 2.0, True),
        ("lambda x: not x", 0.0, True),
        ("lambda x: +x == 2", 2.0, True),
        ("lambda x: 1 < x < 3 < 5", 2.0, True),
        ("lambda x: 1 < x < 3 < 2", 2.0, False),
        ("lambda x: 3 < x < 5 < 6", 2.0, False),
        ("lambda x: False or x > 1 or False", 2.0, True),
        ("lambda x: True and x > 1 and True", 1.0, False),
        ("lambda x: min(x, 3, 5) == 3", 4.0, True),
        ("  lambda x: x > 1  ", 2.0, True),
    ],
)
def test_conditions_up_to_the_limits_hold_as_in_python(source: str, argument: float, expected: bool) -> None:
    criterion = read_lambda(source)
    assert criterion.holds(argument) is expected
    assert criterion.source == source.strip()


def test_a_name_between_brackets_has_at_most_300_characters() -> None:
    name = "a" * 300
    criterion = read_lambda(f"lambda label: label['{name}'] > 0", of_rules=True)
    assert criterion.stored == {name}
    assert criterion.holds({name: 1})
    with refused("not-a-name"):
        read_lambda(f"lambda label: label['{name}a'] > 0", of_rules=True)
    with refused("not-a-name"):
        read_lambda("lambda label: label[b'a'] > 0", of_rules=True)


def test_a_sum_and_a_count_include_what_is_missing() -> None:
    stored = {"a": {"b": 4.0, "c": float("nan"), "d": -9.0}}
    for source, expected in (
        ("sum(label['a'].values()) < 5", False),
        ("sum(label['a'].values()) > -100", False),
        ("len(label['a'].values()) == 3", True),
        ("len(label['a']) == 3", True),
        ("max(label['a'].values()) == 4", True),
        ("min(label['a'].values()) == -9", True),
    ):
        assert read_lambda(f"lambda label: {source}", of_rules=True).holds(stored) is expected


def test_a_number_that_grows_too_large_has_no_answer() -> None:
    product = " * ".join(["1000000000000000000"] * 20)
    with pytest.raises(Unanswerable, match="a number is too large"):
        read_lambda(f"lambda x: x * ({product}) > 0").holds(1.5)


@pytest.mark.parametrize("source", [5, None, ["lambda x: x > 0"], True])
def test_what_is_no_text_is_no_criterion(source: object) -> None:
    for read in (read_lambda, lambda one: read_condition(one, argument="x")):
        with refused("not-text", value=source, says="^'.*' is not a criterion; write it as text$"):
            read(source)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("y > 0", "'y > 0' may not say 'y';"),
        ("   x + y > 0  ", r"'x \+ y > 0' may not say 'y';"),
        ("x > 0 or z(x)", r"may not say 'z\(x\)';"),
        ("x +" + " y" * 37 + " ww", "'x .* y ww' cannot be read"),  # of 80 signs
        ("x +" + " y" * 37 + " www", r"'x \+( y){37}\.\.\.' cannot be read"),
        ("y" + " " * 198 + "zw", "'y z' cannot be read"),
    ],
)
def test_a_refusal_shows_the_part_that_is_wrong_and_not_all_of_a_long_text(source: str, shown: str) -> None:
    with pytest.raises(InputError, match=f"^{shown}" if shown.startswith("'") else shown):
        read_condition(source, argument="x")
