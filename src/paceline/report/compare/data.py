"""A comparison for programs: one row per ratio as CSV, all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from paceline.analysis.compare.verdicts import Comparison, ComparisonRow, Pairing, Violation
from paceline.report.compare.document import answer, violation_words
from paceline.report.export import csv

COLUMNS = (
    *("reference", "new", "case", "category", "metric", "scope", "at", "unit", "better"),
    *("reference_value", "new_value", "ratio", "low", "high", "confidence", "chance", "verdict"),
    *(f"{side}_{name}" for name in ("parts", "samples", "warnings") for side in ("reference", "new")),
)


def csv_text(comparison: Comparison) -> str:
    """One line per ratio."""
    rows = [
        _figures(row)
        | {"reference": pairing.reference.name, "new": pairing.new.name, "at": csv.joined(row.at)}
        | {"reference_warnings": ";".join(row.warnings[0]), "new_warnings": ";".join(row.warnings[1])}
        for pairing in comparison.pairings
        for row in pairing.rows
    ]
    return csv.csv_text(COLUMNS, rows)


def json_text(comparison: Comparison, violations: Sequence[Violation] = ()) -> str:
    """Everything, as one object."""
    return json.dumps(_document(comparison, violations), indent=2, allow_nan=False) + "\n"


def json_line(comparison: Comparison) -> str:
    """The same as an event on one line."""
    return json.dumps({"event": "comparison"} | _document(comparison, ()), allow_nan=False)


def _document(comparison: Comparison, violations: Sequence[Violation]) -> dict[str, Any]:
    document = {
        "paired": comparison.is_paired,
        "comparisons": [_pairing(pairing, comparison) for pairing in comparison.pairings],
        "violations": [
            {"limit": str(one.limit), "case": one.label, "new": one.pairing.new.name, "message": violation_words(one)}
            for one in violations
        ],
    }
    finite: dict[str, Any] = json.loads(to_json(document, inf_nan_mode="null"))  # JSON has neither NaN nor infinity
    return finite


def _pairing(pairing: Pairing, comparison: Comparison) -> dict[str, Any]:
    return {
        "reference": {"name": pairing.reference.name, "runs": [one.run.id for one in pairing.reference.runs]},
        "new": {"name": pairing.new.name, "runs": [one.run.id for one in pairing.new.runs]},
        "answer": answer(pairing, is_paired=comparison.is_paired),
        "rows": [_figures(row) for row in pairing.rows],
        "geometric_means": [
            {
                "category": mean.category,
                "cases": mean.count,
                "gain": mean.value,
                "low": mean.interval.low if mean.interval else None,
                "high": mean.interval.high if mean.interval else None,
                "is_change": mean.is_change,
            }
            for mean in pairing.means
        ],
        "environment_differences": [vars(difference) for difference in pairing.environment],
        "parameter_differences": [
            vars(difference) | {"cases": count} for difference, count in pairing.matched.differences.items()
        ],
        "one_side_only": [{"case": one.label, "missing_in": one.side, "reason": one.reason} for one in pairing.broken],
        "only_reference": list(pairing.matched.only_reference),
        "only_new": list(pairing.matched.only_new),
        "not_compared": list(pairing.uncompared),
    }


def _figures(row: ComparisonRow) -> dict[str, Any]:
    ratio = row.ratio
    return {
        "case": row.label,
        "category": row.category,
        "metric": row.metric.name,
        "scope": row.scope,
        "at": row.at,
        "unit": row.metric.unit,
        "better": row.metric.better.value,
        "reference_value": ratio.reference,
        "new_value": ratio.new,
        "ratio": ratio.value,
        **csv.interval_columns(ratio.interval),
        "chance": ratio.chance,
        "verdict": row.verdict.value,
        "reference_parts": row.parts[0],
        "new_parts": row.parts[1],
        "reference_samples": row.samples[0],
        "new_samples": row.samples[1],
        "reference_warnings": list(row.warnings[0]),
        "new_warnings": list(row.warnings[1]),
    }
