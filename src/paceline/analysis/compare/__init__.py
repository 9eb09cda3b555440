"""Whether one side of a comparison differs from another, by how much, and how sure that is."""

from __future__ import annotations

from paceline.analysis.compare.environments import EnvironmentDifference
from paceline.analysis.compare.matching import Difference, Match, Matched, Side, match
from paceline.analysis.compare.paired import compare_turns, is_in_turns
from paceline.analysis.compare.significance import (
    FALSE_ALARMS,
    Ratio,
    RepeatSamples,
    ratio_of_pairs,
    ratios,
    significant,
)
from paceline.analysis.compare.verdicts import (
    Broken,
    Comparison,
    ComparisonRow,
    ComparisonVerdict,
    Limit,
    Mean,
    Pairing,
    Violation,
    compare,
    violations,
)

__all__ = [
    "FALSE_ALARMS",
    "Broken",
    "Comparison",
    "ComparisonRow",
    "ComparisonVerdict",
    "Difference",
    "EnvironmentDifference",
    "Limit",
    "Match",
    "Matched",
    "Mean",
    "Pairing",
    "Ratio",
    "RepeatSamples",
    "Side",
    "Violation",
    "compare",
    "compare_turns",
    "is_in_turns",
    "match",
    "ratio_of_pairs",
    "ratios",
    "significant",
    "violations",
]
