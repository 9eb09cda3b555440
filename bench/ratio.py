"""One line of the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """One figure, what it was made of, and what it should be."""

    name: str
    value: float
    target: str
    is_met: bool
    made_of: str
