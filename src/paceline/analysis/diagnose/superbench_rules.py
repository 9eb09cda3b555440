"""SuperBench's rule files, unmodified: `superbench: rules: NAME: {function, criteria, categories, store, metrics}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.analysis.diagnose.criteria import read_lambda
from paceline.analysis.diagnose.patterns import read_pattern
from paceline.analysis.diagnose.rules import Check, Rule, RuleSet, Selector, benchmark_of, check_references
from paceline.core.errors import InputError, located, unknown

_FUNCTIONS: dict[str, Check] = {
    "variance": "variance",
    "value": "value",
    "multi_rules": "multi",
    "failure_check": "failure",
}


def read(document: Mapping[str, Any], name: str) -> RuleSet:
    """The rules of a parsed file."""
    inner = document["superbench"]
    entries = inner.get("rules") if isinstance(inner, Mapping) else None
    if not isinstance(entries, Mapping) or not entries:
        message = "'superbench' has no 'rules', a mapping of at least one rule by its name"
        raise InputError("no-rules", message, key="superbench.rules")
    rules = []
    for rule_name, entry in entries.items():
        with located(f"rule '{rule_name}'"):
            rules.append(_rule(rule_name, entry))
    check_references(rules)
    return RuleSet(name, tuple(rules))


def _rule(name: str, entry: Any) -> Rule:
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
    return Rule(
        name=name,
        check=check,
        category=str(entry["categories"]),
        selectors=() if check == "multi" else _selectors(entry),
        criterion=criterion,
        store=store,
        is_theirs=True,
    )


def _selectors(entry: Mapping[str, Any]) -> tuple[Selector, ...]:
    metrics = entry.get("metrics")
    if isinstance(metrics, str):
        metrics = [metrics]
    if not isinstance(metrics, list) or not metrics:
        message = "'metrics' is missing; give a list like '- mem-bw/.*_bw'"
        raise InputError("missing-key", message, key="metrics")
    return tuple(Selector(str(one), read_pattern(one), benchmark_of(str(one)) or "") for one in metrics)
