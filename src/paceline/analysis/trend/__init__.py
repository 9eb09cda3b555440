"""The history of a metric over runs: its series, and where they changed."""

from __future__ import annotations

from paceline.analysis.trend.series import History, Point, Series, Shift, history
from paceline.analysis.trend.steps import FEWEST, Change, Difference, find_changes, fingerprint

__all__ = ["FEWEST", "Change", "Difference", "History", "Point", "Series", "Shift", "find_changes", "fingerprint",
           "history"]  # fmt: skip
