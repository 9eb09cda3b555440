"""The measurements as comma-separated values: one row each, with unit, interval and parameters."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.core.record import Measurement, Record
from paceline.core.run import RunRecords
from paceline.core.stats import PERCENTILES, Interval
from paceline.report.export import Export

_OF_CASE = ("benchmark", "title", "target", "ranks", "repeat")
_OF_METRIC = ("metric", "scope", "at", "unit", "better", "statistic", "value", "low", "high", "confidence")
_OF_SUMMARY = ("count", "mean", "median", "minimum", "maximum", "deviation", "outliers")
COLUMNS = (
    *("run", "case", *_OF_CASE, "attempt", "outcome", "cause", "message"),
    *(*_OF_METRIC, "relative_half_width", *_OF_SUMMARY, *(f"p{name:g}" for name in PERCENTILES)),
    *("warnings", "parameters"),
)


def render(records: RunRecords) -> str:
    """The whole table."""
    return csv_text(COLUMNS, measurement_rows(records))


def measurement_rows(records: RunRecords) -> list[dict[str, Any]]:
    """A row for each measurement; a case without any has one row, so that none is missed."""
    rows: list[dict[str, Any]] = []
    for record in sorted(records.records, key=lambda record: record.case.index):
        shared = record_columns(record) | {
            "run": record.run_id,
            "case": record.case.index,
            "message": record.cause.message if record.cause else "",
            "warnings": ";".join(dict.fromkeys(warning.kind for warning in record.warnings)),
        }
        rows += [shared | _figures(measurement) for measurement in record.measurements] or [shared]
    return rows


def _figures(measurement: Measurement) -> dict[str, Any]:
    figures = measurement_columns(measurement) | {"at": joined(measurement.at)}
    if measurement.interval:
        figures["relative_half_width"] = measurement.interval.relative(measurement.value)
    return figures | {f"p{name}": value for name, value in measurement.summary.percentiles.items()}


def record_columns(record: Record) -> dict[str, Any]:
    """What every table of measurements says about the record of a row."""
    return {name: getattr(record.case, name) for name in _OF_CASE} | {
        "attempt": record.attempt,
        "outcome": record.outcome.value,
        "cause": record.cause.kind.value if record.cause else None,
        "parameters": json.dumps(record.case.parameters, sort_keys=True, default=str),
    }


def measurement_columns(measurement: Measurement) -> dict[str, Any]:
    """What every table of measurements says about the figures of a row."""
    metric = measurement.metric
    return {
        "metric": metric.name,
        "scope": measurement.scope,
        "unit": metric.unit,
        "better": metric.better.value,
        "statistic": measurement.statistic,
        "value": measurement.value,
        **interval_columns(measurement.interval),
        **{name: getattr(measurement.summary, name) for name in _OF_SUMMARY},
    }


def interval_columns(interval: Interval | None) -> dict[str, float | None]:
    """The ends of an interval and its confidence, for a row or an object."""
    return {name: getattr(interval, name, None) for name in ("low", "high", "confidence")}


def joined(at: Mapping[str, object]) -> str:
    """A point of a sweep in one cell."""
    return ";".join(f"{key}={value}" for key, value in at.items())


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A table with a header; keys that are not a column are left out, and what a row lacks is an empty cell."""
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: harmless(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def harmless(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula, marked as text; anything else as it is."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


EXPORT = Export("csv", "one row per measurement", render, suffixes=(".csv",), order=10)
