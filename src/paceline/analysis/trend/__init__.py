"""The history of a metric over runs: its series, and where they changed."""

from __future__ import annotations

from paceline.analysis.trend.series import History, Shift, TrendPoint, TrendSeries, history
from paceline.analysis.trend.steps import FEWEST, Change, EnvironmentChange, find_changes, fingerprint

__all__ = [
           "FEWEST",
           "Change",
           "EnvironmentChange",
           "History",
           "Shift",
           "TrendPoint",
           "TrendSeries",
           "find_changes",
           "fingerprint",
           "history",
]  # fmt: skip
