"""The measurements as comma-separated values: one row each, with unit, interval and parameters."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from paceline.core.record import Measurement, Record
from paceline.core.run import RunRecords
from paceline.core.stats import PERCENTILES
from paceline.report.export import Export

_CASE = ("run", "case", "benchmark", "title", "target", "ranks", "repeat", "attempt", "outcome", "cause", "message")
_FIGURE = (
    "metric",
    "scope",
    "at",
    "unit",
    "better",
    "statistic",
    "value",
    "low",
    "high",
    "confidence",
    "relative_half_width",
)
_SPREAD = ("count", "mean", "median", "minimum", "maximum", "deviation", "outliers")
COLUMNS = (*_CASE, *_FIGURE, *_SPREAD, *(f"p{name:g}" for name in PERCENTILES), "warnings", "parameters")


def render(records: RunRecords) -> str:
    """The whole table; a case without any measurement has one row, so that none is missed."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for record in sorted(records.records, key=lambda record: record.case.index):
        for figures in [_figures(measurement) for measurement in record.measurements] or [{}]:
            writer.writerow({key: harmless(value) for key, value in (_about(record) | figures).items()})
    return file.getvalue()


def _about(record: Record) -> dict[str, Any]:
    case = record.case
    return {
        "run": record.run_id,
        "case": case.index,
        "benchmark": case.benchmark,
        "title": case.title,
        "target": case.target,
        "ranks": case.ranks,
        "repeat": case.repeat,
        "attempt": record.attempt,
        "outcome": record.outcome.value,
        "cause": record.cause.kind.value if record.cause else "",
        "message": record.cause.message if record.cause else "",
        "warnings": ";".join(dict.fromkeys(warning.kind for warning in record.warnings)),
        "parameters": json.dumps(case.parameters, sort_keys=True, default=str),
    }


def _figures(measurement: Measurement) -> dict[str, Any]:
    metric, summary, interval = measurement.metric, measurement.summary, measurement.interval
    figures: dict[str, Any] = {
        "metric": metric.name,
        "scope": measurement.scope,
        "at": ";".join(f"{key}={value}" for key, value in measurement.at.items()),
        "unit": metric.unit,
        "better": metric.better.value,
        "statistic": measurement.statistic,
        "value": measurement.value,
    }
    if interval:
        figures |= {"low": interval.low, "high": interval.high, "confidence": interval.confidence}
        figures["relative_half_width"] = interval.relative(measurement.value)
    figures |= {name: getattr(summary, name) for name in _SPREAD}
    return figures | {f"p{name}": value for name, value in summary.percentiles.items() if f"p{name}" in COLUMNS}


def harmless(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is kept a text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


EXPORT = Export("csv", "one row per measurement", render, suffixes=(".csv",), order=10)
