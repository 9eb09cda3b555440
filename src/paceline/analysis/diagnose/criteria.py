"""The criterion of a rule as a small expression that is read and walked, and never run as code.

It may contain numbers, true and false, the argument, `+ - * /`, comparisons, `and or not`, `a if b else c`,
`bool abs min max sum len`, and where the argument holds what earlier rules stored, `label["rule"]`,
`label["rule"].values()` and `label["rule"]["metric"]`. Nothing else: no other name, attribute, call or power.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from paceline.core.errors import InputError

LONGEST_SOURCE = 2000
LONGEST_NAME = 300
DEEPEST = 40
LARGEST = 1e18  # of a number that is written
GRAMMAR = "use numbers, the argument, + - * /, comparisons, and/or/not, if/else, bool, abs, min, max, sum, len"

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
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"bool": bool, "abs": abs, "min": min, "max": max, "sum": sum, "len": len}


class Unanswerable(Exception):
    """A criterion has no answer for this argument: it divides by zero, or asks for a value that was not measured."""


@dataclass(frozen=True)
class Term:
    """A part of a criterion: its value for an argument, and whether that is true or false rather than a number."""

    value: Callable[[Any], Any]
    is_truth: bool = False


@dataclass(frozen=True)
class Criterion:
    """A condition under which something is defective."""

    source: str  # as it was written
    term: Term
    stored: frozenset[str]  # names of the rules whose counts it asks for
    collected: frozenset[str]  # names of the rules whose values it asks for

    def holds(self, argument: float | Mapping[str, float | Mapping[str, float]]) -> bool:
        """Whether it is true of a number, or of what earlier rules stored: a count, or the values by metric."""
        try:
            return bool(self.term.value(argument))
        except KeyError as error:
            raise Unanswerable(f"{error.args[0]!r} was not measured") from None
        except ZeroDivisionError:
            raise Unanswerable("it divides by zero") from None
        except OverflowError:
            raise Unanswerable("a number is too large") from None
        except (ArithmeticError, ValueError):
            raise Unanswerable("there are no values") from None


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
    depths = accumulate((char in "([{") - (char in ")]}") for char in source)
    if max(depths, default=0) > DEEPEST:  # checked before Python's parser has to
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
                return Term(lambda _: value, is_truth=True)
            case ast.Constant(value=int() | float() as number):
                if not abs(number) <= LARGEST:
                    raise self.refused("out-of-range", f"has a number beyond {LARGEST:g}")
                return Term(lambda _: number)
            case ast.Name(id=self.argument) if not self.of_rules:
                return Term(lambda argument: argument)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
                sign, inner = _SIGNS[type(op)], self.term(operand, depth)
                return Term(lambda argument: sign(inner.value(argument)), is_truth=isinstance(op, ast.Not))
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
                operation, one, other = _ARITHMETIC[type(op)], self.term(left, depth), self.term(right, depth)
                return Term(lambda argument: operation(one.value(argument), other.value(argument)))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
                terms = [self.term(part, depth) for part in (left, *others)]
                return _comparison([_COMPARISONS[type(op)] for op in ops], terms)
            case ast.BoolOp(op=op, values=values):
                return _logic([self.term(part, depth) for part in values], is_and=isinstance(op, ast.And))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition, then, otherwise = (self.term(part, depth) for part in (test, body, orelse))
                return Term(
                    lambda argument: (then if condition.value(argument) else otherwise).value(argument),
                    is_truth=then.is_truth and otherwise.is_truth,
                )
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
                return self.call(name, args, depth)
            case ast.Subscript(value=ast.Subscript() as inner_node, slice=key):
                rule, metric = self.rule(inner_node, self.collected), self.name(key)
                return Term(lambda argument: argument[rule][metric])
            case ast.Subscript():
                rule = self.rule(node, self.stored)
                return Term(lambda argument: argument[rule])
        raise self.not_allowed(node)

    def call(self, name: str, args: list[ast.expr], depth: int) -> Term:
        function = _FUNCTIONS[name]
        if name in ("min", "max", "sum", "len") and len(args) == 1:
            rule = self.collection(args[0], bare=name == "len")
            # A metric that is missing is no extreme; Python's answer would depend on its position.
            skips_missing = name in ("min", "max")
            return Term(
                lambda argument: function(
                    [value for value in argument[rule].values() if not (skips_missing and math.isnan(value))]
                )
            )
        terms = [self.term(part, depth) for part in args]
        if name in ("bool", "abs") and len(terms) == 1:
            return Term(lambda argument: function(terms[0].value(argument)), is_truth=name == "bool")
        if name in ("min", "max") and len(terms) > 1:
            return Term(lambda argument: function(term.value(argument) for term in terms))
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

    def rule(self, node: ast.Subscript, kind: set[str]) -> str:
        if not self.of_rules or not isinstance(node.value, ast.Name) or node.value.id != self.argument:
            raise self.not_allowed(node)
        name = self.name(node.slice)
        kind.add(name)
        return name

    def name(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= LONGEST_NAME:
            return node.value
        message = f"must name a rule or a metric between the brackets, in at most {LONGEST_NAME} characters"
        raise self.refused("not-a-name", message)

    def part(self, node: ast.expr) -> str:
        """The source text of a node."""
        return _shown(ast.get_source_segment(self.source.strip(), node) or type(node).__name__)


def _comparison(operations: Sequence[Callable[[Any, Any], bool]], terms: Sequence[Term]) -> Term:
    def value(argument: Any) -> bool:
        pairs = pairwise(term.value(argument) for term in terms)  # no term is asked for once the answer is known
        return all(operation(*pair) for operation, pair in zip(operations, pairs, strict=True))

    return Term(value, is_truth=True)


def _logic(terms: Sequence[Term], *, is_and: bool) -> Term:
    def value(argument: Any) -> Any:
        for term in terms:
            result = term.value(argument)
            if bool(result) != is_and:
                break
        return result

    return Term(value, is_truth=all(term.is_truth for term in terms))


def _shown(source: object) -> str:
    text = source if isinstance(source, str) else repr(source)
    text = " ".join(text[:200].split())
    return f"'{text[:77]}...'" if len(text) > 80 else f"'{text}'"
