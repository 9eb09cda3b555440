"""Figures that others published, and tables that put a run next to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from paceline.core.files import shipped_rows
from paceline.core.quantity import show_interval, with_interval
from paceline.core.record import Measurement


@dataclass(frozen=True)
class PublishedTable:
    """Ours and theirs, line by line; the first `named` columns say what a line is about."""

    title: str
    source: str  # of the published figures, and what to know when comparing; empty where another table has it
    headers: tuple[str, ...]
    named: int
    lines: tuple[tuple[str, ...], ...]

    def filled(self) -> PublishedTable:
        """The table without the columns that say nothing, which are those of what the run did not measure."""
        columns = list(enumerate(zip(self.headers, *self.lines, strict=True)))
        filled = [cells for index, cells in columns if index < self.named or any(cells[1:])]
        headers, *lines = zip(*filled, strict=True)
        return replace(self, headers=headers, lines=tuple(lines))


@lru_cache
def published_rows(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a file of published figures."""
    return tuple(shipped_rows("paceline.analysis.published", f"{name}.csv"))


def shown_rate(rate: Measurement) -> str:
    """The figure with its interval."""
    return with_interval(shown_number(rate.value), show_interval(rate.value, rate.interval, shown_number))


def shown_number(value: float) -> str:
    """Four digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
