"""SuperBench's rule files, unmodified: `superbench: rules: NAME: {function, criteria, categories, store, metrics}`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.analysis.diagnose.criteria import read_lambda
from paceline.analysis.diagnose.patterns import read_pattern
from paceline.analysis.diagnose.rules import Check, Rule, RuleSet, Selector, benchmark_of, check_references
from paceline.core.errors import InputError, unknown

_FUNCTIONS: dict[str, Check] = {
    "variance": "variance",
    "value": "value",
    "multi_rules": "multi",
    "failure_check": "failure",
}


def read(document: Mapping[str, Any], where: str) -> RuleSet:
    """The rules of a parsed file."""
    inner = document["superbench"]
    entries = inner.get("rules") if isinstance(inner, Mapping) else None
    if not isinstance(entries, Mapping) or not entries:
        raise InputError(f"{where}: 'superbench' has no 'rules', a mapping of at least one rule by its name")
    rules = tuple(_rule(name, entry, f"{where}, rule '{name}'") for name, entry in entries.items())
    check_references(rules, where)
    return RuleSet(Path(where).stem, rules)


def _rule(name: str, entry: Any, where: str) -> Rule:
    if not isinstance(entry, Mapping):
        raise InputError(f"{where}: a rule is a mapping with 'function', 'criteria', 'categories' and 'metrics'")
    if "categories" not in entry:
        raise InputError(f"{where}: 'categories' is missing")
    store = entry.get("store", False)
    if not isinstance(store, bool):
        raise InputError(f"{where}: 'store' = {store!r} must be true or false")
    function, criteria = entry.get("function"), entry.get("criteria")
    if function is None or criteria is None:
        if not store:
            raise InputError(f"{where}: '{'function' if function is None else 'criteria'}' is missing")
        if criteria is not None or function not in (None, "value", "variance"):
            raise InputError(f"{where}: a rule that stores has both 'function' and 'criteria', or neither of them")
    if function is not None and (not isinstance(function, str) or function not in _FUNCTIONS):
        raise unknown(f"function in {where}:", str(function), _FUNCTIONS)
    check = _FUNCTIONS[function] if function else "value"
    criterion = read_lambda(criteria, where, of_rules=check == "multi") if criteria is not None else None
    return Rule(
        name=name,
        check=check,
        category=str(entry["categories"]),
        selectors=() if check == "multi" else _selectors(entry, where),
        criterion=criterion,
        store=store,
        is_theirs=True,
    )


def _selectors(entry: Mapping[str, Any], where: str) -> tuple[Selector, ...]:
    metrics = entry.get("metrics")
    if isinstance(metrics, str):
        metrics = [metrics]
    if not isinstance(metrics, list) or not metrics:
        raise InputError(f"{where}: 'metrics' is missing; give a list like '- mem-bw/.*_bw'")
    return tuple(Selector(str(one), read_pattern(one, where), benchmark_of(str(one)) or "") for one in metrics)
