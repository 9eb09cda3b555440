"""The criterion of a rule as a small expression that is read and walked, and never run as code.

What may stand in one: numbers, true and false, the argument, `+ - * /`, comparisons, `and or not`, `a if b else c`,
`bool abs min max sum len`, and where the argument holds what earlier rules stored, `label["rule"]`,
`label["rule"].values()` and `label["rule"]["metric"]`. Nothing else: no other name, attribute, call or power.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import InputError

LONGEST_SOURCE = 2000
LONGEST_NAME = 300
DEEPEST = 40
LARGEST = 1e18  # of a number that is written
GRAMMAR = "use numbers, the argument, + - * /, comparisons, and/or/not, if/else, bool, abs, min, max, sum, len"

Stored = Mapping[str, float | Mapping[str, float]]  # by rule: how many metrics broke it, or the metrics' values
Argument = float | Stored

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS = ("bool", "abs", "min", "max", "sum", "len")


class Unanswerable(Exception):
    """A criterion has no answer for this argument: it divides by zero, or asks for a value that was not measured."""


class Term(ABC):
    """A part of a criterion; `is_truth` says that its value is true or false, else it is a number."""

    is_truth = False

    @abstractmethod
    def value(self, argument: Any) -> Any:
        """Its value for an argument."""


@dataclass(frozen=True)
class Criterion:
    """A condition under which something is defective."""

    source: str  # as it was written
    term: Term
    stored: frozenset[str]  # names of the rules whose counts it asks for
    collected: frozenset[str]  # names of the rules whose values it asks for

    def holds(self, argument: Argument) -> bool:
        """Whether it is true of the argument."""
        try:
            return bool(self.term.value(argument))
        except (ArithmeticError, KeyError, ValueError) as error:
            raise Unanswerable(_reason(error)) from None


def read_lambda(source: object, *, of_rules: bool = False) -> Criterion:
    """A criterion that is written as a Python lambda of one argument: `lambda x: x > 0.05`."""
    tree = _parse(source, "criteria")
    if not isinstance(tree, ast.Lambda):
        message = f"{_shown(source)} is not a criterion; write it like 'lambda x: x > 0.05'"
        raise InputError("not-a-lambda", message, key="criteria", value=source)
    given = tree.args
    others = (given.posonlyargs, given.vararg, given.kwonlyargs, given.kwarg, given.defaults, given.kw_defaults)
    if len(given.args) != 1 or any(others):
        message = f"{_shown(source)} must take one argument, like 'lambda x: x > 0.05'"
        raise InputError("not-one-argument", message, key="criteria", value=source)
    return _Reader("criteria", str(source), given.args[0].arg, of_rules=of_rules).read(tree.body)


def read_condition(source: object, *, argument: str, of_rules: bool = False) -> Criterion:
    """A criterion that is written as the condition alone: `x > 0.05`."""
    return _Reader("when", str(source), argument, of_rules=of_rules).read(_parse(source, "when"))


def _parse(source: object, key: str) -> ast.expr:
    if not isinstance(source, str):
        raise InputError("not-text", f"{_shown(source)} is not a criterion; write it as text", key=key, value=source)
    if len(source) > LONGEST_SOURCE:
        message = f"a criterion has at most {LONGEST_SOURCE:,} characters, but this has {len(source):,}"
        raise InputError("too-many-characters", message, key=key)
    if _brackets(source) > DEEPEST:  # seen before Python's parser has to
        raise InputError("too-deep", f"{_shown(source)} is nested more than {DEEPEST} deep", key=key, value=source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes: whatever is not allowed is refused below
            return ast.parse(source.strip(), mode="eval").body
    except SyntaxError as error:
        message = f"{_shown(source)} cannot be read: {error.msg}"
    except (ValueError, MemoryError, RecursionError):
        message = f"{_shown(source)} cannot be read; {GRAMMAR}"
    raise InputError("not-an-expression", message, key=key, value=source)


def _brackets(source: str) -> int:
    """How deep brackets stand in each other."""
    depth = deepest = 0
    for char in source:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    return deepest


class _Reader:
    """Makes terms of the syntax tree, and refuses all that is not allowed."""

    def __init__(self, key: str, source: str, argument: str, *, of_rules: bool) -> None:
        self.key = key
        self.source = source
        self.argument = argument
        self.of_rules = of_rules
        self.stored: set[str] = set()
        self.collected: set[str] = set()

    def read(self, tree: ast.expr) -> Criterion:
        term = self.term(tree, 0)
        if not term.is_truth:
            raise self.refused("not-a-condition", "gives a number, not true or false: compare it with something")
        return Criterion(self.source.strip(), term, frozenset(self.stored), frozenset(self.collected))

    def refused(self, code: str, why: str) -> InputError:
        return InputError(code, f"{_shown(self.source)} {why}", key=self.key, value=self.source)

    def not_allowed(self, node: ast.expr) -> InputError:
        return self.refused("not-allowed", f"may not say {self.part(node)}; {GRAMMAR}")

    def term(self, node: ast.expr, depth: int) -> Term:
        if depth > DEEPEST:
            raise self.refused("too-deep", f"is nested more than {DEEPEST} deep")
        depth += 1
        match node:
            case ast.Constant(value=bool() as value):
                return _Constant(value, is_truth=True)
            case ast.Constant(value=int() | float() as number):
                if not abs(number) <= LARGEST:
                    raise self.refused("out-of-range", f"has a number beyond {LARGEST:g}")
                return _Constant(number)
            case ast.Name(id=self.argument) if not self.of_rules:
                return _Argument()
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _Not(self.term(operand, depth))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                return _Sign(isinstance(sign, ast.USub), self.term(operand, depth))
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
                return _Arithmetic(_ARITHMETIC[type(op)], self.term(left, depth), self.term(right, depth))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
                terms = [self.term(part, depth) for part in (left, *others)]
                return _Comparison(tuple(_COMPARISONS[type(op)] for op in ops), tuple(terms))
            case ast.BoolOp(op=op, values=values):
                return _Logic(isinstance(op, ast.And), tuple(self.term(part, depth) for part in values))
            case ast.IfExp(test=test, body=body, orelse=other):
                return _Choice(self.term(test, depth), self.term(body, depth), self.term(other, depth))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
                return self.call(name, args, depth)
            case ast.Subscript():
                return self.subscript(node)
        raise self.not_allowed(node)

    def call(self, name: str, args: list[ast.expr], depth: int) -> Term:
        if name in ("min", "max", "sum", "len") and len(args) == 1:
            rule = self.collection(args[0], bare=name == "len")
            return _OfValues(name, rule)
        terms = tuple(self.term(part, depth) for part in args)
        if name in ("bool", "abs") and len(terms) == 1:
            return _Truth(terms[0]) if name == "bool" else _Absolute(terms[0])
        if name in ("min", "max") and len(terms) > 1:
            return _Extreme(name == "max", terms)
        raise self.refused("wrong-number-of-arguments", f"calls {name}() with {len(args)} arguments")

    def collection(self, node: ast.expr, *, bare: bool) -> str:
        """The rule of `label["rule"].values()`; of its bare mapping where only its size matters."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Subscript() as inner, attr="values"), args=[], keywords=[]):
                return self.rule(inner, self.collected)
            case ast.Subscript() if bare:
                return self.rule(node, self.collected)
        raise self.refused(
            "not-values-of-a-rule",
            f"needs values of a rule, like {self.argument}['rule'].values(), in place of {self.part(node)}",
        )

    def subscript(self, node: ast.Subscript) -> Term:
        if isinstance(node.value, ast.Subscript):
            return _OneValue(self.rule(node.value, self.collected), self.name(node.slice))
        return _Count(self.rule(node, self.stored))

    def rule(self, node: ast.Subscript, kind: set[str]) -> str:
        if not self.of_rules or not isinstance(node.value, ast.Name) or node.value.id != self.argument:
            raise self.not_allowed(node)
        name = self.name(node.slice)
        kind.add(name)
        return name

    def name(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=str() as text) if len(text) <= LONGEST_NAME:
                return text
        message = f"must name a rule or a metric between the brackets, in at most {LONGEST_NAME} characters"
        raise self.refused("not-a-name", message)

    def part(self, node: ast.AST) -> str:
        """The part of the source that is meant."""
        found = ast.get_source_segment(self.source.strip(), node) if isinstance(node, ast.expr) else None
        return _shown(found or type(node).__name__)


