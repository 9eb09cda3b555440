"""What a machine was like before and after a measurement, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.report.render.html import is_table


@dataclass(frozen=True)
class Change:
    """One condition, before and after the measurement."""

    name: str
    key: str  # the last part of the name, which tells the unit
    before: Any
    after: Any


def changes(conditions: Mapping[str, Any]) -> list[Change]:
    """Every condition on a line of its own; what is known neither before nor after is left out."""
    before, after = dict(_flat(conditions.get("before"))), dict(_flat(conditions.get("after")))
    names = [name for name in dict.fromkeys([*before, *after]) if (before.get(name), after.get(name)) != (None, None)]
    return [Change(name, name.rpartition(", ")[2], before.get(name), after.get(name)) for name in names]


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What nested mappings and lists of them hold, with joined names."""
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = value.items()
    elif is_table(value):
        items = enumerate(value)
    else:
        if prefix and value not in ([], {}):
            yield prefix, value
        return
    for key, inner in items:
        yield from _flat(inner, f"{prefix}, {key}" if prefix else str(key))
