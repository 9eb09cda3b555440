"""Rules of a diagnosis, ours or SuperBench's, with their patterns and criteria; none of it is run as code.

A criterion is a small expression that is read and walked. It may contain numbers, true and false, the argument,
`+ - * /`, comparisons, `and or not`, `a if b else c`, `bool abs min max sum len`, and where the argument holds what
earlier rules stored, `label["rule"]`, `label["rule"].values()` and `label["rule"]["metric"]`. Nothing else: no other
name, attribute, call or power.

A pattern is matched by RE2: its time grows with a name's length, whatever the pattern. Python's own matcher tries
alternatives one after the other, and a pattern such as `(a+)+$` makes it try exponentially many. What RE2 cannot do is
refused: back-references, looking ahead or behind, possessive and atomic groups. So is what the two would read
differently. As with `re.search`, a pattern may match anywhere in a name."""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from paceline.core.errors import InputError, located, nearest, unknown
from paceline.core.files import read_text
from paceline.core.parameters import refusal
from paceline.core.quantity import Fraction, parse_fraction
from paceline.core.yaml_text import read_yaml

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


LONGEST = 500
MOST_MEMORY = 2**20  # bytes of an automaton
_READ_DIFFERENTLY = re.compile(r"\[[^]]*\[:|\{,\d*\}")  # [[:alpha:]] and {,4} mean something in one of them alone


@dataclass(frozen=True)
class Pattern:
    """A pattern that was read."""

    source: str
    _compiled: Any

    def search(self, text: str) -> bool:
        """Whether it matches anywhere in the text."""
        return self._compiled.search(text) is not None


def read_pattern(source: object) -> Pattern:
    """A pattern out of a file of rules."""
    import re2

    if not isinstance(source, str) or not source:
        message = f"{source!r} is not a pattern of metrics; write text like 'mem-bw/.*_bw'"
        raise InputError("not-a-pattern", message, key="metrics", value=source)
    if len(source) > LONGEST:
        message = f"a pattern has at most {LONGEST} characters, but this has {len(source):,}"
        raise InputError("too-many-characters", message, key="metrics")
    if found := _READ_DIFFERENTLY.search(source):
        message = (
            f"the pattern '{source[:80]}' has '{found[0]}', which is read in several ways; write it as [a-z] or {{0,4}}"
        )
        raise InputError("ambiguous-pattern", message, key="metrics", value=source)
    options = re2.Options()
    options.log_errors, options.max_mem = False, MOST_MEMORY
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what may mean something else some day
            re.compile(source)
        return Pattern(source, re2.compile(source, options))
    except (re.error, re2.error, RecursionError, OverflowError) as error:
        why = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else error
        message = f"the pattern '{source[:80]}' cannot be used: {why}"
        raise InputError("invalid-pattern", message, key="metrics", value=source) from None


LONGEST_NUMBER = 30


def read_document(text: str) -> Any:
    """What a document holds: mappings by text, lists, text, numbers, true, false and null."""
    return read_yaml(text, most_bytes=256 * 1024, most_values=20_000, scalar=_scalar, key_of=str)


