"""A fleet in one table: statistics of metrics over nodes and ranks, by rules of ours or of SuperBench's.

name: weekly
rules:
  products:
    statistics: [count, mean, std, min, p50, p99, max]
    metrics: ["gemm .*/compute_rate"]   # unset is the metric that leads each case
    aggregate: true                     # over ranks; or a pattern, whose groups become *
    category: Compute
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.diagnose.rules import Selector, benchmark_of, read_document, read_pattern
from paceline.analysis.diagnose.table import MetricColumn, NodeTable
from paceline.core.errors import InputError, located, unknown
from paceline.core.files import read_text

Values = NDArray[np.float64]
_STATISTICS: dict[str, Callable[[Values], float]] = {
    "count": lambda values: float(values.size),
    "mean": lambda values: float(values.mean()),
    "std": lambda values: float(values.std(ddof=1)),
    "min": lambda values: float(values.min()),
    "max": lambda values: float(values.max()),
}
_PERCENTILE = re.compile(r"p([1-9]\d?)")
_KEYS = {"statistics", "metrics", "aggregate", "category", "categories"}
DEFAULT = ("count", "mean", "std", "min", "p50", "max")


@dataclass(frozen=True)
class SummaryRule:
    """Which statistics of which metrics."""

    name: str
    category: str
    statistics: tuple[str, ...] = DEFAULT
    selectors: tuple[Selector, ...] = ()  # none: the metrics that lead their cases
    aggregate: bool | re.Pattern[str] = False

    def picks(self, column: MetricColumn) -> bool:
        """Whether the rule is about this metric."""
        return any(one.picks(column.name) for one in self.selectors) if self.selectors else column.leads

    def merged_name(self, name: str) -> str:
        """The name that metrics which count as one share."""
        if isinstance(self.aggregate, bool):
            return re.sub(r":\d+$", "", name) if self.aggregate else name
        match = self.aggregate.search(name)
        for group in reversed(range(1, (match.re.groups if match else 0) + 1)):
            begin, end = match.span(group) if match else (-1, -1)
            name = f"{name[:begin]}*{name[end:]}" if begin >= 0 else name
        return name


@dataclass(frozen=True)
class SummaryLine:
    """One statistic of one metric; None where a rule found no metric, or one value has no deviation."""

    category: str
    metric: str
    unit: str
    statistic: str
    value: float | None


def default_rules() -> tuple[SummaryRule, ...]:
    """What is shown unless a file says otherwise: the metric that leads each case, over all nodes and ranks."""
    return (SummaryRule("leading", "", aggregate=True),)


def read_summary_rules(path: Path) -> tuple[tuple[SummaryRule, ...], bool]:
    """The rules of a file, and whether they are SuperBench's, with its names of metrics."""
    with located(str(path)):
        document = read_document(read_text(path, "the file of rules", key="--rules"))
        is_theirs = isinstance(document, Mapping) and "superbench" in document
        outer = document["superbench"] if is_theirs else document
        entries = outer.get("rules") if isinstance(outer, Mapping) else None
        if not isinstance(entries, Mapping) or not entries:
            raise InputError("no-rules", "'rules' must be a mapping of at least one rule by its name", key="rules")
        rules = []
        for name, entry in entries.items():
            with located(f"rule '{name}'"):
                rules.append(_rule(name, entry, is_theirs=is_theirs))
        return tuple(rules), is_theirs


def _rule(name: str, entry: Any, *, is_theirs: bool) -> SummaryRule:
    if not isinstance(entry, Mapping):
        raise InputError("not-a-rule", "a rule is a mapping with 'statistics' and 'metrics'", value=entry)
    if (key := next((key for key in entry if key not in _KEYS), None)) is not None:
        raise unknown("key", str(key), _KEYS, key=str(key))
    for key in ("statistics", "metrics", "categories") if is_theirs else ():
        if key not in entry:
            raise InputError("missing-key", f"'{key}' is missing", key=key)
    statistics, metrics = (
        _listed(key, entry.get(key) or list(default)) for key, default in (("statistics", DEFAULT), ("metrics", ()))
    )
    for one in map(str, statistics):
        if one not in _STATISTICS and not _PERCENTILE.fullmatch(one):
            raise unknown("statistic", one, [*_STATISTICS, "p50", "p99"], key="statistics")
    selectors = (Selector(one, read_pattern(one), benchmark_of(one) if is_theirs else None) for one in metrics)
    category = str(entry.get("categories") or entry.get("category") or name)
    return SummaryRule(name, category, tuple(statistics), tuple(selectors), _aggregate(entry.get("aggregate", False)))


def _listed(key: str, value: Any) -> list[Any]:
    if not isinstance(value, str | list):
        raise InputError("not-a-list", f"'{key}' = {value!r} must be a list of texts", key=key, value=value)
    return [value] if isinstance(value, str) else value


def _aggregate(value: object) -> bool | re.Pattern[str]:
    if isinstance(value, bool):
        return value
    try:
        pattern = re.compile(str(value))
    except re.error as error:
        message = f"'aggregate' = {value!r} is not a pattern: {error}"
        raise InputError("not-a-pattern", message, key="aggregate", value=value) from None
    if not pattern.groups:
        message = f"'aggregate' = {value!r} must be true, false, or a pattern with a group in parentheses"
        raise InputError("no-group", message, key="aggregate", value=value)
    return pattern


def summarize_nodes(table: NodeTable, rules: Sequence[SummaryRule]) -> list[SummaryLine]:
    """Every statistic that the rules ask for, over all nodes that have the metric."""
    lines = []
    for rule in rules:
        merged: dict[str, list[int]] = {}
        for place, column in enumerate(table.columns):
            if rule.picks(column):
                merged.setdefault(rule.merged_name(column.name), []).append(place)
        for metric, places in sorted(merged.items()):
            column, values = table.columns[places[0]], table.values[:, places].ravel()
            values = values[~np.isnan(values)]
            for statistic in rule.statistics if values.size else ():
                unit = "" if statistic == "count" else column.unit
                line = (rule.category or column.component, metric, unit, statistic)
                lines.append(SummaryLine(*line, _statistic(statistic, values)))
        if not merged:
            lines += [SummaryLine(rule.category, "", "", statistic, None) for statistic in rule.statistics]
    return lines


def without_match(table: NodeTable, rules: Sequence[SummaryRule]) -> list[str]:
    """The patterns that match no metric, each with its rule."""
    return [
        f"{rule.name}: {selector.source}"
        for rule in rules
        for selector in rule.selectors
        if not any(selector.picks(column.name) for column in table.columns)
    ]


def _statistic(name: str, values: Values) -> float | None:
    if name == "std" and values.size < 2:
        return None
    match = _PERCENTILE.fullmatch(name)
    return float(np.percentile(values, int(match[1]))) if match else _STATISTICS[name](values)


def rounded(value: float, digits: int) -> float:
    """With so many digits after the point; of a value below 1, so many that count."""
    if not np.isfinite(value) or value == 0 or abs(value) >= 1:
        return round(value, digits)
    return round(value, digits - 1 - int(np.floor(np.log10(abs(value)))))
