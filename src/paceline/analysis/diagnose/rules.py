"""Regular expressions of rules, matched by RE2: its time grows with a name's length, whatever the pattern.

Python's own matcher tries alternatives one after the other, and a pattern such as `(a+)+$` makes it try exponentially
many. What RE2 cannot do is refused: back-references, looking ahead or behind, possessive and atomic groups. So is what
the two would read differently. As with `re.search`, a pattern may match anywhere in a name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline.analysis.diagnose.criteria import Criterion, read_condition, read_lambda
from paceline.core.errors import InputError, located, nearest, unknown
from paceline.core.files import read_text
from paceline.core.parameters import refusal
from paceline.core.quantity import Fraction
from paceline.core.yaml_text import read_yaml

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


_FUNCTIONS: dict[str, Check] = {
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
    if function is not None and (not isinstance(function, str) or function not in _FUNCTIONS):
        raise unknown("function", str(function), _FUNCTIONS, key="function")
    check = _FUNCTIONS[function] if function else "value"
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
