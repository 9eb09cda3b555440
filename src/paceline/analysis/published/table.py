"""A table of text that puts a run beside published figures, and the files that hold these."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files


@dataclass(frozen=True)
class PublishedTable:
    """Ours and theirs, line by line; the first `named` columns say what a line is about."""

    title: str
    source: str  # of the published figures, and what to know when comparing
    headers: tuple[str, ...]
    named: int
    lines: tuple[tuple[str, ...], ...]


@lru_cache
def published_rows(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a file of published figures; its lines that start with # say where they are from."""
    text = (files("paceline.analysis.published") / f"{name}.csv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(csv.DictReader(lines))