def _scalar(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("yes", "true", "on")
    if kind in ("int", "float"):
        if len(text) > LONGEST_NUMBER:
            message = f"a number has at most {LONGEST_NUMBER} digits"
            raise InputError("too-many-digits", message, value=text)
        with suppress(ValueError):  # 0x10, 1:30, .inf: nobody means these in a rule
            plain = text.replace("_", "")
            return int(plain, 10) if kind == "int" else float(plain)
    return text


_CHECKS: dict[str, Check] = {
    "variance": "variance",
    "value": "value",
    "multi_rules": "multi",
    "failure_check": "failure",
}


def _superbench_rule(name: str, entry: Any) -> Rule:
    if not isinstance(entry, Mapping):
        message = "a rule is a mapping with 'function', 'criteria', 'categories' and 'metrics'"
        raise InputError("not-a-rule", message, value=entry)
    if "categories" not in entry:
        raise InputError("missing-key", "'categories' is missing", key="categories")
    store = entry.get("store", False)
    if not isinstance(store, bool):
        raise InputError("not-a-boolean", f"'store' = {store!r} must be true or false", key="store", value=store)
    function, criteria = entry.get("function"), entry.get("criteria")
    if function is None or criteria is None:
        if not store:
            missing = "function" if function is None else "criteria"
            raise InputError("missing-key", f"'{missing}' is missing", key=missing)
        if criteria is not None or function not in (None, "value", "variance"):
            message = "a rule that stores has both 'function' and 'criteria', or neither of them"
            raise InputError("half-a-rule", message, key="criteria" if criteria is None else "function")
    if function is not None and (not isinstance(function, str) or function not in _CHECKS):
        raise unknown("function", str(function), _CHECKS, key="function")
    check = _CHECKS[function] if function else "value"
    criterion = read_lambda(criteria, of_rules=check == "multi") if criteria is not None else None
    metrics = entry.get("metrics") if check != "multi" else []
    if isinstance(metrics, str):
        metrics = [metrics]
    if not isinstance(metrics, list) or (not metrics and check != "multi"):
        message = "'metrics' is missing; give a list like '- mem-bw/.*_bw'"
        raise InputError("missing-key", message, key="metrics")
    return Rule(
        name=name,
        check=check,
        category=str(entry["categories"]),
        selectors=tuple(Selector(str(one), read_pattern(one), benchmark_of(str(one)) or "") for one in metrics),
        criterion=criterion,
        store=store,
        is_theirs=True,
    )


Check = Literal["outlier", "variance", "value", "multi", "failure"]
FAILED = "FailedTest"  # the category of what failed or is missing, in SuperBench's word


@dataclass(frozen=True)
class Selector:
    """Which metrics a rule looks at; `benchmark` narrows a pattern to the keys of one benchmark, as SuperBench does."""

    source: str
    pattern: Pattern
    benchmark: str | None = None

    def picks(self, name: str) -> bool:
        """Whether the rule looks at this metric."""
        if self.source == name:
            return True
        if self.benchmark is not None and benchmark_of(name) != self.benchmark:
            return False
        return self.pattern.search(name)


@dataclass(frozen=True)
class Rule:
    """One rule, from whichever format."""

    name: str
    check: Check
    category: str  # "" for the component of what is found
    selectors: tuple[Selector, ...] = ()  # none: the metrics that lead their cases
    criterion: Criterion | None = None
    worse_by: float | None = None  # in place of a criterion: so much in the metric's bad direction
    store: bool = False  # it makes no node defective: later rules ask for its results
    is_theirs: bool = False  # SuperBench's: a missing metric is reported, but alone makes no node defective

    @property
    def text(self) -> str:
        """The condition as a person wrote it."""
        if self.criterion is not None:
            return self.criterion.source
        if self.worse_by is not None:
            return f"worse by more than {100 * self.worse_by:g} %"
        return "worse than chance explains" if self.check == "outlier" else ""

    @property
    def needs_direction(self) -> bool:
        """Whether it only makes sense for metrics of which it is known which way is worse."""
        return self.check == "outlier" or self.worse_by is not None


@dataclass(frozen=True)
class RuleSet:
    """Rules in the order in which they are asked."""

    name: str
    rules: tuple[Rule, ...]

    @property
    def is_theirs(self) -> bool:
        """Whether it came from a file of SuperBench, so that metrics have its names."""
        return any(rule.is_theirs for rule in self.rules)

    @property
    def compares(self) -> bool:
        """Whether a rule compares nodes with a baseline, or with each other."""
        return any(rule.check in ("outlier", "variance") for rule in self.rules)


class RuleEntry(BaseModel):
    """A rule as it is written."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    check: Check
    """outlier: worse than chance explains; variance: the change from the baseline; value: the value itself; multi: what
    other rules found; failure: whether cases failed or metrics are missing"""
    metrics: list[str] | str | None = None
    """Regular expressions of names of metrics; unset is the metric that leads each case"""
    when: str | None = None
    """When a metric is bad, as a condition on x: the relative change, or the value; for multi on rules["name"]"""
    worse_by: Fraction | None = Field(default=None, ge=0)
    """For variance, in place of `when`: worse than the baseline by more than this"""
    category: str = ""
    """What defects of this rule are called; unset is the rule's name, for outlier the component"""
    store: bool = False
    """Accuse nobody, but let rules of kind multi ask how many metrics were bad, or what their values are"""

    @field_validator("worse_by", mode="before")
    @classmethod
    def _a_part(cls, value: object) -> object:
        if value is None or (isinstance(value, str) and value.strip().endswith("%")):
            return value
        if (part := parse_fraction(value)) > 1:  # who writes 3 means 3 %
            raise ValueError(f"{part:g} is {100 * part:g} %: write {part:g}% or {100 * part:g}%")
        return value

    @model_validator(mode="after")
    def _whole(self) -> RuleEntry:
        if self.worse_by is not None and (self.check != "variance" or self.when is not None):
            raise ValueError("'worse_by' goes with check: variance, and in place of 'when'")
        needs = {"variance": self.worse_by is None, "value": not self.store, "multi": True}
        is_empty = self.when is not None and not self.when.strip()
        if is_empty or (needs.get(self.check, False) and self.when is None):
            raise ValueError(f"check: {self.check} needs 'when', such as when: x > 0")
        if self.check == "outlier" and self.when is not None:
            raise ValueError("check: outlier takes no 'when': its limits come from the nodes")
        if self.check == "failure" and (self.when is not None or self.store):
            raise ValueError("check: failure takes neither 'when' nor 'store'")
        if self.check == "multi" and self.metrics is not None:
            raise ValueError("check: multi looks at other rules, not at metrics")
        return self


def default_rules() -> RuleSet:
    """What is asked unless a file says otherwise: nothing worse than chance explains, nothing failed or missing."""
    return RuleSet("default", (Rule("slower", "outlier", ""), Rule("failed", "failure", FAILED)))


def read_rules(path: Path) -> RuleSet:
    """The rules of a file, ours or SuperBench's."""
    return rules_from_text(read_text(path, "the file of rules", key="--rules"), str(path))


def rules_from_text(text: str, where: str) -> RuleSet:
    """The same from the text of a file."""
    with located(where):
        document = read_document(text)
        if not isinstance(document, Mapping):
            raise InputError("not-rules", "rules are a mapping with 'rules', or a rule file of SuperBench")
        name = Path(where).stem
        if "superbench" in document:
            inner = document["superbench"]
            entries = inner.get("rules") if isinstance(inner, Mapping) else None
            if not isinstance(entries, Mapping) or not entries:
                message = "'superbench' has no 'rules', a mapping of at least one rule by its name"
                raise InputError("no-rules", message, key="superbench.rules")
            return _rule_set(name, entries, _superbench_rule)
        for key in document:
            if key not in ("name", "rules"):
                guess = nearest(str(key), ("name", "rules")) or "rules"
                message = f"unknown key '{key}': did you mean '{guess}'?"
                raise InputError("unknown-key", message, key=str(key), suggestion=guess)
        entries = document.get("rules")
        if not isinstance(entries, Mapping) or not entries:
            raise InputError("no-rules", "'rules' must be a mapping of at least one rule by its name", key="rules")
        return _rule_set(str(document.get("name") or name), entries, _rule)


def _rule_set(name: str, entries: Mapping[str, Any], make: Callable[[str, Any], Rule]) -> RuleSet:
    rules = []
    for rule_name, entry in entries.items():
        with located(f"rule '{rule_name}'"):
            rules.append(make(rule_name, entry))
    check_references(rules)
    return RuleSet(name, tuple(rules))


def _rule(name: str, entry: Any) -> Rule:
    if not isinstance(entry, Mapping):
        raise InputError("not-a-rule", "a rule is a mapping with 'check'", value=entry)
    try:
        written = RuleEntry.model_validate(dict(entry))
    except ValidationError as error:
        raise refusal(error.errors(), RuleEntry) from None
    is_multi = written.check == "multi"
    criterion = None
    if written.when is not None:
        criterion = read_condition(written.when, argument="rules" if is_multi else "x", of_rules=is_multi)
    metrics = [written.metrics] if isinstance(written.metrics, str) else written.metrics or []
    return Rule(
        name=name,
        check=written.check,
        category=written.category or {"failure": FAILED, "outlier": ""}.get(written.check, name),
        selectors=tuple(Selector(source, read_pattern(source)) for source in metrics),
        criterion=criterion,
        worse_by=written.worse_by,
        store=written.store,
    )


def check_references(rules: Sequence[Rule]) -> None:
    """What a rule asks of others must have been stored before, as counts or as values."""
    stored: dict[str, set[str]] = {"count": set(), "values": set()}
    for rule in rules:
        criterion = rule.criterion
        needs = {"count": criterion.stored, "values": criterion.collected} if criterion else {}
        for what, names in needs.items():
            lacking = sorted(names - stored[what])
            if lacking:
                message = (
                    f"rule '{rule.name}' asks for the {what} of '{lacking[0]}', "
                    f"but no rule before it stores {'a count' if what == 'count' else 'values'} by that name"
                )
                raise InputError("not-stored", message, value=lacking[0])
        if rule.store:
            stored["count" if criterion or rule.needs_direction else "values"].add(rule.name)


def benchmark_of(name: str) -> str | None:
    """SuperBench's benchmark of a key: the part before '/', without its note."""
    return name.partition("/")[0].partition(":")[0] if "/" in name else None
