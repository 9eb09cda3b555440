"""Names of cases, as short as they may be where several stand beside each other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from paceline.core.case import Case

MOST_SETTINGS = 3  # more of them are no name


def unique_labels(cases: Sequence[Case]) -> list[str]:
    """A name for each case that no other of them has; says no more than it must."""
    labels = [_plain_label(case) for case in cases]
    for extras_of in (_targets, _repeats, _settings_apart, _places):
        pairs = list(zip(labels, extras_of(cases, labels), strict=True))
        variants = Counter(label for label, _ in set(pairs))
        labels = [f"{label} {extra}".rstrip() if variants[label] > 1 else label for label, extra in pairs]
    return labels


def _targets(cases: Sequence[Case], labels: Sequence[str]) -> list[str]:
    return [f"on {case.target}" for case in cases]


def _repeats(cases: Sequence[Case], labels: Sequence[str]) -> list[str]:
    return [f"#{case.repeat}" for case in cases]


def _settings_apart(cases: Sequence[Case], labels: Sequence[str]) -> list[str]:
    """What cases of one label set differently, such as how long they measure; nothing where that would be a list."""
    alike: dict[str, list[Case]] = {}
    for case, label in zip(cases, labels, strict=True):
        alike.setdefault(label, []).append(case)
    differing = {label: _differing(group) for label, group in alike.items()}
    return [
        " ".join(f"{name}={show_parameter(case.parameters[name])}" for name in differing[label])
        for case, label in zip(cases, labels, strict=True)
    ]


def _differing(cases: Sequence[Case]) -> list[str]:
    if len(cases) == 1:  # the usual thing, and there may be ten thousand of them
        return []
    shared = set.intersection(*(set(case.parameters) for case in cases))
    names = sorted(name for name in shared if len({show_parameter(case.parameters[name]) for case in cases}) > 1)
    return names if len(names) <= MOST_SETTINGS else []


def _places(cases: Sequence[Case], labels: Sequence[str]) -> list[str]:
    return [f"[{case.index}]" for case in cases]


def show_parameter(value: Any) -> str:
    """A parameter's value in a word."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _plain_label(case: Case) -> str:
    title = case.title.strip()
    if not title or title == case.benchmark or title.startswith(f"{case.benchmark} "):
        return title or case.benchmark
    return f"{case.benchmark} {title}"