@dataclass(frozen=True)
class _Constant(Term):
    number: float
    is_truth: bool = False

    def value(self, argument: Any) -> Any:
        return self.number


@dataclass(frozen=True)
class _Argument(Term):
    def value(self, argument: Any) -> Any:
        return argument


@dataclass(frozen=True)
class _Not(Term):
    inner: Term
    is_truth = True

    def value(self, argument: Any) -> Any:
        return not self.inner.value(argument)


@dataclass(frozen=True)
class _Truth(Term):
    inner: Term
    is_truth = True

    def value(self, argument: Any) -> Any:
        return bool(self.inner.value(argument))


@dataclass(frozen=True)
class _Sign(Term):
    negative: bool
    inner: Term

    def value(self, argument: Any) -> Any:
        found = self.inner.value(argument)
        return -found if self.negative else +found


@dataclass(frozen=True)
class _Absolute(Term):
    inner: Term

    def value(self, argument: Any) -> Any:
        return abs(self.inner.value(argument))


@dataclass(frozen=True)
class _Arithmetic(Term):
    operation: Callable[[Any, Any], Any]
    left: Term
    right: Term

    def value(self, argument: Any) -> Any:
        return self.operation(self.left.value(argument), self.right.value(argument))


@dataclass(frozen=True)
class _Comparison(Term):
    operations: tuple[Callable[[Any, Any], bool], ...]
    terms: tuple[Term, ...]
    is_truth = True

    def value(self, argument: Any) -> Any:
        left = self.terms[0].value(argument)
        for operation, term in zip(self.operations, self.terms[1:], strict=True):
            right = term.value(argument)
            if not operation(left, right):
                return False
            left = right
        return True


@dataclass(frozen=True)
class _Logic(Term):
    is_and: bool
    terms: tuple[Term, ...]

    @property
    def is_truth(self) -> bool:  # type: ignore[override]
        return all(term.is_truth for term in self.terms)

    def value(self, argument: Any) -> Any:
        for term in self.terms:
            found = term.value(argument)
            if bool(found) != self.is_and:
                break
        return found


@dataclass(frozen=True)
class _Choice(Term):
    test: Term
    then: Term
    otherwise: Term

    @property
    def is_truth(self) -> bool:  # type: ignore[override]
        return self.then.is_truth and self.otherwise.is_truth

    def value(self, argument: Any) -> Any:
        return (self.then if self.test.value(argument) else self.otherwise).value(argument)


@dataclass(frozen=True)
class _Extreme(Term):
    highest: bool
    terms: tuple[Term, ...]

    def value(self, argument: Any) -> Any:
        return (max if self.highest else min)(term.value(argument) for term in self.terms)


@dataclass(frozen=True)
class _Count(Term):
    rule: str

    def value(self, argument: Any) -> Any:
        return argument[self.rule]


@dataclass(frozen=True)
class _OneValue(Term):
    rule: str
    metric: str

    def value(self, argument: Any) -> Any:
        return argument[self.rule][self.metric]


@dataclass(frozen=True)
class _OfValues(Term):
    function: str
    rule: str

    def value(self, argument: Any) -> Any:
        values = list(argument[self.rule].values())
        if self.function == "len":
            return len(values)
        if self.function == "sum":
            return sum(values)
        # A metric that is missing is no extreme; Python's answer would depend on where it stands.
        known = [one for one in values if not math.isnan(one)]
        return min(known) if self.function == "min" else max(known)


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} was not measured"
    if isinstance(error, ZeroDivisionError):
        return "it divides by zero"
    return "a number is too large" if isinstance(error, OverflowError) else "there are no values"


def _shown(source: object) -> str:
    text = source if isinstance(source, str) else repr(source)
    text = " ".join(text[:200].split())
    return f"'{text[:77]}...'" if len(text) > 80 else f"'{text}'"
